"""Writes to the target: one transaction after another, each with the positions that its records lead to.

The committed positions are the truth. After every failure whose outcome is not known for certain, the copier reads them
again, instead of concluding what the target holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hapax.client.backoff import Backoff
from hapax.client.coordination import ConsumerGroup, OffsetAndMetadata
from hapax.client.environment import ClientPorts
from hapax.client.errors import FencedError, HapaxError, RetriableError
from hapax.client.producer import Producer
from hapax.client.records import DeliveryReport
from hapax.client.settings import Options
from hapax.core.errors import ErrorCode
from hapax.core.producer.states import State
from hapax.core.types import TopicPartition
from hapax.runtime import supervision

log = logging.getLogger("hapax.copy")

Batch = tuple[TopicPartition, bytearray | memoryview, int]
"""Partition of the target, the batch, and its number of records."""

_SAY_EVERY_MS: Final = 10_000
_LOOK_S: Final = 1.0
"""How often a wait checks whether it has to end."""
_CLOSE_S: Final = 2.0
"""How long a producer may take to abort its transaction before it is dropped. The next one aborts it otherwise."""
_OF_BATCHES: Final = frozenset({
    ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.POLICY_VIOLATION})
"""Refusals that the same batch would get again."""


class Refused(Exception):
    """The target refuses the records of a partition for good."""

    def __init__(self, partition: TopicPartition, error: HapaxError) -> None:
        self.partition = partition
        self.error = error
        super().__init__(str(error))


class Stopped(Exception):
    """The copier has to end before the outcome is known."""


class Writer:
    def __init__(self, settings: Mapping[str, object], ports: ClientPorts, stopping: Callable[[], bool]) -> None:
        """`stopping`: whether waiting has to end."""
        self._settings = settings
        self._ports = ports
        self._stopping = stopping
        self._producer: Producer | None = None
        self._known: set[str] = set()

    async def start(self) -> None:
        """Returns once the former holders of the transactional id are fenced and their transactions are ended. Waits
        for the target without a limit. Raises FencedError, FatalError, Stopped."""
        await self._drop()
        backoff = Backoff(Options(self._settings, "p"), self._ports)
        said = False
        while True:
            producer = Producer(self._settings, ports=self._ports)
            try:
                await producer.start()
                self._producer = producer
                self._known.clear()
                return
            except RetriableError as error:
                await producer.close()
                if not said:
                    log.warning(
                        "waiting for the target: %s. If it serves readers, its log says what it lacks: room on its"
                        " disks, or replicas that are in sync", error)
                said = True
            except BaseException:
                await producer.close()
                raise
            if self._stopping():
                raise Stopped
            await asyncio.sleep(backoff.seconds())

    async def close(self) -> None:
        await self._drop()

    async def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):  # cancelled, it disconnects all the same
                    await producer.close()

    async def partitions_of(self, topic: str) -> int:
        """The number of partitions of a topic of the target. Raises HapaxError."""
        producer = self._producer
        assert producer is not None
        self._known.add(topic)
        return await producer.partitions_of(topic)

    async def write(
        self, batches: Sequence[Batch], positions: Mapping[TopicPartition, OffsetAndMetadata],
        group: Callable[[], ConsumerGroup], own: Sequence[Batch],
        more: Callable[[list[DeliveryReport]], Sequence[Batch]] | None = None,
    ) -> None:
        """One transaction, committed. `group`: asked once the batches are sent. `own`: batches for the copy's own
        topics. `more`: makes further ones from the reports of the first record of each of `batches`. Raises Refused,
        Stopped, and HapaxError: then nothing of the transaction is visible, or the outcome is unknown."""
        producer = self._producer
        assert producer is not None
        written = [*batches, *own]
        for topic in sorted({partition.topic for partition, _, _ in written} - self._known):
            await self.partitions_of(topic)
        producer.begin()
        sent: list[asyncio.Future[DeliveryReport]] = []
        try:
            if written:
                sent = await producer.send_batches(written)
            if more is not None:
                await self._flush(producer)
                further = more([report.result() for report in sent[:len(batches)]])
                for topic in sorted({partition.topic for partition, _, _ in further} - self._known):
                    await self.partitions_of(topic)
                if further:
                    sent += await producer.send_batches(further)
                    written += further
            await producer.send_offsets(positions, group())
            await self._end(producer)
        except HapaxError as error:
            for (partition, _, _), report in zip(written, sent, strict=False):
                failure = report.exception() if report.done() and not report.cancelled() else None
                if isinstance(failure, HapaxError) and failure.code in _OF_BATCHES:
                    raise Refused(partition, failure) from error
            raise

    async def _flush(self, producer: Producer) -> None:
        flushing = supervision.judged(producer.flush())
        try:
            while not flushing.done():
                await asyncio.wait([flushing], timeout=_LOOK_S)
                if self._stopping() and not flushing.done():
                    raise Stopped
            await flushing
        finally:
            flushing.cancel()

    async def _end(self, producer: Producer) -> None:
        """Commits, and waits for the outcome without a limit."""
        told = self._ports.clock.monotonic_ms() + _SAY_EVERY_MS
        before = _refused(producer)
        while True:
            try:
                await producer.commit()
                return
            except RetriableError as error:
                if self._stopping():
                    raise Stopped from error
                now = self._ports.clock.monotonic_ms()
                if now >= told:
                    told = now + _SAY_EVERY_MS
                    log.warning("waiting for the target: %s%s", error.message, _refusals(producer, before))

    async def abandon(self) -> None:
        """After a failed `write`: aborts the transaction, or gets a new producer where its state is not known. Raises
        as `start`."""
        producer = self._producer
        if producer is not None and producer.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            try:
                await producer.abort()
                return
            except RetriableError:
                pass  # a new producer ends it
            except FencedError:
                raise
            except HapaxError as error:
                log.info("a transaction could not be aborted, and a new producer follows: %s", error)
        elif producer is not None and producer.state is State.READY:
            return
        await self.start()


def _refused(producer: Producer) -> dict[str, float]:
    """Code -> number of answers that have refused a batch."""
    begin = 'hapax_client_batch_errors_total{code="'
    return {
        name.removeprefix(begin).rstrip('"}'): count for name, count in producer.metrics.values().items()
        if name.startswith(begin)}


def _refusals(producer: Producer, before: Mapping[str, float]) -> str:
    new = {code: count - before.get(code, 0) for code, count in _refused(producer).items()}
    said = ", ".join(f"{code} ({count:g} times)" for code, count in sorted(new.items()) if count)
    return f"; meanwhile it has answered {said}" if said else ""

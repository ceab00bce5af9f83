"""Client processes of a chaos run with consumer groups: a feeder, and members that consume, process and produce.

The feeder appends unique values to the input topic. Each member subscribes to it and copies what its group assigns to
the same partition of the output topic, in transactions that commit its positions (KIP-447). A copy is the value and the
name of the attempt, so that values are unique. The same program drives the native client and librdkafka.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from hapax_chaos.clients import (
    Abort,
    Ended,
    Librdkafka,
    Program,
    Settings,
    Unknown,
    native_errors,
    until_answered,
)

SESSION_MS: Final = 6000
TRANSACTION_TIMEOUT_MS: Final = 9500
"""Longer than a session: a member that stands still in a transaction has lost its partitions and not its transaction.
"""
POLL_MS: Final = 12_000
"""max.poll.interval.ms, and so the rebalance timeout."""
_BEAT_MS: Final = 400
_MOST: Final = 20
_FED_AT_ONCE: Final = 4
_FEED_EVERY_S: Final = 0.03
COPY: Final = "@"

Polled = list[tuple[int, int, str]]
"""(partition, offset, value)"""


class MemberSettings(Settings):
    """Of a feeder as well."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.output: str = self.given["output"]
        self.group: str = self.given["group"]
        self.protocol: str = self.given["protocol"]
        """consumer or classic"""
        self.assignor: str = self.given["assignor"]
        """Of the classic protocol."""
        self.static: bool = self.given["static"]


class Owns(Protocol):
    """Called from callbacks, with everything that the member owns."""

    def __call__(self, epoch: int, member: str, partitions: list[int]) -> None: ...


class Face(Protocol):
    """A producer and a member of the group. Each method raises Abort, Unknown or Ended."""

    def poll(self, timeout_s: float) -> Polled: ...
    def begin(self) -> None: ...
    def send(self, partition: int, value: str) -> Callable[[], int | None]: ...
    def send_offsets(self, positions: dict[int, int]) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def go_back(self, positions: dict[int, int]) -> None:
        """After an abort: to these offsets, where the partition is still assigned."""
        ...

    def close(self) -> None: ...


# --- the native client --------------------------------------------------------------------------------------------


class NativeMember:
    def __init__(self, settings: MemberSettings, owns: Owns) -> None:
        from hapax.client import TopicPartition, blocking

        self._where = lambda topic, partition: TopicPartition(topic, partition)
        self._settings, self._owns = settings, owns
        common = {"bootstrap.servers": settings.bootstrap, **settings.security, "request.timeout.ms": "3000"}
        self._producer = blocking.Producer({
            **common, "transactional.id": settings.name, "max.block.ms": "15000", "delivery.timeout.ms": "15000",
            "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS), "linger.ms": "0",
        })
        of_group: dict[str, object] = {
            "group.id": settings.group, "group.protocol": settings.protocol, "isolation.level": settings.isolation,
            "enable.auto.commit": "false", "auto.offset.reset": "earliest", "session.timeout.ms": SESSION_MS,
            "max.poll.interval.ms": POLL_MS,
        }
        if settings.protocol == "classic":
            of_group |= {"heartbeat.interval.ms": _BEAT_MS, "partition.assignment.strategy": settings.assignor}
        if settings.static:
            of_group["group.instance.id"] = settings.name
        self._consumer = blocking.Consumer(common | of_group)
        with native_errors():
            self._producer.start()
            self._consumer.start()
            self._consumer.subscribe([settings.topic], on_assigned=self._assigned)

    def _assigned(self, partitions: list[Any]) -> None:
        who = self._consumer.group_metadata()
        name = who.instance_id or who.member_id
        self._owns(who.generation, name, sorted(each.partition for each in who.assigned or ()))

    def poll(self, timeout_s: float) -> Polled:
        with native_errors():
            records = self._consumer.poll(int(timeout_s * 1000), _MOST)
        return [(r.partition, r.offset, (r.value or b"").decode()) for r in records]

    def begin(self) -> None:
        with native_errors():
            self._producer.begin()

    def send(self, partition: int, value: str) -> Callable[[], int | None]:
        with native_errors():
            delivery = self._producer.send(self._settings.output, value.encode(), partition=partition)

        def offset() -> int | None:
            if not delivery.done() or delivery.cancelled() or delivery.exception() is not None:
                return None
            found = delivery.result().offset
            return found if found >= 0 else None

        return offset

    def send_offsets(self, positions: dict[int, int]) -> None:
        with native_errors():
            self._producer.send_offsets(
                {self._where(self._settings.topic, p): o for p, o in positions.items()},
                self._consumer.group_metadata())

    def commit(self) -> None:
        with native_errors():
            self._producer.commit()

    def abort(self) -> None:
        with native_errors():
            self._producer.abort()

    def go_back(self, positions: dict[int, int]) -> None:
        with native_errors():
            assigned = {each.partition for each in self._consumer.assignment()}
            for partition in assigned & positions.keys():
                self._consumer.seek((self._settings.topic, partition), positions[partition])

    def close(self) -> None:
        from hapax.client import HapaxError

        for part in (self._consumer, self._producer):
            with contextlib.suppress(HapaxError):
                part.close()


# --- librdkafka ---------------------------------------------------------------------------------------------------


class LibrdkafkaMember(Librdkafka):
    """Its epochs cannot be seen, so it never says what it owns."""

    TIMEOUT_MS = TRANSACTION_TIMEOUT_MS

    def __init__(self, settings: MemberSettings, owns: Owns) -> None:
        self._output = settings.output
        self._taken: Polled = []
        super().__init__(settings)

    def _reader(self, settings: MemberSettings, common: dict[str, Any]) -> Any:
        from confluent_kafka import Consumer

        of_group: dict[str, Any] = {"group.protocol": settings.protocol}
        if settings.protocol == "classic":
            of_group |= {
                "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": _BEAT_MS,
                "partition.assignment.strategy": settings.assignor,
            }
        if settings.static:
            of_group["group.instance.id"] = settings.name
        consumer = Consumer({
            **common, **of_group, "group.id": settings.group, "isolation.level": settings.isolation,
            "enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 50, "max.poll.interval.ms": POLL_MS,
        })
        consumer.subscribe([settings.topic], on_revoke=self._drop, on_lost=self._drop)
        return consumer

    def _drop(self, consumer: Any, partitions: list[Any]) -> None:
        """Within a poll: records that were taken before belong to the next owner."""
        gone = {each.partition for each in partitions}
        self._taken = [each for each in self._taken if each[0] not in gone]

    def poll(self, timeout_s: float) -> Polled:
        """One record at a time: a batch could hold records of partitions that were taken away in between."""
        from confluent_kafka import KafkaException

        self._taken = []
        deadline = time.monotonic() + timeout_s
        while len(self._taken) < _MOST:
            try:
                message = self._consumer.poll(0.0 if self._taken else max(0.0, deadline - time.monotonic()))
            except KafkaException as raised:
                raise self._meaning(raised) from raised
            if message is None:
                break
            if message.error() is None:
                self._taken.append((message.partition(), message.offset(), (message.value() or b"").decode()))
            elif message.error().fatal():
                raise Ended(str(message.error()))
        return self._taken

    def go_back(self, positions: dict[int, int]) -> None:
        """A seek in a partition without a leader cannot drop what was prefetched. Another member's life can."""
        raise Ended("librdkafka begins a new life after an abort")


KINDS: Final[dict[str, Callable[[MemberSettings, Owns], Face]]] = {
    "native": NativeMember, "librdkafka": LibrdkafkaMember,
}


# --- the programs -------------------------------------------------------------------------------------------------


class Copier(Program[MemberSettings, Face]):
    """Copies what its group assigns to it, in transactions."""

    def __init__(self, settings: MemberSettings) -> None:
        super().__init__(settings)
        self._attempt = 0

    def _begin(self) -> Face:
        return KINDS[self._settings.kind](self._settings, self._owns)

    def _live(self, face: Face) -> None:
        self._history.note("subscribe", [self._settings.topic])
        while not self.stopping:
            if records := face.poll(0.2):
                self._copy(face, records)
                time.sleep(self._random.uniform(0, 2 * self._settings.pause_s))

    def _owns(self, epoch: int, member: str, partitions: list[int]) -> None:
        self._history.note("owns", {"epoch": epoch, "member": member, "partitions": partitions})

    def _copy(self, face: Face, records: Polled) -> None:
        self._attempt += 1
        polled: dict[str, list[list[Any]]] = {}
        for partition, offset, value in records:
            polled.setdefault(f"{self._settings.topic}-{partition}", []).append([offset, value])
        done: list[list[Any]] = [["poll", polled]]
        name = f"{self._history.process}.{self._attempt}"
        plan = [["send", f"{self._settings.output}-{p}", f"{value}{COPY}{name}"] for p, _, value in records]
        self._history.write("invoke", "txn", [["poll"], *plan])
        begun: dict[int, int] = {}
        offsets: list[tuple[list[Any], Callable[[], int | None]]] = []
        try:
            face.begin()
            for (partition, offset, _), micro in zip(records, plan, strict=True):
                begun.setdefault(partition, offset)
                done.append(list(micro))
                offsets.append((done[-1], face.send(partition, micro[2])))
            if self._random.random() < 0.2:  # so that partitions move in the middle of transactions
                time.sleep(self._random.uniform(0, 0.5))
            self._commit_positions(face, {partition: offset + 1 for partition, offset, _ in records})
            if self._random.random() < 0.03:
                raise Abort("the program decided to abort")
        except (Abort, Unknown) as error:
            self._abort(face, error, plan, done, begun)
            return
        except Ended:
            self._history.write("fail", "txn", [["poll", polled], *plan])
            raise
        try:
            until_answered(face.commit)
        except Abort as error:
            self._abort(face, error, plan, done, begun)
            return
        except (Unknown, Ended):
            self._history.write("info", "txn", done)
            raise
        for micro, offset_of in offsets:
            micro[2] = [offset_of(), micro[2]]
        self._history.write("ok", "txn", done)

    def _commit_positions(self, face: Face, positions: dict[int, int]) -> None:
        face.send_offsets(positions)

    def _abort(
        self, face: Face, why: Exception, plan: list[list[Any]], done: list[list[Any]], begun: dict[int, int]
    ) -> None:
        self._history.write("fail", "txn", [done[0], *plan])
        self._history.note("debug", str(why))
        until_answered(face.abort)
        face.go_back(begun)


class SlowCopier(Copier):
    """Is mostly between its records and its positions."""

    def _commit_positions(self, face: Face, positions: dict[int, int]) -> None:
        time.sleep(self._random.uniform(0.3, 0.6))
        face.send_offsets(positions)


class CarelessCopier(Copier):
    """Commits its positions in another transaction than its records, to test that the checks find it."""

    def _commit_positions(self, face: Face, positions: dict[int, int]) -> None:
        until_answered(face.commit)
        time.sleep(self._random.uniform(0, 0.1))
        face.begin()
        face.send_offsets(positions)


class Feed:
    """A native producer without transactions."""

    def __init__(self, settings: MemberSettings) -> None:
        from hapax.client import blocking

        self.producer = blocking.Producer({
            "bootstrap.servers": settings.bootstrap, **settings.security, "request.timeout.ms": "3000",
            "linger.ms": "0"})
        try:
            with native_errors():
                self.producer.start()
        except (Abort, Unknown, Ended):
            self.close()
            raise

    def close(self) -> None:
        from hapax.client import HapaxError

        with contextlib.suppress(HapaxError):
            self.producer.close()


class Feeder(Program[MemberSettings, Feed]):
    """Appends values outside of transactions, each of them once."""

    def __init__(self, settings: MemberSettings) -> None:
        super().__init__(settings)
        self._number = 0

    def _begin(self) -> Feed:
        return Feed(self._settings)

    def _live(self, feed: Feed) -> None:
        while not self.stopping:
            with native_errors():
                self._feed(feed.producer)
            time.sleep(_FEED_EVERY_S)

    def _feed(self, producer: Any) -> None:
        from hapax.client import HapaxError

        micros: list[list[Any]] = []
        for _ in range(self._random.randrange(1, _FED_AT_ONCE + 1)):
            self._number += 1
            partition = self._random.randrange(self._settings.partitions)
            micros.append(["send", f"{self._settings.topic}-{partition}", f"{self._history.process}.{self._number}"])
        self._history.write("invoke", "send", micros)
        try:
            sent = [
                producer.send(self._settings.topic, value.encode(), partition=int(key.rpartition("-")[2]))
                for _, key, value in micros
            ]
            reports = [each.result() for each in sent]
        except HapaxError:
            self._history.write("info", "send", micros)
            raise
        for micro, report in zip(micros, reports, strict=True):
            micro[2] = [report.offset if report.offset >= 0 else None, micro[2]]
        self._history.write("ok", "send", micros)

"""aiokafka, run on a loop of its own in a thread: its sender works in the background."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import errors as errors

from clients.foreign.face import Abortable, Fatal, Record

TIMEOUT = 60.0
_FATAL = (
    errors.ProducerFenced,
    errors.InvalidProducerEpoch,
    errors.InvalidProducerIdMapping,
    errors.IllegalOperation,
    errors.InvalidTxnState,
)


class _Loop:
    """One thread with one loop for the life of one client."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = TIMEOUT) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)


class AioProducer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._loop = _Loop()
        self._sent: list[Any] = []

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id, linger_ms=0)
            await producer.start()
            return producer

        self._producer: AIOKafkaProducer = self._loop.run(start())

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._loop.run(work)
        except _FATAL as error:
            raise Fatal(repr(error)) from error
        except TimeoutError as error:
            raise Fatal(f"no end within {TIMEOUT} s") from error
        except errors.KafkaError as error:
            raise Abortable(repr(error)) from error

    def begin(self) -> None:
        self._sent = []
        self._call(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        self._sent.append(self._call(self._producer.send(topic, value, key, partition=partition)))

    def flush(self) -> None:
        async def all_sent() -> None:
            await asyncio.gather(*self._sent)

        self._call(all_sent())

    def send_offsets(self, topic: str, partition: int, offset: int, group: str) -> None:
        self._call(self._producer.send_offsets_to_transaction({TopicPartition(topic, partition): offset}, group))

    def commit(self) -> None:
        self._call(self._producer.commit_transaction())

    def abort(self) -> None:
        self._call(self._producer.abort_transaction())

    def close(self) -> None:
        async def stop() -> None:
            # A producer whose id was fenced cannot end its transaction: stop what runs rather than wait for it.
            try:
                await asyncio.wait_for(self._producer.stop(), 5)
            except (TimeoutError, errors.KafkaError):
                await self._producer.client.close()

        self._loop.run(stop())
        self._loop.end()


class AioReader:
    def __init__(self, bootstrap: str, committed: bool, group: str) -> None:
        self._loop = _Loop()

        async def start() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                enable_auto_commit=False,
                isolation_level="read_committed" if committed else "read_uncommitted",
                fetch_max_wait_ms=100,
            )
            await consumer.start()
            return consumer

        self._consumer: AIOKafkaConsumer = self._loop.run(start())

    def committed(self, topic: str, partition: int) -> int:
        async def fetch() -> int:
            where = TopicPartition(topic, partition)
            self._consumer.assign([where])
            found = await self._consumer.committed(where)
            return -1 if found is None else int(found)

        offset: int = self._loop.run(fetch())
        return offset

    def read_to(self, topic: str, partition: int, end: int) -> list[Record]:
        async def read() -> list[Record]:
            where = TopicPartition(topic, partition)
            self._consumer.assign([where])
            self._consumer.seek(where, 0)
            records: list[Record] = []
            while await self._consumer.position(where) < end:
                for batch in (await self._consumer.getmany(where, timeout_ms=200)).values():
                    records += [(r.key, r.value) for r in batch if r.offset < end]
            return records

        found: list[Record] = self._loop.run(read())
        return found

    def close(self) -> None:
        self._loop.run(self._consumer.stop())
        self._loop.end()


class Aio:
    name = "aiokafka"

    def produce_idempotently(self, bootstrap: str, topic: str, records: list[tuple[int, bytes, bytes]]) -> list[int]:
        async def produce() -> list[int]:
            producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=1)
            await producer.start()
            try:
                sent = [await producer.send(topic, value, key, partition=p) for p, key, value in records]
                return [(await future).offset for future in sent]
            finally:
                await producer.stop()

        return asyncio.run(produce())

    def transactional_producer(self, bootstrap: str, transactional_id: str) -> AioProducer:
        return AioProducer(bootstrap, transactional_id)

    def reader(self, bootstrap: str, *, committed: bool, group: str = "readers") -> AioReader:
        return AioReader(bootstrap, committed, group)

"""Producers of transactions version 1, as in older libraries: the epoch does not change between transactions.

If a request is not answered in time, its connection is closed. The batch is sent again on a new one, or the transaction
is aborted. In that case the next transaction begins with the very sequences that were never acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from hapax.client import FatalError, RetriableError, TopicPartition
from hapax.client.cluster import ClusterClient
from hapax.client.settings import Options
from hapax.codec.records import encode_records
from hapax.core.errors import ErrorCode
from hapax.wire import messages
from hapax.wire.peer import Peer, PeerError
from hapax_sim.clients import APPENDS, Life, Program, key_of, partitions_of
from hapax_sim.parts.part import PartTopic
from hapax_sim.recorder import Running

_COUNT: Final = 3
_PATIENCE_MS: Final = 1_000
_LOOK_AGAIN: Final = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH,
})  # fmt: skip


class _Unanswered(Exception):
    """It may have taken effect, or not."""


class OldProducer:
    def __init__(self, life: Life, transactional_id: str) -> None:
        self.life = life
        self.id = transactional_id
        self.cluster = ClusterClient(Options(life.writing(), "p"), life.ports)
        self.peers: dict[tuple[str, int], Peer] = {}
        self.coordinator: tuple[str, int] | None = None
        self.producer_id = self.epoch = -1
        self.sequences: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        await self.cluster.start()
        await self.cluster.topic(APPENDS, 20_000)
        Message = messages.InitProducerIdRequest
        answer = await self._of_coordinator(lambda: Message(
            transactional_id=self.id, transaction_timeout_ms=10_000, producer_id=-1, producer_epoch=-1), 3)
        if answer.error_code:
            raise FatalError("InitProducerId was refused", code=answer.error_code)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def close(self) -> None:
        for peer in self.peers.values():
            peer.close("closed")
        await self.cluster.close()

    # --- one transaction

    async def transact(
        self, running: Running, micros: list[list[object]], write: list[tuple[TopicPartition, str]]
    ) -> bool:
        """Returns whether it was committed."""
        try:
            for where, value in write:
                micros.append(["send", key_of(*where), [None, value]])
                await self.add(where)
                micros[-1][2] = [await self.produce(where, value), value]
            commit = self.life.rng.random() > 0.15
        except _Unanswered:
            commit = False
        running.decided = commit
        await self._end(commit)
        return commit

    async def add(self, where: TopicPartition) -> None:
        Message = messages.AddPartitionsToTxnRequest
        topic = Message.AddPartitionsToTxnTopic(name=where.topic, partitions=[where.partition])
        answer = await self._of_coordinator(lambda: Message(
            v3_and_below_transactional_id=self.id, v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch, v3_and_below_topics=[topic]), 3, _added)
        if _added(answer):
            raise FatalError("AddPartitionsToTxn was refused", code=_added(answer))

    async def produce(self, where: TopicPartition, value: str) -> int:
        """Returns the offset. Raises _Unanswered where the program gives up."""
        rng = self.life.rng
        sequence = self.sequences.get(where, 0)
        batch = encode_records(
            [(self.life.ports.clock.now_ms(), None, value.encode(), ())], transactional=True,
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence,
        )  # fmt: skip
        Message = messages.ProduceRequest
        while True:
            leader = self.cluster.leader(where)
            address = None if leader is None else self.cluster.nodes.get(leader.node_id)
            code = int(ErrorCode.LEADER_NOT_AVAILABLE)
            if address is not None:
                part = Message.TopicProduceData.PartitionProduceData(index=where.partition, records=bytearray(batch))
                message = Message(
                    transactional_id=self.id, acks=-1, timeout_ms=5_000,
                    topic_data=[Message.TopicProduceData(name=where.topic, partition_data=[part])])
                try:
                    answer = await self._ask(address, message, 9)
                    told = answer.responses[0].partition_responses[0]
                    code = told.error_code
                    if code == 0:
                        self.sequences[where] = sequence + 1
                        return int(told.base_offset)
                except PeerError:
                    code = ErrorCode.NETWORK_EXCEPTION
            if code not in _LOOK_AGAIN:
                raise FatalError(f"a write of sequence {sequence} to {key_of(*where)} was refused", code=code)
            self.cluster.refresh_soon()
            self.life.recorder.counts["old write sent again"] += 1
            if rng.random() < 0.5:
                raise _Unanswered
            await asyncio.sleep(rng.uniform(0.02, 0.3))

    async def _end(self, commit: bool) -> None:
        Message = messages.EndTxnRequest
        answer = await self._of_coordinator(lambda: Message(
            transactional_id=self.id, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit), 3)
        if answer.error_code and (commit or answer.error_code != ErrorCode.INVALID_TXN_STATE):
            raise FatalError(f"EndTxn({commit}) was refused", code=answer.error_code)

    # --- connections

    async def _ask(self, address: tuple[str, int], message: Any, version: int) -> Any:
        """Uses the one connection to a node. Raises PeerError, and then the connection is gone."""
        peer = self.peers.get(address)
        if peer is None or peer.closed:
            peer = self.peers[address] = await Peer.connect(
                self.life.ports.network, *address, client_id=self.id, request_timeout_ms=_PATIENCE_MS,
                connect_timeout_ms=_PATIENCE_MS)
        return await peer.call(message, version=version)

    async def _of_coordinator(self, message: Any, version: int, code: Any = lambda answer: answer.error_code) -> Any:
        """The first answer other than "not here" or "not now". Any node is asked which node coordinates."""
        end = self.life.recorder.loop.time() + 60
        while self.life.recorder.loop.time() < end:
            try:
                if self.coordinator is None or self.life.rng.random() < 0.1:
                    await self._find()
                assert self.coordinator is not None
                answer = await self._ask(self.coordinator, message(), version)
                if code(answer) not in _LOOK_AGAIN:
                    return answer
                if code(answer) != ErrorCode.CONCURRENT_TRANSACTIONS:
                    self.coordinator = None
            except (PeerError, RetriableError):
                self.coordinator = None
            await asyncio.sleep(self.life.rng.uniform(0.02, 0.3))
        raise FatalError("no coordinator within a minute")

    async def _find(self) -> None:
        """Each time another node may be asked, whose metadata may be older."""
        host, port = self.life.rng.choice(self.cluster.options["bootstrap.servers"])
        message = messages.FindCoordinatorRequest(key=self.id, key_type=1, coordinator_keys=[self.id])
        answer = (await self._ask((host, port), message, 4)).coordinators[0]
        if answer.error_code:
            raise RetriableError("no coordinator", code=answer.error_code)
        self.coordinator = (answer.host, answer.port)


def _added(answer: Any) -> int:
    return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


class Old:
    """Their records are appended together with the others': one history is judged for all."""

    topics: Mapping[str, PartTopic] = {}

    def programs(self) -> dict[str, Program]:
        return {f"old-{number}": self.write for number in range(_COUNT)} | {"leaver-0": self.leave}

    async def write(self, life: Life) -> None:
        producer = OldProducer(life, life.name)
        number = 0
        try:
            await producer.start()
            while not life.stopping():
                micros: list[list[object]] = []
                running = life.recorder.invoke(life.process, "txn", micros)
                write = []
                for where in life.rng.sample(partitions_of(APPENDS), life.rng.randrange(1, 4)):
                    number += 1
                    write.append((where, f"{life.process}.{number}"))
                committed = await producer.transact(running, micros, write)
                life.recorder.end(running, "ok" if committed else "fail", micros)
                await life.pause()
        finally:
            await producer.close()

    async def leave(self, life: Life) -> None:
        """Abandoned transactions, each under its own id. Their time-outs must end them."""
        number = 0
        while not life.stopping():
            number += 1
            producer = OldProducer(life, f"{life.process}.{number}")
            try:
                await producer.start()
                micros: list[list[object]] = []
                running = life.recorder.invoke(life.process, "txn", micros)
                with contextlib.suppress(_Unanswered):
                    where = life.rng.choice(partitions_of(APPENDS))
                    micros.append(["send", key_of(*where), [None, f"{life.process}.{number}"]])
                    await producer.add(where)
                    await producer.produce(where, f"{life.process}.{number}")
                life.recorder.end(running, "fail", micros)
            finally:
                await producer.close()
            await asyncio.sleep(life.rng.uniform(0.5, 3.0))

    async def finish(self, life: Life) -> None: ...

    def judge(self) -> list[str]:
        return []

"""The admin client's calls about producers and their transactions: producer state, hanging transactions, aborts.

Kafka's calls report little about a partition's producers. Hapax's brokers report more, and for many partitions in one
call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from hapax.client.cluster import COORDINATORS
from hapax.client.connected import Connected
from hapax.client.errors import FatalError, NotHapaxError, RetriableError, from_code
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.wire import messages

_PARTITIONS: Final = "/hapax.v1.Partitions/"
_TRANSACTIONS: Final = "/hapax.v1.Transactions/"
_LOOK_AGAIN: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_MARKER_LOOKS: Final = 40
_MARKER_PAUSE_S: Final = 0.05
OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


ABORT_BREAKS_PROMISE: Final = (
    "the transaction was under two-phase commit: if its producer had prepared it, the system that decides it may have "
    "committed its own part")
COMMIT_BREAKS_PROMISE: Final = (
    "the transaction was under two-phase commit: if its producer had not prepared it, only a part of its records is "
    "committed, and the system that decides it may have aborted its own part")


class PartitionProducer(NamedTuple):
    """The state that a partition's leader keeps for a producer."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """-1: no open transaction."""
    records: int
    """Over all epochs and sequence wraps, without records of aborted transactions."""
    transaction_records: int
    """In the open transaction."""
    transactional_id: str
    """Of the open transaction, if the partition knows it."""


class TransactionDetail(NamedTuple):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    opened_ms: int
    """-1: no transaction is open."""
    partitions: tuple[TopicPartition, ...]
    """Of the open transaction, at most a hundred partitions."""
    partition_count: int
    instance: str
    """Identifies the current holder of the id."""
    holder: str
    """Client id and address of the holder. Empty: the id has no holder."""
    last_outcome: str | None
    """`committed` or `aborted`; None: no transaction has ended yet."""
    decided_ms: int
    tokens: tuple[dict[str, Any], ...]
    """The newest commit token of each scope."""
    fencing: dict[str, Any] | None
    """The last fencing of a producer of this id."""
    serial: int
    """Number of the open transaction, or of the last one; 0: there was none."""
    two_phase: bool = False
    """Whether the open transaction is under two-phase commit. It may be prepared: then another system decides it."""


class Hanging(NamedTuple):
    """A transaction open on a partition that no coordinator will end, or that has been open for too long."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int
    transactional_id: str
    """Empty: unknown."""
    why: str


class ProducerAdmin(Connected):
    """The part of `Admin` that inspects producers and transactions (Hapax only)."""

    async def partition_producers(
        self, partitions: Collection[TopicPartition] | None = None, producer_ids: Collection[int] = ()
    ) -> list[PartitionProducer]:
        """Of the given partitions (None: all partitions of all topics) and producers (empty: all). Raises HapaxError.
        With None, partitions without a leader are left out."""
        from hapax.rpc.gen.hapax.v1 import partitions_pb2 as pb

        fresh = False

        async def attempt() -> list[PartitionProducer]:
            nonlocal fresh
            places, names = await self._places(partitions, fresh=fresh)
            fresh = True
            addresses = {node: await self._cluster.rpc_address(node) for node in places}

            async def ask(address: str, wanted: list[tuple[bytes, int]]) -> list[PartitionProducer]:
                request = pb.DescribeProducersRequest(
                    partitions=[pb.PartitionOfTopicId(topic_id=t, partition=p) for t, p in wanted],
                    producer_ids=producer_ids)
                payload = await self._cluster.channel(address).call(
                    _PARTITIONS + "DescribeProducers", request.SerializeToString(),
                    self._options["request.timeout.ms"] / 1000)
                found = []
                for each in pb.DescribeProducersResponse.FromString(payload).partitions:
                    topic = names[each.partition.topic_id]
                    place = TopicPartition(topic, PartitionIndex(each.partition.partition))
                    if each.error:
                        self._cluster.refresh_soon()
                        if partitions is None:
                            continue
                        raise from_code(each.error, f"producers of {topic}-{place.partition}", each.reason)
                    found += [_producer(place, state) for state in each.producers]
                return found

            asked = []
            for node, address in addresses.items():
                if address is None:
                    self._cluster.refresh_soon()
                    raise RetriableError(f"node {node} is not alive", code=ErrorCode.LEADER_NOT_AVAILABLE)
                asked.append((address, places[node]))
            answers = await asyncio.gather(*(ask(*each) for each in asked))
            return sorted(each for answer in answers for each in answer)

        return await self._cluster.within(self._timeout, "describing producers", attempt)

    async def _places(
        self, partitions: Collection[TopicPartition] | None, *, fresh: bool
    ) -> tuple[dict[int, list[tuple[bytes, int]]], dict[bytes, str]]:
        """The partitions grouped by leader as (topic id, partition), and the names of the topic ids. Raises
        HapaxError."""
        topics = await (
            self._cluster.all_topics() if partitions is None
            else self._cluster.topics_of(partitions, fresh=fresh))
        places: dict[int, list[tuple[bytes, int]]] = {}
        names: dict[bytes, str] = {}
        wanted = partitions
        if wanted is None:
            wanted = [
                TopicPartition(topic.name, PartitionIndex(index)) for topic in topics.values()
                for index in topic.partitions if not topic.name.startswith("__")]
        for name, index in wanted:
            topic = topics.get(name)
            if topic is None or index not in topic.partitions:
                raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{index}")
            leader = topic.partitions[index].node_id
            topic_id = UUID(str(topic.topic_id)).bytes
            names[topic_id] = name
            if leader >= 0:
                places.setdefault(leader, []).append((topic_id, index))
            elif partitions is not None:
                raise from_code(ErrorCode.LEADER_NOT_AVAILABLE, f"{name}-{index}")
        return places, names

    async def describe_transactional_id(self, transactional_id: str) -> TransactionDetail:
        """The state of a transactional id at its coordinator. Raises FatalError with TRANSACTIONAL_ID_NOT_FOUND."""
        from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb

        request = pb.DescribeTransactionalIdRequest(transactional_id=transactional_id)
        t = await self._of_transaction(
            transactional_id, "DescribeTransactionalId", request, pb.DescribeTransactionalIdResponse, "describing")
        return TransactionDetail(
            transactional_id, t.state, t.producer_id, t.producer_epoch, t.timeout_ms, t.opened_ms,
            tuple(TopicPartition(p.topic, PartitionIndex(p.partition)) for p in t.partitions), t.partition_count,
            t.instance, f"{t.holder_client_id} {t.holder_peer}".strip(),
            ("committed" if t.committed else "aborted") if t.decided else None, t.decided_ms,
            tuple(
                {
                    "scope": k.scope, "value": k.value, "records": k.record_count, "committed_ms": k.committed_at_ms,
                    "owner": k.owner, "number": k.number,
                }
                for k in t.tokens),
            {
                "cause": t.fencing.cause, "at_ms": t.fencing.at_ms,
                "by": f"{t.fencing.client_id} {t.fencing.peer}".strip(),
                "fenced": f"{t.fencing.fenced_client_id} {t.fencing.fenced_peer}".strip(),
            } if t.HasField("fencing") else None,
            t.serial, t.two_phase,
        )

    async def fence_and_abort(
        self, transactional_id: str, *, by: str, where: str = "", serial: int = 0
    ) -> TransactionDetail:
        """Aborts the open transaction of an id and fences its producer, which is told who did it (`by`: a name, a
        reason). Returns the state before the abort. Where the markers take long, they may still be on their way. Raises
        FatalError with INVALID_TXN_STATE where no transaction is open.

        `serial` names the transaction to abort, so that the call may be repeated when its outcome is unknown. If that
        transaction is already aborted, nothing changes. Another transaction of the same id is never aborted
        (INVALID_TXN_STATE). 0: whichever transaction is open."""
        from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb

        before = await self.describe_transactional_id(transactional_id)
        if serial and before.serial != serial:
            raise FatalError(
                f"transaction {serial} of {transactional_id!r} is not open: transaction {before.serial} is "
                f"{before.state}", code=ErrorCode.INVALID_TXN_STATE)
        if serial and before.state in ("PrepareAbort", "CompleteAbort"):
            return before
        if before.state != "Ongoing":
            raise FatalError(
                f"transaction {transactional_id!r} is {before.state}: there is nothing to abort",
                code=ErrorCode.INVALID_TXN_STATE)
        request = pb.FenceProducerRequest(
            transactional_id=transactional_id, instance=before.instance, client_id=by, host=where,
            serial=before.serial)
        await self._of_transaction(
            transactional_id, "FenceProducer", request, pb.FenceProducerResponse, "aborting")
        await self._marked(transactional_id)
        return before

    async def commit_prepared(
        self, transactional_id: str, *, serial: int, by: str, where: str = ""
    ) -> TransactionDetail:
        """Commits the open transaction with this serial, which is under two-phase commit, and fences its producer. Only
        the system that decides knows that it is prepared: a transaction that was not would be committed in part. May be
        repeated. Returns the state before. Raises FatalError with INVALID_TXN_STATE where that transaction is not open,
        was aborted, or is not under two-phase commit."""
        from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb

        before = await self.describe_transactional_id(transactional_id)
        request = pb.CommitPreparedRequest(
            transactional_id=transactional_id, serial=serial, client_id=by, host=where)
        await self._of_transaction(
            transactional_id, "CommitPrepared", request, pb.CommitPreparedResponse, "committing")
        await self._marked(transactional_id)
        return before

    async def _marked(self, transactional_id: str) -> None:
        """Returns when the markers are stored, or after a while."""
        for _ in range(_MARKER_LOOKS):
            if not (await self.describe_transactional_id(transactional_id)).state.startswith("Prepare"):
                break
            await asyncio.sleep(_MARKER_PAUSE_S)

    async def _of_transaction(
        self, transactional_id: str, method: str, request: Any, response: Any, doing: str
    ) -> Any:
        what = f"{doing} transaction {transactional_id!r}"

        async def attempt() -> Any:
            node = await self._cluster.coordinator("transaction", transactional_id)
            address = await self._cluster.rpc_address(node)
            if address is None:
                self._cluster.forget_coordinator("transaction", transactional_id)
                raise from_code(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, what, f"coordinator {node} is not registered")
            try:
                answer = response.FromString(await self._cluster.channel(address).call(
                    _TRANSACTIONS + method, request.SerializeToString(), self._options["request.timeout.ms"] / 1000))
            except BaseException:
                self._cluster.forget_coordinator("transaction", transactional_id)
                raise
            if answer.error:
                if answer.error in _LOOK_AGAIN:
                    self._cluster.forget_coordinator("transaction", transactional_id)
                raise from_code(answer.error, what, answer.reason)
            return answer

        return await self._cluster.within(self._timeout, what, attempt)

    async def find_hanging(self, now_ms: int, older_than_ms: int) -> list[Hanging]:
        """Transactions on partitions that no coordinator has open, or that have written nothing there for longer than
        `older_than_ms`. The cluster repairs the former by itself after a while. Raises HapaxError."""
        opened = [
            each for each in await self.partition_producers() if each.transaction_start_offset >= 0]
        if not opened:
            return []
        states, pids = await self._coordinators_know()
        found = []
        for each in opened:
            known = states.get(each.transactional_id) in OPEN_STATES or each.producer_id in pids
            silent_ms = now_ms - each.last_timestamp_ms
            if not known:
                why = "no coordinator has it open"
            elif silent_ms > older_than_ms:
                why = f"nothing was written for {silent_ms // 1000} s"
                if each.transactional_id and (await self.describe_transactional_id(each.transactional_id)).two_phase:
                    why += ", under two-phase commit"
            else:
                continue
            found.append(Hanging(
                each.partition, each.producer_id, each.producer_epoch, each.transaction_start_offset,
                each.last_timestamp_ms, each.transactional_id, why))
        return found

    async def _coordinators_know(self) -> tuple[Mapping[str, str], Collection[int]]:
        """Each id's state, and the producers of the open transactions. It is asked after the partitions, so a
        transaction that began meanwhile is known. One that ended meanwhile is at worst reported once although it is
        over."""
        message = messages.ListTransactionsRequest(state_filters=[], producer_id_filters=[], duration_filter=-1)
        listed = await self._listed(message)
        return (
            {t.transactional_id: t.transaction_state for t in listed},
            {t.producer_id for t in listed if t.transaction_state in OPEN_STATES})

    async def _listed(self, message: Any) -> list[Any]:
        """The answers of all coordinators to a ListTransactions. Raises HapaxError rather than return only some of
        them."""

        async def attempt() -> list[Any]:
            nodes = await self._listing()
            answers = await asyncio.gather(*(self._asked(node, message) for node in nodes))
            return [t for answer in answers for t in answer.transaction_states]

        return await self._cluster.within(self._timeout, "listing transactions", attempt)

    async def _listing(self) -> list[int]:
        """The coordinators to ask. Metadata names a coordinator for a while after it has gone, so that clients that
        look for it ask there in vain. In a Hapax cluster, another call says which ones are alive."""
        try:
            addresses, _ = await self._cluster.rpc_addresses(fresh=True)  # a new node may have shards already
        except NotHapaxError:
            return sorted(self._cluster.nodes)
        alive = [node for node in addresses if node in COORDINATORS]
        if not alive:
            raise from_code(ErrorCode.COORDINATOR_NOT_AVAILABLE, "listing transactions")
        return sorted(alive)

    async def _asked(self, node: int, message: Any) -> Any:
        answer = await (await self._cluster.peer(node)).call(message)
        if answer.error_code:
            raise from_code(answer.error_code, f"listing the transactions of node {node}")
        return answer


def _producer(partition: TopicPartition, state: Any) -> PartitionProducer:
    return PartitionProducer(
        partition, state.producer_id, state.producer_epoch, state.last_sequence, state.last_offset,
        state.last_timestamp, state.coordinator_epoch, state.txn_first_offset, state.record_count,
        state.txn_record_count, state.transactional_id)


def open_on(producers: Iterable[PartitionProducer], transactional_id: str, producer_id: int) -> list[PartitionProducer]:
    """The partitions on which a transaction is open."""
    return [
        each for each in producers
        if each.transaction_start_offset >= 0
        and (each.transactional_id == transactional_id or each.producer_id == producer_id)]

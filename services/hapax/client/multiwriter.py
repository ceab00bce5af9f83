"""Multi-writer transactions: several processes write one transaction, which becomes visible at once (Hapax only).

Each writer joins the transaction of a commit token and gets its own producer identity. The process that decides names
the winners, and the records of all others are aborted by the same decision. For engines such as Spark: each task
attempt is a writer, and the driver decides.

    writer:   async with MultiWriter(settings, "job-7") as transactions:
                  joined = await transactions.join(CommitToken("query", 12), "task-3-attempt-1")
                  async with transactions.writer(joined) as writer:
                      await writer.send("out", b"...")
                      winner = await writer.finish()          # send it to the decider
    decider:  await transactions.commit(CommitToken("query", 12, records=1), [winner])
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import NamedTuple, NoReturn, Self, TypeVar

from google.protobuf.message import Message

from hapax.client.cluster import ClusterClient
from hapax.client.connected import Connected
from hapax.client.coordination import ConsumerGroup, Offsets
from hapax.client.environment import ClientPorts
from hapax.client.errors import AbortableError, FencedError, WrongState, from_code
from hapax.client.producer import Committed, Producer
from hapax.client.settings import Settings, producer_options
from hapax.client.tokens import CommitToken, TokenOutcome, Work, conflict_in, transactions_call
from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import ErrorKind, coordinator_error_kind
from hapax.core.producer.partition_queue import Identity, advance
from hapax.core.types import ProducerEpoch, ProducerId
from hapax.rpc.gen.hapax.v1 import lease_pb2
from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb
from hapax.runtime.ports import RpcError

Answer = TypeVar(
    "Answer",
    pb.JoinTransactionResponse,
    pb.RenewTransactionResponse,
    pb.EndTransactionResponse,
    pb.GetCommitTokenResponse,
)


class Joined(NamedTuple):
    """A place in an open transaction. With `already_committed` there is nothing to write: the token was committed
    before, with `committed_records`."""

    transactional_id: str
    token: CommitToken
    producer_id: int
    epoch: int
    serial: int
    remaining_ms: int
    already_committed: bool
    committed_records: int
    first: tuple[str, int] | None = None
    """The partition that the writer will write first (topic, partition)."""
    write_pass: bytes = b""
    """Spares the first partition's leader a question to the coordinator."""
    noted: bool = True
    """False after a tentative join of a transaction of other runs (`Work.run`): join again before the first write."""


class Winner(NamedTuple):
    """What a writer has written, for the commit. Plain values, so that it can be sent to another process.
    `last_sequences`: (topic, partition, sequence of the last record)."""

    producer_id: int
    epoch: int
    last_sequences: tuple[tuple[str, int, int], ...]
    records: int


class Writer(Producer):
    """The producer of one place in a multi-writer transaction: `send`, `flush`, then `finish`."""

    def __init__(
        self, settings: Settings, joined: Joined, *, ports: ClientPorts | None = None,
        cluster: ClusterClient | None = None,
    ) -> None:
        if joined.already_committed:
            raise WrongState(f"token {joined.token.value} of {joined.token.scope!r} is committed: nothing to write")
        super().__init__({**settings, "transactional.id": joined.transactional_id}, ports=ports, cluster=cluster)
        if joined.first is not None and joined.write_pass:
            self._engine.sender.write_passes[joined.first] = joined.write_pass
        self._machine.take_up(Identity(ProducerId(joined.producer_id), ProducerEpoch(joined.epoch)))

    async def start(self) -> Self:
        await super().start()
        self.begin()
        return self

    async def finish(self) -> Winner:
        """Sends all waiting records and returns what was written. Raises AbortableError if a record failed: this writer
        cannot win, but another one may take its place."""
        await self.flush()
        if self._machine.trouble is not None:
            raise self._engine.error()
        identity = self._machine.identity
        following = sorted(self._machine.next_sequences().items())
        return Winner(
            identity.producer_id,
            identity.epoch,
            tuple((p.topic, int(p.partition), int(advance(sequence, -1))) for p, sequence in following),
            sum(sequence for _, sequence in following),
        )

    async def close(self) -> None:
        """Disconnects. The transaction stays open until it is decided or times out."""
        if not self._engine.closed and self._started:
            await self._engine.stop()

    async def commit(self, token: CommitToken | None = None) -> NoReturn:
        raise WrongState("a writer does not decide: give finish()'s Winner to MultiWriter.commit")

    async def abort(self) -> NoReturn:
        raise WrongState("a writer does not decide: leave its Winner out of the commit, or use MultiWriter.abort")

    async def send_offsets(self, offsets: Offsets, group: str | ConsumerGroup) -> NoReturn:
        raise WrongState("offsets are not part of multi-writer transactions")


class MultiWriter(Connected):
    """The transactions of one transactional id. Settings as for a producer. Calls raise HapaxError."""

    def __init__(self, settings: Settings, transactional_id: str, *, ports: ClientPorts | None = None) -> None:
        self._settings = {k: v for k, v in settings.items() if k != "transactional.id"}
        options = producer_options(self._settings)
        super().__init__(options, options["max.block.ms"], ports)
        self._id = transactional_id

    async def join(
        self, token: CommitToken, member: str, *, timeout_ms: int | None = None, first: tuple[str, int] | None = None,
        tentative: bool = False,
    ) -> Joined:
        """Opens or joins the transaction of a token. `member` is unique for each attempt: joining again under it gives
        the same place. `timeout_ms`: the transaction's time-out, if this call opens it. `first`: the partition (topic,
        partition) that the writer will write first, if it is known: it is registered at once, which saves the first
        batch's verification. `tentative`: there is nothing to write yet. The run of the token's work (`Work.run`) then
        does not become the newest of an open transaction, and `noted` says whether it was before."""
        request = pb.JoinTransactionRequest(
            transactional_id=self._id,
            token=token.encode(),
            member_key=member,
            timeout_ms=timeout_ms or self._options["transaction.timeout.ms"],
            allow_unknown_history=token.allow_unknown_history,
            partition=None if first is None else lease_pb2.Partition(topic=first[0], partition=first[1]),
            tentative=tentative,
        )
        answer = await self._call("JoinTransaction", request, pb.JoinTransactionResponse)
        return Joined(
            self._id,
            token,
            answer.producer_id,
            answer.producer_epoch,
            answer.serial,
            answer.remaining_ms,
            answer.already_committed,
            answer.committed_records,
            first,
            answer.write_pass,
            answer.noted or not tentative,
        )

    def under(self, transactional_id: str) -> MultiWriter:
        """The same for another id, over the connections of this object, which must outlive the result. The result is
        neither started nor closed."""
        other = copy(self)
        other._id = transactional_id
        return other

    def writer(self, joined: Joined, *, shared: bool = False) -> Writer:
        """`shared`: uses the connections of this object, which must outlive the writer. Such a writer creates no
        topics."""
        return Writer(self._settings, joined, ports=self._ports, cluster=self._cluster if shared else None)

    def producer(self, settings: Settings) -> Producer:
        """A producer without a transaction, over the connections of this object, which must outlive it. `settings` are
        defaults for those of this object. It creates no topics."""
        return Producer({**settings, **self._settings}, ports=self._ports, cluster=self._cluster)

    async def existing_topics(self, names: Iterable[str]) -> set[str]:
        """As `Producer.existing_topics`. A shared writer then knows them."""
        self._check_usable()
        wanted = list(names)
        return set(await self._cluster.within(self._timeout, "finding topics", lambda: self._cluster.existing(wanted)))

    async def partitions_of(self, topic: str) -> int:
        """As `Producer.partitions_of`."""
        self._check_usable()
        return len((await self._cluster.topic(topic, self._timeout)).partitions)

    def available_partitions(self, topic: str) -> list[int]:
        """As `Producer.available_partitions`."""
        return self._cluster.topics[topic].available()

    async def renew(self, joined: Joined, timeout_ms: int) -> int:
        """Extends the transaction's deadline. Returns the time left in ms."""
        request = pb.RenewTransactionRequest(
            transactional_id=self._id, token=joined.token.encode(), serial=joined.serial, timeout_ms=timeout_ms
        )
        answer = await self._call("RenewTransaction", request, pb.RenewTransactionResponse)
        return answer.remaining_ms

    async def commit(self, token: CommitToken, winners: Iterable[Winner], *, serial: int = 0) -> Committed:
        """Makes the winners' records visible and aborts all others, in one decision. Fails if a partition does not hold
        all records of a winner. A repeated commit is answered `already`."""
        request = pb.EndTransactionRequest(
            transactional_id=self._id,
            commit=True,
            token=token.encode(),
            winners=[_encode_winner(winner) for winner in winners],
            record_count=token.records,
            allow_other_count=token.allow_other_count,
            allow_unknown_history=token.allow_unknown_history,
            single_use=token.single_use,
            serial=serial,
        )
        answer = await self._call("EndTransaction", request, pb.EndTransactionResponse)
        return Committed(answer.outcome == TokenOutcome.ALREADY_COMMITTED.value, answer.committed_records)

    async def abort(self, token: CommitToken, *, serial: int = 0) -> None:
        """Aborts the open transaction of a token. It is no error if there is none."""
        request = pb.EndTransactionRequest(
            transactional_id=self._id, commit=False, token=token.encode(), serial=serial
        )
        await self._call("EndTransaction", request, pb.EndTransactionResponse)

    async def committed_token(self, scope: str) -> CommitToken | None:
        """The token that was last committed in a scope. If it has an owner, its value is as the owner counts."""
        request = pb.GetCommitTokenRequest(transactional_id=self._id, scope=scope)
        answer = await self._call("GetCommitToken", request, pb.GetCommitTokenResponse)
        if not answer.found:
            return None
        if not answer.owner:
            return CommitToken(scope, answer.value, answer.record_count)
        return CommitToken(scope, answer.number, answer.record_count, work=Work(answer.owner))

    async def _call(self, method: str, request: Message, response: type[Answer]) -> Answer:
        self._check_usable()
        encoded = request.SerializeToString()

        async def attempt() -> Answer:
            try:
                answer = response.FromString(await transactions_call(self._cluster, self._id, method, encoded))
            except (RpcError, ConnectionError):
                self._cluster.forget_coordinator("transaction", self._id)
                raise
            self._check(answer, method)
            return answer

        return await self._cluster.within(self._timeout, method, attempt)

    def _check(self, answer: Answer, method: str) -> None:
        code, reason = answer.error, answer.reason
        if code == 0:
            return
        what = f"{method} of {self._id!r}"
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._cluster.forget_coordinator("transaction", self._id)
        if isinstance(answer, pb.JoinTransactionResponse | pb.EndTransactionResponse):
            conflict = conflict_in(answer, what)
            if conflict is not None:
                raise conflict
        if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
            raise FencedError(f"{what}: {reason}", code=code)
        if coordinator_error_kind(code) is ErrorKind.ABORT:
            raise AbortableError(f"{what}: {reason}", code=code)
        raise from_code(code, what, reason)


def _encode_winner(winner: Winner) -> pb.Winner:
    return pb.Winner(
        producer_id=winner.producer_id,
        producer_epoch=winner.epoch,
        partitions=[
            pb.WinnerPartition(
                partition=lease_pb2.Partition(topic=topic, partition=partition), last_sequence=last_sequence
            )
            for topic, partition, last_sequence in winner.last_sequences
        ],
    )

"""Commit tokens: a commit that a replaying engine may repeat (Hapax only).

A token is (scope, value). The scope names the query, file or job, and the value rises with every commit. The
coordinator keeps the last value and the committed outcome in one record. A commit whose value is not newer is answered
'already committed', and its records are aborted.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from hapax.client.backoff import Backoff
from hapax.client.cluster import ClusterClient
from hapax.client.errors import AuthenticationError, FatalError, HapaxError, RetriableError, from_code, from_status
from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import ErrorKind, coordinator_error_kind
from hapax.core.producer.machine import ClientProducer
from hapax.core.producer.partition_queue import Identity
from hapax.core.producer.states import Trouble
from hapax.core.types import ProducerEpoch, ProducerId
from hapax.runtime.ports import RpcError
from hapax.wire import messages
from hapax.wire.peer import PeerError, PeerUnsupported

if TYPE_CHECKING:
    from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb

SERVICE = "/hapax.v1.Transactions/"
FRAMED: Final = frozenset({"JoinTransaction", "EndTransaction"})
"""Calls that a micro-batch waits for: Kafka frames, which take less time than gRPC."""
_LARGEST_FRAMED: Final = 32 << 10
"""Bytes. The winners of a large commit may be longer than a frame of this call may be."""


class Work(NamedTuple):
    """The description of the work behind a token, from an engine that replays its newest commit and no other. The
    coordinator confirms the newest commit only to its owner, and only for the same work. It refuses every other commit
    that is not newer with TokenConflictError.

    `owner` names the query, which owns the scope from its first commit on. `run` names the driver and changes each time
    the owner starts: only the newest run can abort a transaction that several runs joined. `follows`: the owner's value
    that was committed last, and `followed`: its fingerprints. `fingerprints`: (kind, digest) pairs, equal for equal
    work. The first kind that was also stored with the commit is compared. `continue_from`: (owner, value as the scope
    counts) of the newest commit, to continue after another owner's commit or after a newer one than the owner knows.
    The owner's value then stands for the value after it. What an older value of the same owner follows has to be among
    the owner's last 100 commits, by `followed`. `allow_other_work`: a replay whose fingerprint differs is
    confirmed, and not written."""

    owner: str
    run: str = ""
    follows: int | None = None
    fingerprints: tuple[tuple[str, bytes], ...] = ()
    continue_from: tuple[str, int] | None = None
    allow_other_work: bool = False
    followed: tuple[tuple[str, bytes], ...] = ()

    def encode(self) -> pb.Work:
        from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb

        return pb.Work(
            owner=self.owner, run=self.run, follows=self.follows, allow_other_work=self.allow_other_work,
            fingerprints=[pb.Fingerprint(kind=kind, digest=digest) for kind, digest in self.fingerprints],
            followed=[pb.Fingerprint(kind=kind, digest=digest) for kind, digest in self.followed],
            continue_from=None
            if self.continue_from is None
            else pb.CommitName(owner=self.continue_from[0], value=self.continue_from[1]),
        )


class CommitToken(NamedTuple):
    """`records`: the number of records in the commit, which is stored with it. A replay with another number fails
    unless `allow_other_count`. A value above 0 in a scope without history fails unless `allow_unknown_history`.
    `single_use`: the scope has no other commit, so it takes no memory once this commit cannot be repeated. With `work`
    the value is as its owner counts. Without `work`, every value that is not newer counts as committed."""

    scope: str
    value: int
    records: int = 0
    allow_other_count: bool = False
    allow_unknown_history: bool = False
    single_use: bool = False
    work: Work | None = None

    def encode(self) -> pb.CommitToken:
        from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb

        return pb.CommitToken(
            scope=self.scope, value=self.value, work=None if self.work is None else self.work.encode()
        )


class Conflict(Enum):
    """Why a token is refused. As numbered in proto/hapax/v1/transactions.proto."""

    OLDER = 1
    OTHER_OWNER = 2
    OTHER_WORK = 3
    OTHER_COUNT = 4
    UNKNOWN_HISTORY = 5
    OTHER_RUN = 6
    OTHER_PAST = 7


class LastToken(NamedTuple):
    """The newest commit token of a scope."""

    scope: str
    value: int
    records: int
    committed_ms: int
    """Wall clock."""
    owner: str = ""
    """Empty: it has no owner."""
    number: int = 0
    """The value as its owner counts."""
    fingerprints: tuple[str, ...] = ()
    """The kinds of its fingerprints."""

    @staticmethod
    def decode(token: pb.LastCommitToken) -> LastToken:
        return LastToken(
            token.scope, token.value, token.record_count, token.committed_at_ms, token.owner, token.number,
            tuple(token.fingerprints),
        )


class TokenConflictError(FatalError):
    """A commit token was refused because of a commit in its scope, and nothing is decided: the transaction is still
    open, and no attempt with this token would help. `newest`: the commit with which it was compared. None: the scope
    has no commit."""

    def __init__(
        self, message: str, *, code: int, conflict: Conflict, newest: LastToken | None, advice: str | None = None
    ) -> None:
        super().__init__(message, code=code, advice=advice)
        self.conflict = conflict
        self.newest = newest


def conflict_in(
    answer: pb.JoinTransactionResponse | pb.EndTransactionResponse, what: str, advice: str | None = None
) -> TokenConflictError | None:
    """The conflict by which a coordinator refuses a token. None: it answers something else."""
    if not answer.HasField("conflict"):
        return None
    told = answer.conflict
    newest = LastToken.decode(told.newest) if told.HasField("newest") else None
    return TokenConflictError(
        f"{what}: {answer.reason}", code=answer.error, conflict=Conflict(told.cause), newest=newest, advice=advice)


class TokenOutcome(Enum):
    """The outcomes, with the numbers of proto/hapax/v1/transactions.proto."""

    COMMITTED = 1
    ABORTED = 2
    ALREADY_COMMITTED = 3


class Told(NamedTuple):
    outcome: TokenOutcome
    identity: Identity | None
    records: int


class _WrongNode(RetriableError):
    """Another process has the coordinator's address now."""


async def transactions_call(cluster: ClusterClient, transactional_id: str, method: str, request: bytes) -> bytes:
    """One call to the coordinator of a transactional id. Raises RpcError, HapaxError, PeerError, and RetriableError if
    there is no coordinator at the moment."""
    node = await cluster.coordinator("transaction", transactional_id)
    if method in FRAMED and len(request) <= _LARGEST_FRAMED and cluster.cluster_id is not None:
        answer = await _framed(cluster, node, transactional_id, method, request)
        if answer is not None:
            return answer
    address = await cluster.rpc_address(node)
    if address is None:
        cluster.forget_coordinator("transaction", transactional_id)
        raise from_code(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"transactional id {transactional_id!r}",
            f"coordinator {node} is not registered")
    try:
        return await cluster.channel(address).call(
            SERVICE + method, request, cluster.options["request.timeout.ms"] / 1000)
    except RpcError as error:
        if error.status != "UNIMPLEMENTED":
            raise
        # All coordinators know these calls. A broker that has got the address of a coordinator's former pod does not.
        cluster.forget_coordinator("transaction", transactional_id)
        raise _WrongNode(
            f"transactional id {transactional_id!r}: the process at {address} is no coordinator: {error}",
            code=ErrorCode.COORDINATOR_NOT_AVAILABLE) from error


async def _framed(
    cluster: ClusterClient, node: int, transactional_id: str, method: str, request: bytes
) -> bytes | None:
    """The same call as a Kafka frame. None: the coordinator does not know such frames, or the call would wait behind
    another one, since a connection's answers come in order."""
    peer = await cluster.peer(node, "coordinator")
    if peer.in_flight:
        return None
    try:
        answer = await peer.call(
            messages.TransactionCallRequest(cluster_id=cluster.cluster_id, method=method, payload=request))
    except PeerUnsupported:
        return None
    if answer.error_code:
        cluster.forget_coordinator("transaction", transactional_id)
        if answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            peer.close("its address belongs to another cluster now")
            raise PeerError(f"{peer.address}: {answer.error_message}")
        raise from_code(answer.error_code, f"transactional id {transactional_id!r}", answer.error_message)
    return answer.payload  # type: ignore[no-any-return]


async def end_with_token(
    cluster: ClusterClient, transactional_id: str, machine: ClientProducer, token: CommitToken
) -> Told | TokenConflictError | None:
    """Commits with a token. TokenConflictError (returned) or None: refused for good (the machine knows). Repeats
    without a limit, because the call is idempotent; but only for request.timeout.ms while no process that is asked
    knows the call."""
    from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb  # imported late, because only tokens need it

    identity = machine.identity
    request = pb.EndTransactionRequest(
        transactional_id=transactional_id,
        commit=True,
        token=token.encode(),
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        record_count=token.records,
        allow_other_count=token.allow_other_count,
        allow_unknown_history=token.allow_unknown_history,
        single_use=token.single_use,
    ).SerializeToString()
    backoff = Backoff(cluster.options, cluster.ports)
    known_ms = cluster.now()
    while True:
        try:
            answer = pb.EndTransactionResponse.FromString(
                await transactions_call(cluster, transactional_id, "EndTransaction", request)
            )
        except (RpcError, ConnectionError, RetriableError) as error:
            if not isinstance(error, _WrongNode):
                known_ms = cluster.now()
            told = from_status(error, "EndTransaction") if isinstance(error, RpcError) else error
            refused = not isinstance(told, RetriableError | ConnectionError)
            if refused or cluster.now() - known_ms > cluster.options["request.timeout.ms"]:
                code = told.code if isinstance(told, AuthenticationError) else ErrorCode.UNKNOWN_SERVER_ERROR
                machine.fail(Trouble(ErrorKind.FATAL, code, str(error)))
                return None
            cluster.forget_coordinator("transaction", transactional_id)
        except AuthenticationError as error:
            machine.fail(Trouble(ErrorKind.FATAL, error.code, error.message))
            return None
        except HapaxError as error:
            machine.fail(Trouble(ErrorKind.ABORT, error.code, str(error)))
            return None
        else:
            if answer.error == 0:
                following = Identity(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))
                return Told(TokenOutcome(answer.outcome), following, answer.committed_records)
            if coordinator_error_kind(answer.error) is ErrorKind.FATAL:
                # Nothing is decided: the token was refused, for example for another number of records or an unknown
                # history.
                machine.fail(Trouble(ErrorKind.ABORT, answer.error, answer.reason))
                return conflict_in(answer, f"commit of {transactional_id!r}", "Abort the transaction")
            if machine.coordinator_refused(answer.error, answer.reason) is not ErrorKind.RETRY:
                return None
            cluster.forget_coordinator("transaction", transactional_id)
        await asyncio.sleep(backoff.seconds())

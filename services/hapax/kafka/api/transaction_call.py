"""TransactionCall (10000, Hapax only): JoinTransaction and EndTransaction of `hapax.v1.Transactions`, as a Kafka frame.

A micro-batch waits for both calls, and by gRPC each takes about 1.5 ms longer, most of it between the library's thread
and the client's event loop. The payloads are the messages of `proto/hapax/v1/transactions.proto`, and the same code
answers them. A refusal is part of the payload; an error here says that the call reached no coordinator of this cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from hapax.core.access.resources import WRITE_TOPIC, WRITE_TRANSACTIONAL_ID, ResourceType
from hapax.core.errors import ErrorCode
from hapax.kafka.needs import Asking, Need, Outcome, Refused
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import RpcError, RpcHandler, RpcPeer
from hapax.wire.messages import TransactionCallResponse

ROW: Final = ApiRow(
    key=10000, name="TransactionCall", versions=(0, 0), flexible_from=0, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=Need(
        "Write TransactionalId; to join with a partition, Write Topic",
        lambda asking, request: _check(asking, request)))

CALLER: Final = "client"


def register(table: ApiTable, view: ClusterView, methods: Mapping[str, RpcHandler]) -> None:
    """`methods`: name without its service -> handler."""

    async def handle(ctx: RequestContext, request: Any) -> Any:
        cluster = view.cluster
        if cluster is None or request.cluster_id != cluster.cluster_id:
            return _error(ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is not cluster {request.cluster_id!r}")
        handler = methods.get(request.method)
        if handler is None:
            return _error(ErrorCode.INVALID_REQUEST, f"method {request.method!r} is not known here")
        try:
            payload = await handler(bytes(request.payload), RpcPeer(
                ctx.connection.peer, CALLER, principal=ctx.principal))
        except DecodeError:
            return _error(ErrorCode.INVALID_REQUEST, f"the payload is no request of {request.method}")
        except RpcError as error:
            return _error(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        return TransactionCallResponse(throttle_time_ms=0, error_code=0, error_message=None, payload=payload)

    table.on(ROW, handle)


_NAMING: Final[Mapping[str, Any]] = {
    "JoinTransaction": pb.JoinTransactionRequest, "EndTransaction": pb.EndTransactionRequest}
"""The methods' requests, which name the transactional id."""


def _check(asking: Asking, request: Any) -> Outcome:
    kind = _NAMING.get(request.method)
    if kind is None:
        return None  # the handler knows no such method
    try:
        payload = kind.FromString(bytes(request.payload))
    except DecodeError:
        return None  # the handler says so
    if not asking.may(WRITE_TRANSACTIONAL_ID, payload.transactional_id):
        return Refused(asking.refused(request, ResourceType.TRANSACTIONAL_ID))
    if isinstance(payload, pb.JoinTransactionRequest) and payload.HasField("partition") and not asking.may(
        WRITE_TOPIC, payload.partition.topic
    ):
        return Refused(asking.refused(request, ResourceType.TOPIC))
    return None


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _error(code, None)


def _error(code: ErrorCode, reason: str | None) -> Any:
    return TransactionCallResponse(throttle_time_ms=0, error_code=int(code), error_message=reason, payload=b"")

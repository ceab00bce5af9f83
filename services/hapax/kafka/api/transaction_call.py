"""TransactionCall (10000, Hapax only): JoinTransaction and EndTransaction of `hapax.v1.Transactions`, as a Kafka frame.

A micro-batch waits for both calls, and by gRPC each takes about 1.5 ms longer, most of it between the library's thread
and the client's event loop. The payloads are the messages of `proto/hapax/v1/transactions.proto`, and the same code
answers them. A refusal is part of the payload; an error here says that the call reached no coordinator of this cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError

from hapax.core.errors import ErrorCode
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import RpcError, RpcHandler, RpcPeer
from hapax.wire.messages import TransactionCallResponse

ROW: Final = ApiRow(
    key=10000, name="TransactionCall", versions=(0, 0), flexible_from=0, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR)

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
            payload = await handler(bytes(request.payload), RpcPeer(ctx.connection.peer, CALLER))
        except DecodeError:
            return _error(ErrorCode.INVALID_REQUEST, f"the payload is no request of {request.method}")
        except RpcError as error:
            return _error(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        return TransactionCallResponse(throttle_time_ms=0, error_code=0, error_message=None, payload=payload)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _error(code, None)


def _error(code: ErrorCode, reason: str | None) -> Any:
    return TransactionCallResponse(throttle_time_ms=0, error_code=int(code), error_message=reason, payload=b"")

"""TransactionCall: the public calls of a transaction as Kafka frames, from the request's bytes to the response's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from hapax.core.errors import ErrorCode
from hapax.kafka.api import transaction_call
from hapax.kafka.registry import all_apis
from hapax.kafka.table import ApiTable
from hapax.runtime.ports import RpcError, RpcPeer
from hapax.wire.messages import TransactionCallRequest, TransactionCallResponse


async def call(method: str, payload: bytes = b"", *, asked: str = "c", cluster: str | None = "c") -> Any:
    async def answers(request: bytes, peer: RpcPeer) -> bytes:
        return request + peer.address.encode()

    async def malformed(request: bytes, peer: RpcPeer) -> bytes:
        raise DecodeError

    async def away(request: bytes, peer: RpcPeer) -> bytes:
        raise RpcError("UNAVAILABLE", "not now")

    view: Any = SimpleNamespace(cluster=None if cluster is None else SimpleNamespace(cluster_id=cluster))
    table = ApiTable(all_apis())
    transaction_call.register(table, view, {"Answers": answers, "Malformed": malformed, "Away": away})
    handler: Any = table.apis[transaction_call.ROW.key].handler
    encoded = TransactionCallRequest(cluster_id=asked, method=method, payload=payload).encode(version=0)
    context = SimpleNamespace(
        api_version=0, connection=SimpleNamespace(peer="127.0.0.1:5"), principal="User:alice")
    response = await handler(context, TransactionCallRequest.decode(encoded, version=0))
    return TransactionCallResponse.decode(response.encode(version=0), version=0)


async def test_the_handler_of_the_grpc_call_answers() -> None:
    answer = await call("Answers", b"asked by ")
    assert (answer.error_code, bytes(answer.payload)) == (0, b"asked by 127.0.0.1:5")


@pytest.mark.parametrize("cluster", ["other", None])
async def test_a_call_for_another_cluster_is_refused(cluster: str | None) -> None:
    """Addresses are given out again."""
    assert (await call("Answers", cluster=cluster)).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


@pytest.mark.parametrize(("method", "code"), [
    ("DescribeTransactionalId", ErrorCode.INVALID_REQUEST), ("Malformed", ErrorCode.INVALID_REQUEST),
    ("Away", ErrorCode.COORDINATOR_NOT_AVAILABLE),
])  # fmt: skip
async def test_a_call_that_cannot_be_answered_keeps_the_connection(method: str, code: ErrorCode) -> None:
    answer = await call(method)
    assert (answer.error_code, bytes(answer.payload)) == (code, b"")


def test_another_node_is_no_coordinator() -> None:
    assert transaction_call.refused(None, 0, ErrorCode.NOT_COORDINATOR).error_code == ErrorCode.NOT_COORDINATOR

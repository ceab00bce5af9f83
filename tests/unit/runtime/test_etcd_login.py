"""Which failed calls a new token may be tried for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from hapax.runtime.etcd_login import LoginRefused, PasswordLogin


def failed(code: grpc.StatusCode, details: str) -> Exception:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


@pytest.mark.parametrize(("error", "refused"), [
    (failed(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token"), True),
    (failed(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty"), True),
    (failed(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old"), True),
    (failed(grpc.StatusCode.UNAVAILABLE, "Socket closed"), False),  # it may have taken effect
    (failed(grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out"), False),
    (failed(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied"), False),
    (TimeoutError("etcdserver: invalid auth token"), False),
])
async def test_only_a_call_that_etcd_refused_for_its_token_is_repeated(error: Exception, refused: bool) -> None:
    assert PasswordLogin("hapax", lambda: "x").refused(error) is refused


async def test_a_login_whose_channel_is_closed_is_refused_and_its_task_not_cancelled() -> None:
    """gRPC raises CancelledError then, which a task would take for its own end."""
    async def call(_: Any) -> Any:
        raise asyncio.CancelledError

    channel: Any = SimpleNamespace(unary_unary=lambda *_, **__: call)
    with pytest.raises(LoginRefused, match="its call was cancelled"):
        await PasswordLogin("hapax", lambda: "x").metadata(channel, 5)


async def test_a_login_that_is_told_to_end_ends() -> None:
    began = asyncio.Event()

    async def call(_: Any) -> Any:
        began.set()
        await asyncio.Event().wait()

    channel: Any = SimpleNamespace(unary_unary=lambda *_, **__: call)
    asking = asyncio.ensure_future(PasswordLogin("hapax", lambda: "x").metadata(channel, 60))
    await began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

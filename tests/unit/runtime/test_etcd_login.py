"""Which failed calls a new token may be tried for."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from hapax.runtime.etcd_login import PasswordLogin


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

"""Logs in at etcd with a user's name and password, where no certificate says who the user is.

etcd answers with a token, which every call then carries. A member forgets tokens when it restarts, and those that it
was not shown for five minutes. It refuses a call with such a token before it does anything, so the call may be repeated
with a new one. A login costs etcd 50 ms of CPU (bcrypt), so calls that need a token at one time share one login.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from aetcd.rpc import rpc_pb2

from hapax.runtime import supervision
from hapax.runtime.aside import aside

AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"
_NOT_ENABLED: Final = "etcdserver: authentication is not enabled"
_FORGOTTEN: Final = (
    "etcdserver: invalid auth token", "etcdserver: user name is empty", "etcdserver: revision of auth store is old")
"""Error texts for a call whose token, or lack of one, etcd refused before it did anything."""

Metadata = tuple[tuple[str, str], ...]
"""What a gRPC call carries besides its request: names and values."""


class LoginRefused(Exception):
    """There is no token, so the call was not made."""


class Login(Protocol):
    async def metadata(self, channel: grpc.aio.Channel, timeout_s: float) -> Metadata:
        """What a call on this channel carries. Raises LoginRefused."""

    def present(self) -> Metadata:
        """The same without a login: nothing where there is no token."""

    def refused(self, error: Exception) -> bool:
        """Whether a call failed for its token alone; the next one gets a new token."""

    def watch_refused(self, reason: str) -> None:
        """A watch was cancelled for this reason."""


class NoLogin:
    """The user is who the certificate names, or the store is open."""

    async def metadata(self, channel: grpc.aio.Channel, timeout_s: float) -> Metadata:
        return ()

    def present(self) -> Metadata:
        return ()

    def refused(self, error: Exception) -> bool:
        return False

    def watch_refused(self, reason: str) -> None:
        return


class PasswordLogin:
    """`password` is asked at each login, so that a new one is used once the former one is refused."""

    def __init__(self, user: str, password: Callable[[], str]) -> None:
        self._user = user
        self._password = password
        self._metadata: Metadata | None = None
        self._one = asyncio.Lock()

    async def metadata(self, channel: grpc.aio.Channel, timeout_s: float) -> Metadata:
        try:
            async with asyncio.timeout(timeout_s), self._one:
                if self._metadata is None:
                    self._metadata = await self._logged_in(channel)
                return self._metadata
        except TimeoutError:
            raise LoginRefused(f"login of {self._user} at etcd: no answer in {timeout_s:.1f} s") from None

    def present(self) -> Metadata:
        return self._metadata or ()

    def refused(self, error: Exception) -> bool:
        if not is_refused_token(error):
            return False
        self._metadata = None
        return True

    def watch_refused(self, reason: str) -> None:
        # etcd before 3.6 calls an unknown token a lack of permission here.
        if any(text in reason for text in (*_FORGOTTEN, "etcdserver: permission denied")):
            self._metadata = None

    async def _logged_in(self, channel: grpc.aio.Channel) -> Metadata:
        try:
            password = await aside(self._password)
        except OSError as error:
            raise LoginRefused(f"the password for etcd cannot be read: {error}") from None
        call: Any = channel.unary_unary(
            AUTHENTICATE, request_serializer=rpc_pb2.AuthenticateRequest.SerializeToString,
            response_deserializer=rpc_pb2.AuthenticateResponse.FromString)
        try:
            answer = await call(rpc_pb2.AuthenticateRequest(name=self._user, password=password))
        except grpc.aio.AioRpcError as error:
            if (error.details() or "").startswith(_NOT_ENABLED):
                return ()
            raise LoginRefused(f"login of {self._user} at etcd: {error.code().name} {error.details()}") from None
        except asyncio.CancelledError:
            if supervision.is_asked_to_end():
                raise
            raise LoginRefused(f"login of {self._user} at etcd: its call was cancelled") from None
        return (("token", answer.token),)


def is_refused_token(error: Exception) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and (error.details() or "").startswith(_FORGOTTEN)


def password_in(path: Path) -> Callable[[], str]:
    """Reads the file at each call, without the line break that an editor leaves at its end. Raises OSError."""
    return lambda: path.read_text().removesuffix("\n").removesuffix("\r")

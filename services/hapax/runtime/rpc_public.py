"""A client's calls to the public listeners: ordinary unary calls of gRPC's blocking library.

Not of its asyncio library: that one shares a single queue between all event loops of a process, and a client lives in
its program's loop, of which there may be several, beside gRPC calls of the program's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library's own lines are not ours

import grpc

from hapax.runtime.ports import CallLogin, RpcError
from hapax.runtime.rpc import (
    AT,
    CALLER_KEY,
    CHANNEL_OPTIONS,
    CLUSTER_KEY,
    LOGIN_KEY,
    TLS,
    RpcIdentity,
    status_of,
)

if TYPE_CHECKING:
    from hapax.runtime.tls import TlsCertificates

_KEEP_S: Final = 1.0
"""A connection on which a call failed is replaced once it is this old."""


class _Connection:
    """A channel of gRPC's, with its calls in progress."""

    def __init__(self, address: str, tls: TlsCertificates | None) -> None:
        """Raises RpcError where the listener has TLS and `tls` is None."""
        # The stubs demand arguments that have defaults.
        self.channel: Any
        if address.startswith(TLS):
            if tls is None:
                raise RpcError(
                    "FAILED_PRECONDITION",
                    f"{address} is a listener with TLS: set security.protocol, ssl.truststore.location and, where it"
                    " asks for a certificate, ssl.keystore.location")
            from hapax.runtime.grpc_tls import channel_credentials

            name, _, place = address.removeprefix(TLS).rpartition(AT)
            named = (("grpc.ssl_target_name_override", name),) if name else ()
            self.channel = grpc.secure_channel(place, channel_credentials(tls), options=(*CHANNEL_OPTIONS, *named))
        else:
            self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.methods: dict[str, Any] = {}
        self.since = time.monotonic()
        self.calls = 0

    def method(self, name: str) -> Any:
        unary = self.methods.get(name)
        if unary is None:
            unary = self.methods[name] = self.channel.unary_unary(name)
        return unary


class PublicChannel:
    """`ports.RpcChannel`."""

    def __init__(
        self, address: str, identity: RpcIdentity, forget: Callable[[], object], tls: TlsCertificates | None = None,
        login: CallLogin | None = None,
    ) -> None:
        """`login`: it goes over TLS alone, to a listener that has asked for one: who logs in by SCRAM elsewhere
        shows its password to no other."""
        self._login = login if address.startswith(TLS) else None
        self._shows_login = False
        self._address = address
        self._tls = tls
        self._forget = forget
        self._metadata: tuple[tuple[str, str], ...] = (
            (CLUSTER_KEY, identity.cluster_id), (CALLER_KEY, identity.caller))
        self._connection = _Connection(address, tls)
        self._closed = False

    async def call(self, method: str, request: bytes, timeout: float) -> bytes:
        connection = self._connection
        connection.calls += 1
        try:
            login = self._login
            header = await login.header() if login is not None and self._shows_login else ""
            try:
                return await self._call(connection.method(method), method, request, timeout, header)
            except RpcError as error:
                if error.status != "UNAUTHENTICATED" or login is None:
                    raise
                if header and not await login.outdated_header(header):
                    raise
                self._shows_login = True  # no handler has seen the call
                return await self._call(connection.method(method), method, request, timeout, await login.header())
        except RpcError as error:
            if error.status == "UNAVAILABLE":
                self._replace(connection)
            raise
        finally:
            connection.calls -= 1
            if connection is not self._connection and not connection.calls:
                connection.channel.close()

    def _replace(self, failed: _Connection) -> None:
        """gRPC's channel waits up to two minutes before it resolves a name again that it could not resolve, so it does
        not find a pod that comes back with another IP address. The next call uses a new channel. Calls in progress keep
        the former one."""
        if failed is self._connection and not self._closed and time.monotonic() - failed.since >= _KEEP_S:
            self._connection = _Connection(self._address, self._tls)

    async def _call(self, unary: Any, method: str, request: bytes, timeout: float, header: str) -> bytes:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        metadata = (*self._metadata, (LOGIN_KEY, header)) if header else self._metadata

        def tell(_: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_settle, done)

        try:
            call = unary.future(request, timeout=timeout, metadata=metadata)
        except ValueError as error:
            raise RpcError("UNAVAILABLE", str(error)) from None  # the channel was closed
        call.add_done_callback(tell)
        try:
            await done
        except asyncio.CancelledError:
            call.cancel()
            raise
        try:
            answer: bytes = call.result()
        except grpc.FutureCancelledError:
            raise RpcError("UNAVAILABLE", "the channel was closed") from None
        except grpc.RpcError as error:
            failed: Any = error
            status = status_of(failed.code().value[0])
            if status == "CANCELLED":
                # No handler answers this. gRPC does, for a call that a closing server cuts off: its effect is unknown.
                status = "UNAVAILABLE"
            raise RpcError(status, f"{method}: {failed.details()}") from None
        return answer

    async def close(self) -> None:
        self._forget()
        self._closed = True
        self._connection.channel.close()


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)

"""A client's calls to the public listeners: ordinary unary calls of gRPC's blocking library.

Not of its asyncio library: that one shares a single queue between all event loops of a process, and a client lives in
its program's loop, of which there may be several, beside gRPC calls of the program's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library's own lines are not ours

import grpc

from hapax.runtime.ports import RpcError
from hapax.runtime.rpc import CALLER_KEY, CHANNEL_OPTIONS, CLUSTER_KEY, RpcIdentity, status_of


class PublicChannel:
    """`ports.RpcChannel`."""

    def __init__(self, address: str, identity: RpcIdentity, forget: Callable[[], object]) -> None:
        self._forget = forget
        self._metadata = ((CLUSTER_KEY, identity.cluster_id), (CALLER_KEY, identity.caller))
        # The stubs demand arguments that have defaults.
        self._channel: Any = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._methods: dict[str, Any] = {}

    async def call(self, method: str, request: bytes, timeout: float) -> bytes:
        unary = self._methods.get(method)
        if unary is None:
            unary = self._methods[method] = self._channel.unary_unary(method)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def tell(_: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_settle, done)

        try:
            call = unary.future(request, timeout=timeout, metadata=self._metadata)
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
            raise RpcError(status_of(failed.code().value[0]), f"{method}: {failed.details()}") from None
        return answer

    async def close(self) -> None:
        self._forget()
        self._channel.close()


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)

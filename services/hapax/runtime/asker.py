"""On whose behalf a call is made, for the audit log. It travels beside a call; no decision depends on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from hapax.rpc.gen.hapax.internal.v1 import controller_pb2
from hapax.runtime.addresses import host_of
from hapax.runtime.ports import RpcHandler, RpcPeer


class Asker(NamedTuple):
    principal: str | None
    """None: not known."""
    address: str
    """IP address, without the port."""
    call: str
    """The call of the client, such as `CreateTopics`."""


CLUSTER: Final = Asker(None, "", "")
"""The cluster by itself."""
ASKER: Final[ContextVar[Asker]] = ContextVar("asker", default=CLUSTER)
"""Of the call that a task answers. A server of calls sets it in the task of each call that changes something."""


def with_asker(payload: bytes, asker: Asker) -> bytes:
    """A request that says on whose behalf it is made: a field that every message of the controller's service may have
    (`AskedBy`), and that a process of an earlier release skips."""
    if asker is CLUSTER:
        return payload
    told = controller_pb2.Asker(principal=asker.principal or "", address=asker.address, call=asker.call)
    return payload + controller_pb2.AskedBy(asker=told).SerializeToString()


def asker_in(payload: bytes, peer: RpcPeer, method: str) -> Asker:
    """What a node of the cluster says. Without it: the node itself."""
    try:
        told = controller_pb2.AskedBy.FromString(payload)
    except DecodeError:
        return asker_of(peer, method)
    if not told.HasField("asker"):
        return asker_of(peer, method)._replace(principal=None)
    return Asker(told.asker.principal or None, told.asker.address, told.asker.call)


def ascribed(
    handlers: Mapping[str, RpcHandler], asker: Callable[[bytes, RpcPeer, str], Asker] | None = None
) -> dict[str, RpcHandler]:
    """The handlers, with `ASKER` set while they run. Each call runs in a task of its own. `asker`: None: the caller."""

    def one(method: str, handler: RpcHandler) -> RpcHandler:
        def handle(payload: bytes, peer: RpcPeer) -> Awaitable[bytes]:
            ASKER.set(asker_of(peer, method) if asker is None else asker(payload, peer, method))
            return handler(payload, peer)

        return handle

    return {method: one(method, handler) for method, handler in handlers.items()}


def asker_of(peer: RpcPeer, method: str) -> Asker:
    """The caller itself."""
    return Asker(peer.principal, host_of(peer.address), method.rpartition("/")[2])

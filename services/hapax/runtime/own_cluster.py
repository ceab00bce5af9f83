"""Calls that only nodes and clients of the same cluster may make.

Addresses of pods are given out again: a caller whose address book is behind may reach another cluster's allocator or
controller. What it asked for there, ids or the deletion of a topic, would be done to the wrong cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, Self, TypeVar

from hapax.runtime.ports import RpcError, RpcHandler


class NamesItsCluster(Protocol):
    """A request with the field `cluster_id`, which is empty where the caller is too old to say it."""

    cluster_id: str

    @classmethod
    def FromString(cls, s: bytes) -> Self: ...


_Request = TypeVar("_Request", bound=NamesItsCluster)


def answers_own(cluster_id: str, request: type[_Request], handle: Callable[[_Request], Awaitable[bytes]]) -> RpcHandler:
    """The call's handler. It refuses other clusters' requests with UNAVAILABLE, after which callers look for another
    node."""
    async def answer(payload: bytes) -> bytes:
        message = request.FromString(payload)
        if message.cluster_id not in (cluster_id, ""):
            raise RpcError("UNAVAILABLE", f"this node belongs to cluster {cluster_id}, not to {message.cluster_id}")
        return await handle(message)

    return answer

"""The listeners on which a service answers calls: internal gRPC, public gRPC, and frames for the hot path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from hapax.runtime.access import Access
from hapax.runtime.addresses import Address
from hapax.runtime.ports import Network, RpcHandler, RpcServer
from hapax.runtime.public_access import LeaseTopics, guarded_calls
from hapax.runtime.rpc import TLS
from hapax.runtime.security_settings import SSL
from hapax.runtime.settings import Settings

HOT: Final = frozenset({
    "/hapax.internal.v1.TxnCoordinator/VerifyPartitions",
    "/hapax.internal.v1.PartitionBroker/WriteMarkers",
    "/hapax.internal.v1.PartitionBroker/DescribeProducers",
    "/hapax.internal.v1.GroupCoordinator/WriteOffsetsMarkers",
})
"""The calls on the path of every transaction, and the check of a multi-writer commit. With `rpc.hot.path=frames` they
are served as frames too."""


class CallListeners(NamedTuple):
    internal: RpcServer
    public: RpcServer
    frames: RpcServer | None
    rpc_address: str
    """The advertised address of the internal gRPC listener. Those below are advertised addresses too."""
    public_rpc_address: str
    frames_address: str
    """Empty: the service has no hot calls, or serves them by gRPC alone."""

    async def close(self, grace: float = 0.0) -> None:
        """Lets the handlers that run finish, at most `grace` seconds on each listener."""
        servers = (self.public, self.internal, self.frames)
        await asyncio.gather(*(server.close(grace) for server in servers if server is not None))


async def listen_for_calls(
    network: Network, settings: Settings, ready: Callable[[], str],
    *, internal: dict[str, RpcHandler], public: dict[str, RpcHandler], access: Access | None,
    lease_topics: LeaseTopics | None = None,
) -> CallListeners:
    """Opens a service's listeners. `access`: what public calls are checked against. Raises OSError where an address is
    taken."""
    public = guarded_calls(access, public, lease_topics)
    hot = {method: handler for method, handler in internal.items() if method in HOT}
    frames: RpcServer | None = None
    async with contextlib.AsyncExitStack() as opened:  # where an address is taken, those that were opened are closed
        at = settings.rpc_address
        inside = await network.serve_rpc(at.host, at.port, internal, ready)
        opened.push_async_callback(inside.close)
        at = Address.parse(settings.public_rpc_listen)
        outside = await network.serve_rpc(at.host, at.port, public, ready, streams=False)
        opened.push_async_callback(outside.close)
        if hot and settings.rpc_hot_path == "frames":
            at = Address.parse(settings.frames_listen)
            frames = await network.serve_frames(at.host, at.port, hot)
        opened.pop_all()
    public_scheme = TLS if settings.public_rpc_security_protocol == SSL else ""
    return CallListeners(
        inside, outside, frames,
        str(settings.advertised_rpc(Address.parse(inside.address))),
        public_scheme + str(settings.advertised_public_rpc(Address.parse(outside.address))),
        "" if frames is None else str(settings.advertised_frames(Address.parse(frames.address))),
    )

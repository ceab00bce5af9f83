"""The listeners on which a service answers calls: internal gRPC, public gRPC, and frames for the hot path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from hapax.runtime import supervision
from hapax.runtime.access import Access
from hapax.runtime.addresses import Address
from hapax.runtime.ports import Network, Ports, RpcHandler, RpcServer
from hapax.runtime.public_access import LeaseTopics, guarded_calls
from hapax.runtime.rpc import TLS
from hapax.runtime.sasl_settings import check_tokens
from hapax.runtime.scram_image import ScramImage
from hapax.runtime.security_settings import SSL
from hapax.runtime.settings import Settings, SettingsError

if TYPE_CHECKING:
    from hapax.runtime.authorization_header import HeaderLogins

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
    reading: tuple[asyncio.Future[None], ...] = ()
    """What reads the keys of the issuer of tokens."""

    async def close(self, grace: float = 0.0) -> None:
        """Lets the handlers that run finish, at most `grace` seconds on each listener."""
        await supervision.end(*self.reading)
        servers = (self.public, self.internal, self.frames)
        await asyncio.gather(*(server.close(grace) for server in servers if server is not None))


async def listen_for_calls(
    network: Network, settings: Settings, ready: Callable[[], str],
    *, internal: dict[str, RpcHandler], public: dict[str, RpcHandler], access: Access | None,
    scram: ScramImage, ports: Ports, lease_topics: LeaseTopics | None = None,
) -> CallListeners:
    """Opens a service's listeners. `access`: what public calls are checked against. `scram`: the users' passwords.
    Raises OSError where an address is taken, SettingsError where logins cannot be as they are set."""
    logins = _public_logins(settings, scram, ports)
    public = guarded_calls(access, public, lease_topics)
    hot = {method: handler for method, handler in internal.items() if method in HOT}
    former = {**public, **internal} if settings.rpc_former_calls else None
    frames: RpcServer | None = None
    async with contextlib.AsyncExitStack() as opened:  # where an address is taken, those that were opened are closed
        at = settings.rpc_address
        inside = await network.serve_rpc(at.host, at.port, internal, ready, former=former)
        opened.push_async_callback(inside.close)
        at = Address.parse(settings.public_rpc_listen)
        outside = await network.serve_rpc(at.host, at.port, public, ready, streams=False, logins=logins, former=former)
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
        _keys_read(settings, logins, ports),
    )


def _public_logins(settings: Settings, scram: ScramImage, ports: Ports) -> HeaderLogins | None:
    """None: clients of public services have certificates, or none. Raises SettingsError."""
    passwords, tokens = (each in settings.public_rpc_ways for each in ("passwords", "oauthbearer"))
    if not passwords and not tokens:
        return None
    if settings.public_rpc_security_protocol != SSL:
        raise SettingsError(f"public.rpc.auth={settings.public_rpc_auth} needs public.rpc.security.protocol=SSL")
    from hapax.runtime.authorization_header import HeaderLogins

    keys = None
    if tokens:
        from hapax.runtime.key_sets import issuer_keys

        try:
            check_tokens(settings)
        except ValueError as error:
            raise SettingsError(f"public.rpc.auth=oauthbearer: {error}") from None
        keys = issuer_keys(settings, asyncio.get_running_loop().time)
    return HeaderLogins(scram, ports.clock, ports.random, passwords=passwords, keys=keys, audit=ports.audit)


def _keys_read(settings: Settings, logins: HeaderLogins | None, ports: Ports) -> tuple[asyncio.Future[None], ...]:
    if logins is None or logins.keys is None:
        return ()
    every_s = settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
    return (
        supervision.once(logins.keys.refresh(), "key-set"),
        supervision.every(every_s, logins.keys.refresh, "key-set", ports.random))

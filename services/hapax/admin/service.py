"""The admin service: a stateless REST API for operating a cluster. Any number of replicas may run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from hapax.admin.app import make_app
from hapax.admin.callers import NONE, TOKENS, ways_in
from hapax.admin.coalescing import QueryCoalescer
from hapax.admin.context import Clients, Context
from hapax.admin.gate import Gate
from hapax.admin.idempotency import Idempotency
from hapax.admin.server import HttpServer
from hapax.admin.tokens import TokenFileError, Tokens
from hapax.client.errors import SettingsError as BadProperties
from hapax.client.properties import read_properties
from hapax.runtime import supervision, telemetry
from hapax.runtime.access import access_of
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Ports
from hapax.runtime.rollback_guard import RollbackGuard
from hapax.runtime.settings import Settings, SettingsError

log = telemetry.logger("admin")


class AdminService:
    """Composed by `start`."""

    def __init__(
        self, view: ClusterView, clients: Clients, server: HttpServer, reading: Sequence[asyncio.Future[None]]
    ) -> None:
        """`reading`: what reads the issuer's keys."""
        self._view = view
        self._reading = reading
        self._clients = clients
        self._server = server

    @property
    def port(self) -> int:
        return self._server.port

    def ready(self) -> str:
        return "" if self._view.cluster is not None else "a cluster"

    async def drain(self) -> None:
        await self._server.close()

    async def close(self) -> None:
        await self._server.close()
        await supervision.end(*self._reading)
        await self._clients.close()
        await self._view.close()


async def start(
    ports: Ports, settings: Settings, *, on_lost: Callable[[str], None], http_address: str = "",
    metrics: telemetry.Metrics | None = None,
) -> AdminService:
    """Returns when it listens. Raises TokenFileError, StoreRefused, OSError."""
    metrics = metrics or telemetry.Metrics()
    tokens = _tokens(settings, asyncio.get_running_loop().time)
    gate, view, clients = await compose(ports, settings, tokens, on_lost, metrics)
    try:
        server = HttpServer(
            gate, settings, metrics, lambda error: on_lost(f"the HTTP server failed: {error!r}"),
            None if ports.tls is None else ports.tls.admin)
        await server.start()
    except BaseException:
        await clients.close()
        await view.close()
        raise
    keys = gate.callers.keys
    reading = () if keys is None else (
        supervision.once(keys.refresh(), "key-set"),
        supervision.every(
            settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000, keys.refresh, "key-set", ports.random))
    log.info("serves", host=settings.admin_address.host, port=server.port, authentication=settings.admin_auth)
    return AdminService(view, clients, server, reading)


async def compose(
    ports: Ports, settings: Settings, tokens: Tokens | None, on_lost: Callable[[str], None], metrics: telemetry.Metrics
) -> tuple[Gate, ClusterView, Clients]:
    """All but the HTTP server; the view has the cluster's state. Raises StoreRefused, SettingsError."""
    view = ClusterView(
        ports.metadata, settings.cluster_id, ports.random, RollbackGuard(settings.cluster_id),
        on_refused=lambda refusal: on_lost(str(refusal)),
    )
    access = access_of(settings, view, ports.audit)
    callers = ways_in(settings, ports, view.scram, access, tokens, metrics)
    if NONE in settings.admin_ways and access is None:
        log.warning("admin.auth is none, and there is no authoriser: every client that reaches the port may do all")
    elif access is None and settings.admin_ways != (TOKENS,):
        log.warning("there is no authoriser (authorizer.class.name): every caller that is known may do all")
    clients = Clients(ports, view, max(100, settings.admin_request_timeout_ms * 4 // 5), _client_settings(settings))
    try:
        await view.start()
    except BaseException:
        await view.close()
        raise
    keys = Idempotency(ports.metadata, ports.clock, settings.cluster_id, 2 * settings.admin_request_timeout_ms / 1000)
    app = make_app(Context(
        ports, settings, view, clients, QueryCoalescer(settings.admin_request_timeout_ms / 1000), keys))
    return Gate(app, settings, callers, metrics, asyncio.get_running_loop().time, ports.audit), view, clients


def _client_settings(settings: Settings) -> dict[str, str]:
    """Raises SettingsError, OSError."""
    if settings.admin_client_config is None:
        return {}
    try:
        return read_properties(Path(settings.admin_client_config))
    except BadProperties as error:
        raise SettingsError(f"admin.client.config: {error}") from None


def _tokens(settings: Settings, now: Callable[[], float]) -> Tokens | None:
    """None: `admin.auth` does not name them. Raises TokenFileError."""
    if TOKENS not in settings.admin_ways:
        return None
    if settings.admin_tokens_file is None:
        raise TokenFileError("admin.tokens.file is not set, and admin.auth names tokens")
    return Tokens(Path(settings.admin_tokens_file), now)

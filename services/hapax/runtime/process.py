"""The process around every service: settings, ports, health, signals and a clean stop.

A service's `main.py` calls `run(argv, "pid", start)`. Exit codes: 0 after SIGTERM or SIGINT; 1 when the service cannot
continue, or something fails while it ends (one log line says why); 2 for bad settings.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import uvloop

from hapax.codec.metadata import Keys, Role
from hapax.runtime import supervision, telemetry
from hapax.runtime.audit_writer import ProcessAudit
from hapax.runtime.clock import SystemClock
from hapax.runtime.disk import FolderInUse, RealDisk, open_folder
from hapax.runtime.etcd import SIGN_OF_LIFE_KEY, EtcdStore
from hapax.runtime.etcd_login import PasswordLogin, password_in
from hapax.runtime.lingering import Ending
from hapax.runtime.network import TcpNetwork
from hapax.runtime.node_ids import FIRST_NODE_ID, FolderRefused
from hapax.runtime.ports import Ports
from hapax.runtime.process_metrics import observe_process
from hapax.runtime.process_tls import ProcessTls
from hapax.runtime.registration import NodeIdTaken
from hapax.runtime.rollback_guard import StoreRefused
from hapax.runtime.rpc import RpcIdentity
from hapax.runtime.settings import Settings, SettingsError, parse_arguments

log = telemetry.logger("process")

_CLOSE_TIMEOUT_S: Final = 5.0
_KNOWN_BY_ID: Final = ("broker", "coordinator")
"""Roles whose partitions or shards are assigned to their node id."""


class Service(Protocol):
    """What a service's `start` returns."""

    def ready(self) -> str:
        """Empty while the service serves; otherwise what it waits for."""
        ...

    async def drain(self) -> None:
        """Refuses new work, finishes the running work, and hands over to other nodes what they can take."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Follower(Protocol):
    """A service that holds replicas led by other nodes."""

    def in_sync(self) -> str:
        """Empty while all its replicas are in sync; otherwise how many are not."""
        ...


class Start(Protocol):
    """A service's `start`. Returns when the service serves, or will serve later, which `ready` then reports."""

    def __call__(
        self, ports: Ports, settings: Settings, *, on_lost: Callable[[str], None], http_address: str,
        metrics: telemetry.Metrics,
    ) -> Awaitable[Service]: ...


def run(argv: Sequence[str], role: Role | Literal["admin"], start: Start, *, keeps_data: bool = True) -> int:
    """Runs one service until it is told to stop; returns the exit code. `argv` excludes the program's name. A service
    that keeps no data has no data folder and no disk."""
    # gRPC reads this when it makes its first channel or server. Without it the library logs every peer that ends.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        settings = parse_arguments(argv)
    except (SettingsError, OSError) as error:
        telemetry.start_logging(role)
        log.error(f"bad settings: {error}")
        return 2
    telemetry.start_logging(_called(role, settings), settings.log_level)
    if settings.node_id_generation_enable and role in _KNOWN_BY_ID:
        log.error(f"bad settings: node.id.generation.enable is for PID allocators and controllers; what a {role} holds "
                  "is assigned to its node.id")
        return 2
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, role, start, keeps_data))


async def _serve(settings: Settings, role: Role | Literal["admin"], start: Start, keeps_data: bool) -> int:
    ends = Ending()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ends, "")
    service: Service | None = None
    metrics = telemetry.Metrics()
    observe_process(metrics)
    health = telemetry.HealthServer(
        metrics, lambda: "start" if service is None else service.ready(),
        lambda: service.in_sync() if isinstance(service, Follower) else "")
    disk: RealDisk | None = None
    tls: ProcessTls | None = None
    store: EtcdStore | None = None
    audit: ProcessAudit | None = None
    try:
        audit = ProcessAudit(settings, _called(role, settings), SystemClock(), metrics)
        tls = ProcessTls.of(role, settings, metrics)
        store = EtcdStore(
            [str(address) for address in settings.etcd_addresses], settings.etcd_timeout_ms / 1000,
            None if tls is None else tls.etcd, *_etcd_login(settings))
        disk = open_folder(settings.log_dir) if keeps_data else None
        network = TcpNetwork(RpcIdentity(settings.cluster_id, _caller(role, settings)), tls, audit.audit)
        ports = Ports(SystemClock(), network, store, random.SystemRandom(), disk, tls, audit.audit)
        if tls is not None:
            tls.watch(store.reload_certificates, settings.ssl_reload_interval_ms / 1000, ports.random)
        await health.start(
            *settings.http_address, None if tls is None else tls.http, handshake_ms=settings.ssl_handshake_timeout_ms,
            max_handshakes=settings.ssl_max_handshakes, max_handshakes_per_address=settings.ssl_max_handshakes_per_ip)
        starting = supervision.judged(start(
            ports, settings, on_lost=ends, http_address=f"{health.host}:{health.port}", metrics=metrics))
        either: set[asyncio.Future[Any]] = {starting, ends.reason}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await supervision.end(starting)
            return _ended(ends.fault)
        service = starting.result()
        if not await ends.reason:
            await _within(service.drain(), settings.drain_timeout_ms / 1000, "drain")
            await ends.linger(service, settings.shutdown_linger_ms / 1000)
        await _within(service.close(), _CLOSE_TIMEOUT_S, "close")
        return _ended(ends.fault)
    except SettingsError as error:
        log.error(f"bad settings: {error}")
        return 2
    except (FolderInUse, FolderRefused, StoreRefused, NodeIdTaken, OSError) as error:
        return _ended(str(error))
    finally:
        if audit is not None:
            await asyncio.to_thread(audit.close)
        await health.close()
        if tls is not None:
            await tls.close()
        if store is not None:
            await store.close()
        if disk is not None:
            disk.close()


def _etcd_login(settings: Settings) -> tuple[PasswordLogin | None, bytes]:
    """And what the user may read for a sign of life: rights on etcd's first key cannot be given by etcdctl."""
    if not settings.etcd_username or not settings.etcd_password_location:
        return None, SIGN_OF_LIFE_KEY
    login = PasswordLogin(settings.etcd_username, password_in(Path(settings.etcd_password_location)))
    return login, Keys(settings.cluster_id).prefix.encode()


def _called(role: Role | Literal["admin"], settings: Settings) -> str:
    """The service's name in the log. A generated node id is logged at registration."""
    if settings.node_id_generation_enable:
        return role
    return f"{role}-{settings.node_id - (0 if role == 'admin' else FIRST_NODE_ID[role])}"


def _caller(role: Role | Literal["admin"], settings: Settings) -> str:
    """What the process says of itself to those that it calls."""
    return role if settings.node_id_generation_enable or role == "admin" else f"{role}/{settings.node_id}"


def _ended(reason: str) -> int:
    if reason:
        log.error(reason)
        return 1
    log.info("stopped as requested")
    return 0


async def _within(work: Awaitable[None], seconds: float, what: str) -> None:
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        log.warning("did not finish in time", what=what, seconds=seconds)

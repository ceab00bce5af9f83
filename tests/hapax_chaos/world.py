"""The cluster under chaos: etcd, PID allocator, controllers, brokers and coordinators as processes of one nursery.

If possible, each node has its own network namespace. Otherwise all share loopback. A world is used for many scenarios,
each with its own topic, as long as it returns to rest after each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from faults.preload import NoCompiler, Rules
from hapax.client import Admin
from hapax.core.hashing import shard_of
from hapax.core.types import ShardId
from hapax.local.etcd import etcd_command, find_etcd
from hapax.local.folder import free_port
from hapax.runtime.cluster import ClusterView
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.process_metrics import SELF_CORRECTIONS, TASK_FAILURES
from hapax_chaos.network import Bridge
from hapax_chaos.nursery import Nursery
from hapax_chaos.proxy import Control
from hapax_chaos.trust import Login, Trust

CLUSTER: Final = "chaos"
READY_S: Final = 60.0
_RESTARTS: Final = 3
SETTINGS: Final = {
    "transaction.state.log.num.partitions": 4, "offsets.topic.num.partitions": 4, "broker.session.timeout.ms": 4000,
    "replica.lag.time.max.ms": 4000, "request.timeout.ms": 5000, "etcd.timeout.ms": 2000, "pid.block.size": 100,
    "auto.create.topics.enable": "false", "log.segment.bytes": 1 << 20, "log.snapshot.interval.bytes": 1 << 19,
    "transaction.max.timeout.ms": 10_000, "transaction.late.after.ms": 5_000, "drain.timeout.ms": 5000,
}
_KINDS: Final = ("etcd", "pid", "controller", "broker", "coordinator")
_FIRST_ID: Final = {"broker": 0, "coordinator": 100, "pid": 200, "controller": 300}
_PORTS: Final = {
    "kafka": 9092, "rpc": 9095, "public-rpc": 9097, "frames": 9098, "http": 9096, "nodes": 9091, "mtls": 9093}
"""nodes, mtls: of secure worlds, see `trust`."""


class NotAtRest(Exception):
    """The cluster did not return to a state in which all its parts serve. The text says what is missing."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The world that a scenario needs. Scenarios with the same layout share worlds."""

    brokers: int = 3
    coordinators: int = 2
    controllers: int = 2
    replication: int = 3
    namespaces: bool = True
    proxied: bool = False
    disk_mb: int = 0
    """Size of each broker's in-memory disk; 0 for a folder on the computer's disk."""
    settings: tuple[tuple[str, str], ...] = ()
    secure: bool = False
    """TLS on every port, logins, permissions: see `trust`."""
    login: Login = "mixed"


@dataclass(slots=True)
class Process:
    name: str
    kind: str
    host: str
    namespace: str
    ports: dict[str, int]
    argv: list[str] = field(default_factory=list)
    pid: int = 0
    frozen: bool = False

    def address(self, port: str) -> tuple[str, int]:
        return self.host, self.ports[port]

    @property
    def node_id(self) -> int:
        """-1: etcd."""
        return -1 if self.kind == "etcd" else _FIRST_ID[self.kind] + int(self.name.rpartition("-")[2])


class World:
    """Use `await open()` and `await close()`. No process outlives `close` or the death of this process."""

    def __init__(self, layout: Layout, folder: Path, seed: int, services: Path | None = None) -> None:
        """`services`: the folder of the package hapax to test, if it is not this one's."""
        self.layout = layout
        self._services = services
        self.folder = folder
        self.seed = seed
        self.scenarios = 0
        self._own_faults: dict[tuple[str, int, str], float] = {}
        self.processes: dict[str, Process] = {}
        self._held: list[socket.socket] = []
        """Keep other callers from the ports, also while a process is down."""
        self.clients: dict[str, str] = {}
        """Names of running client processes, each mapped to itself."""
        self.view: ClusterView
        self.control: Control | None = None
        self.bridge: Bridge | None = None
        self.ended: list[str] = []
        """The processes that have ended by themselves since the last `heal`."""
        self.rules = Rules(folder / "fault-rules")
        self.trust = Trust(folder, CLUSTER, self.processes, layout.login) if layout.secure else None
        self._store: EtcdStore | None = None
        self._client_namespace = ""

    # --- life

    async def open(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "logs").mkdir(parents=True)
        names = self._names()
        if self.layout.namespaces:
            self.bridge = Bridge([*names, "clients"])
            self._client_namespace = self.bridge.namespace("clients")
        try:
            environment = self.rules.environment()
        except NoCompiler:
            environment = {}
        self.nursery = Nursery(self.folder / "logs" / "nursery.log", environment, self._services)
        for name, kind in names.items():
            self._plan(name, kind)
        if self.trust is not None:
            self.trust.prepare(self.bootstrap, self.layout.proxied)
        for process in self.processes.values():
            process.argv = self._arguments(process)
        if self.layout.proxied:
            self._plan_proxy()
        for process in self.processes.values():
            if process.kind == "broker" and self.layout.disk_mb:
                self.data(process.name).mkdir()
                self.nursery.mount(self.data(process.name), self.layout.disk_mb)
            self.start(process.name)
            if process.kind == "etcd" and self.trust is not None:
                await self._prepare_store(self.trust)
        self._store = EtcdStore([self._etcd], 2.0, None if self.trust is None else self.trust.store_certificates())
        self.view = ClusterView(self._store, CLUSTER, random.Random(self.seed))
        async with asyncio.timeout(READY_S):
            await self.view.start()
        await self.at_rest()
        if self.trust is not None:
            async with Admin(self.client()) as admin:
                await self.trust.make_users(admin)
            if found := await self.trust.open_to(self.bootstrap):
                raise RuntimeError(f"the world is not closed: {'; '.join(found)}")

    async def _prepare_store(self, trust: Trust) -> None:
        async with asyncio.timeout(READY_S):
            while not await answers(self.processes["etcd"].address("kafka"), "/health", tls=trust.http()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.to_thread(trust.prepare_store, self._etcd)

    async def close(self) -> None:
        if self.control is not None:
            self.control.close()
        if self._store is not None:
            await self.view.close()
            await self._store.close()
        if hasattr(self, "nursery"):
            self.nursery.close()
        if self.bridge is not None:
            self.bridge.close()
        for each in self._held:
            each.close()

    def _names(self) -> dict[str, str]:
        layout = self.layout
        counts = {
            "etcd": 1, "pid": 1, "controller": layout.controllers, "broker": layout.brokers,
            "coordinator": layout.coordinators,
        }
        return {
            kind if kind == "etcd" else f"{kind}-{number}": kind for kind in _KINDS for number in range(counts[kind])
        }

    def _plan(self, name: str, kind: str) -> None:
        if self.bridge is not None:
            host, namespace = self.bridge.addresses[name], self.bridge.namespace(name)
            ports = dict(_PORTS)
        else:
            taken = {port for process in self.processes.values() for port in process.ports.values()}
            host, namespace = "127.0.0.1", ""
            ports = {use: free_port(taken, self._held) for use in _PORTS}
        if self.layout.proxied and kind in ("broker", "coordinator"):
            ports["proxy"] = free_port(set(ports.values()), self._held)
        self.processes[name] = Process(name, kind, host, namespace, ports)

    def _arguments(self, process: Process) -> list[str]:
        host, ports = process.host, process.ports
        if process.kind == "etcd":
            tls = () if self.trust is None else self.trust.etcd_options
            command = etcd_command(find_etcd(), self.data("etcd"), ports["kafka"], ports["rpc"], tls)
            return [word.replace("127.0.0.1", host) for word in command]
        settings: dict[str, object] = {
            **SETTINGS, **dict(self.layout.settings),
            "transaction.state.log.replication.factor": self.layout.replication,
            "offsets.topic.replication.factor": self.layout.replication,
            "node.id": process.node_id, "cluster.id": CLUSTER,
            "etcd.endpoints": self._etcd if self.trust is None else f"https://{self._etcd}",
            "rpc.listen": f"{host}:{ports['rpc']}", "public.rpc.listen": f"{host}:{ports['public-rpc']}",
            "frames.listen": f"{host}:{ports['frames']}", "http.listen": f"{host}:{ports['http']}",
            "log.dir": self.data(process.name),
        }
        if self.trust is not None:
            settings = {**self.trust.node_settings(process), **settings}
        elif process.kind in ("broker", "coordinator"):
            settings["listeners"] = f"PLAINTEXT://{host}:{ports['kafka']}"
            if self.layout.proxied:
                settings["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{ports['proxy']}"
        return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def _plan_proxy(self) -> None:
        control = ("127.0.0.1", free_port(set(), self._held))
        routes = [
            (("127.0.0.1", p.ports["proxy"]), p.address("kafka"))
            for p in self.processes.values() if "proxy" in p.ports
        ]
        tls = None if self.trust is None else self.trust.proxy()
        arguments = json.dumps({"seed": self.seed, "control": control, "routes": routes, "tls": tls})
        self.nursery.start("proxy", "proxy", [arguments], self.log("proxy"))
        self.control = Control(control)

    # --- look

    @property
    def _etcd(self) -> str:
        host, port = self.processes["etcd"].address("kafka")
        return f"{host}:{port}"

    def data(self, name: str) -> Path:
        return self.folder / name

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    @property
    def bootstrap(self) -> str:
        """The address for clients: every broker, through the proxy if there is one."""
        return self._bootstrap("proxy" if self.layout.proxied else "kafka")

    def _bootstrap(self, use: str) -> str:
        host = "127.0.0.1" if self.layout.proxied else ""
        return ",".join(f"{host or p.host}:{p.ports[use]}" for p in self.of_kind("broker"))

    def client(self, **more: object) -> dict[str, object]:
        """Settings of the harness's own clients. Names are written with `__` for a dot."""
        secure = {} if self.trust is None else self.trust.harness()
        given = {name.replace("__", "."): value for name, value in more.items()}
        return {**secure, "bootstrap.servers": self.bootstrap, **given}

    def program(self, name: str) -> dict[str, object]:
        """What a client process needs in order to reach the cluster: `bootstrap`, `security`."""
        if self.trust is None:
            return {"bootstrap": self.bootstrap, "security": {}}
        use = "mtls" if self.trust.by_certificate(name) else "proxy" if self.layout.proxied else "kafka"
        return {"bootstrap": self._bootstrap(use), "security": self.trust.program(name)}

    async def reload_certificates(self) -> None:
        """Of the harness's own connection to etcd."""
        assert self._store is not None
        await self._store.reload_certificates()

    def of_kind(self, kind: str) -> list[Process]:
        return [process for process in self.processes.values() if process.kind == kind]

    def runs(self, name: str) -> bool:
        return self.nursery.exit_code(name) is None

    def leader(self, topic: str, partition: int = 0) -> str:
        found = self.view.topic(topic)
        assert found is not None, topic
        assigned = self.view.partition(found.topic_id, partition)
        assert assigned is not None
        return f"broker-{assigned.record.leader}"

    def follower(self, topic: str, partition: int = 0) -> str:
        leader = self.leader(topic, partition)
        return next((p.name for p in self.of_kind("broker") if p.name != leader), leader)

    def coordinator(self, key: str, kind: Literal["txn", "group"] = "txn") -> str:
        """Of a transactional id or a group."""
        cluster = self.view.cluster
        assert cluster is not None
        shards = cluster.txn_shards if kind == "txn" else cluster.group_shards
        shard = self.view.shard(kind, ShardId(shard_of(key, shards)))
        assert shard is not None
        return f"coordinator-{shard.record.owner - _FIRST_ID['coordinator']}"

    def controller(self) -> str:
        acting = self.view.controller
        return "controller-0" if acting is None else f"controller-{acting.record.node_id - _FIRST_ID['controller']}"

    # --- processes

    def start(self, name: str) -> None:
        process = self.processes[name]
        kind = "exec" if process.kind == "etcd" else process.kind
        process.pid = self.nursery.start(name, kind, process.argv, self.log(name), process.namespace)
        process.frozen = False

    def start_client(self, name: str, settings: dict[str, object]) -> None:
        self.nursery.start(name, "client", [json.dumps(settings)], self.log(name), self._client_namespace)
        self.clients[name] = name

    def kill(self, name: str) -> None:
        self.nursery.kill(name)

    def freeze(self, name: str) -> None:
        self.nursery.signal(name, signal.SIGSTOP)
        if name in self.processes:
            self.processes[name].frozen = True

    def thaw(self, name: str) -> None:
        self.nursery.signal(name, signal.SIGCONT)
        if name in self.processes:
            self.processes[name].frozen = False

    async def stop(self, name: str, timeout: float = 20.0) -> None:
        """Sends SIGTERM, and SIGKILL after the timeout."""
        self.nursery.signal(name, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await until(lambda: not self.runs(name), timeout)
        self.kill(name)

    # --- rest

    async def heal(self) -> None:
        """Ends all faults: removes every rule, resumes every frozen process, and starts every dead one."""
        self.ended.clear()
        self.rules.clear()
        if self.bridge is not None:
            self.bridge.heal()
        if self.control is not None:
            await self.control.set([])
        for process in self.processes.values():
            if process.frozen:
                self.thaw(process.name)
        for process in self.processes.values():
            if not self.runs(process.name):
                self.start(process.name)

    async def at_rest(self, timeout: float = READY_S) -> None:
        """Returns when all parts serve and every replica is in sync. Raises NotAtRest."""
        missing = "nothing was checked"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while missing := await self._missing():  # noqa: ASYNC110 (other processes; nothing here to wait for)
                    await asyncio.sleep(0.1)
        if missing:
            raise NotAtRest(missing)

    def supervise(self) -> str:
        """Restarts a process that ended by itself, as a node does that lost its registration. After a few restarts it
        stays dead."""
        for process in self.processes.values():
            if not self.runs(process.name):
                ended = f"{process.name} ended ({self.nursery.exit_code(process.name)})"
                self.ended.append(ended)
                if self.ended.count(ended) > _RESTARTS:
                    self.ended.pop()
                    return f"{ended} again and again"
                self.start(process.name)
        return ""

    async def _missing(self) -> str:
        if ended := self.supervise():
            return ended
        tls = None if self.trust is None else self.trust.http()
        measure = partial(measured, tls=tls)
        for process in self.processes.values():
            if process.kind != "etcd" and not await answers(process.address("http"), "/readyz", tls=tls):
                return f"{process.name} is not ready"
        for process in self.of_kind("broker"):
            for metric in ("hapax_broker_unchecked_segments", "hapax_broker_damaged_segments"):
                if value := await measure(process.address("http"), metric):
                    return f"{process.name} has {metric} {value}"
        view = self.view
        for partition in view.partitions():
            if view.leader_of(partition.topic_id, partition.index) is None:
                return f"{partition.id} has no leader"
            if len(partition.record.isr) < len(partition.record.replicas):
                return f"{partition.id} has {partition.record.isr} of {partition.record.replicas} in sync"
        if not any(True for _ in view.partitions()):
            return "there are no partitions yet"
        for kind in ("txn", "group"):
            for shard in view.shards(kind):  # type: ignore[arg-type]
                if view.shard_owner(kind, shard) is None:  # type: ignore[arg-type]
                    return f"{kind} shard {shard} has no owner"
        return ""

    async def own_faults(self) -> list[str]:
        """The nodes' own counts of their faults since the last call."""
        found = []
        for process in self.processes.values():
            if process.kind == "etcd":
                continue
            for metric, number in own_faults(await self.metrics(process)).items():
                key = (process.name, process.pid, metric)
                if number > self._own_faults.get(key, 0):
                    self._own_faults[key] = number
                    found.append(f"own-fault: {process.name} counts {metric} {number:.0f}")
        return found

    async def metrics(self, process: Process) -> list[str]:
        """Lines. Empty if they cannot be read now."""
        return await scraped(process.address("http"), 5.0, None if self.trust is None else self.trust.http())

    def events(self) -> Iterator[str]:
        """Lines of the nodes' logs that need a person's attention."""
        for process in self.processes.values():
            log = self.log(process.name)
            if process.kind != "etcd" and log.exists():
                for line in log.read_text(errors="replace").splitlines():
                    if " ERROR " in line or line.startswith("Traceback"):
                        yield line


async def until(condition: Callable[[], bool], timeout: float) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 (the condition is about other processes)
            await asyncio.sleep(0.05)


async def scraped(address: tuple[str, int], timeout: float, tls: ssl.SSLContext | None = None) -> list[str]:
    """The lines of a process's metrics. Empty if they cannot be read now."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(*address, ssl=tls)
            try:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: chaos\r\nConnection: close\r\n\r\n")
                return (await reader.read()).decode(errors="replace").splitlines()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return []


async def measured(
    address: tuple[str, int], metric: str, timeout: float = 1.0, tls: ssl.SSLContext | None = None
) -> float:
    """The value of a metric without labels. 1 if it cannot be read now."""
    lines = await scraped(address, timeout, tls)
    return next((float(line.split()[-1]) for line in lines if line.startswith(metric + " ")), 1.0)


def own_faults(lines: list[str]) -> dict[str, float]:
    """A process's counts of its own faults (rule 25), by metric and labels."""
    own = tuple(f"{metric.name}{{" for metric in (SELF_CORRECTIONS, TASK_FAILURES))
    return {name: float(number) for name, _, number in (line.rpartition(" ") for line in lines if line.startswith(own))}


async def answers(
    address: tuple[str, int], path: str, timeout: float = 1.0, tls: ssl.SSLContext | None = None
) -> bool:
    """Whether `GET path` is answered 200 now."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(*address, ssl=tls)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: chaos\r\nConnection: close\r\n\r\n".encode())
                return (await reader.readexactly(12)).startswith(b"HTTP/1.1 200")
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False

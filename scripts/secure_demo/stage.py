"""The closed cluster of the demo, its tenants, and what is done to it."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
import ssl
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from hapax.client import Admin, HapaxError, NewTopic
from hapax.client.properties import read_properties
from hapax.client.users import ScramUpsertion
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import user
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.local.authority import Authority, replace_file
from hapax.local.cluster import LocalCluster
from hapax.local.secure import CLIENTS, USER, SecureFolder

TENANTS: Final = {"shop": "shop-orders", "bank": "bank-payments"}
"""Name -> topic. All that a tenant may use begins with its name."""
BROKERS: Final = 2
SETTINGS: Final = (
    "default.replication.factor=2", "min.insync.replicas=2", "offsets.topic.num.partitions=8",
    "transaction.state.log.num.partitions=8", "ssl.reload.interval.ms=500",
    "audit.log.destination=file", "audit.log.max.events=20")
_MECHANISM: Final = ScramMechanism.SCRAM_SHA_512
_THROTTLED: Final = re.compile(r'^hapax_throttled_seconds_total\{[^}]*producer_byte_rate[^}]*\} (\S+)$', re.MULTILINE)


class DemoFailure(RuntimeError):
    """The demo could not be carried out."""


class Stage:
    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.files = SecureFolder(cluster.folder)
        self.state = cluster.status()
        self.admin = dict(read_properties(self.files.profile))

    # --- tenants ---

    def password_file(self, name: str) -> Path:
        return self.folder / f"{name}.password"

    def settings(self, name: str, **more: str) -> dict[str, str]:
        """Of a tenant's client. The password is in a file, which may be replaced."""
        own = {
            "bootstrap.servers": self.state.bootstrap, "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.files.file(f"{CLIENTS}.crt")), "sasl.mechanism": _MECHANISM.sasl_name,
            "sasl.username": name, "sasl.password.file": str(self.password_file(name))}
        return own | {key.replace("__", "."): value for key, value in more.items()}

    async def let_in(self, name: str) -> None:
        """A password, a topic, and permission for what begins with the tenant's name."""
        async with Admin(self.admin) as admin:
            await admin.create_topics([NewTopic(TENANTS[name], 3)])
            await admin.create_acls([
                Binding(kind, f"{name}-", Pattern.PREFIXED, user(name), "*", Operation.ALL, Permission.ALLOW)
                for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)])
        await self.give_password(name)

    async def give_password(self, name: str) -> str:
        """A new one; the former counts no longer. The tenant's file has it first. Returns the former; "": none."""
        file = self.password_file(name)
        former = file.read_text().strip() if file.exists() else ""
        password = secrets.token_urlsafe(16)
        async with Admin(self.admin) as admin:  # first, so that a login meets the moment between the two less likely
            replace_file(file, f"{password}\n".encode(), 0o600)
            await admin.alter_user_scram_credentials([ScramUpsertion(name, _MECHANISM, password)])
        return former

    # --- who is not let in ---

    async def refused(self, settings: dict[str, str], act: Callable[[Admin], Awaitable[Any]] | None = None) -> str:
        """The sentence that a client is told; empty: it was let in."""
        quick = {"request.timeout.ms": "3000", "default.api.timeout.ms": "3000"}
        try:
            async with Admin({**settings, **quick}) as admin:
                if act is not None:
                    await act(admin)
        except HapaxError as error:
            return str(error)
        return ""

    async def knocked(self, name: str) -> str:
        """What a tenant with a certificate of its own is told on the port between the processes; empty: it was let
        in."""
        authority = Authority.read(
            self.files.file(f"{CLIENTS}.crt").read_bytes(), self.files.file(f"{CLIENTS}.key").read_bytes())
        certificate, key = authority.issue(f"CN={name}", use="client").write(self.folder, name)
        return await asyncio.to_thread(_knocked, self.state.process("broker-0").rpc_port, certificate, key)

    # --- rotation ---

    async def renew_certificates(self, timeout: float = 30.0) -> int:
        """New certificates and keys for all processes. Returns the number of processes, once all show them."""
        nodes = [each for each in self.state.processes if each.role in ("broker", "coordinator")]
        former = {node.name: await asyncio.to_thread(self._shown, node.port) for node in nodes}
        await asyncio.to_thread(self.files.renew, self.cluster.folder.cluster_id(), self.state.processes)
        deadline = time.monotonic() + timeout
        for node in nodes:
            wanted = ssl.PEM_cert_to_DER_cert(self.files.file(f"{node.name}-public.crt").read_text())
            if wanted == former[node.name]:
                raise DemoFailure(f"the certificate of {node.name} was not replaced")
            while await asyncio.to_thread(self._shown, node.port) != wanted:
                if time.monotonic() > deadline:
                    raise DemoFailure(f"{node.name} shows its former certificate; see its log")
                await asyncio.sleep(0.2)
        return len([each for each in self.state.processes if each.role != "etcd"])

    def _shown(self, port: int) -> bytes:
        context = ssl.create_default_context(cafile=str(self.files.file(f"{CLIENTS}.crt")))
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            return secured.getpeercert(binary_form=True) or b""

    # --- quotas ---

    async def limit(self, name: str, bytes_per_second: float | None) -> None:
        async with Admin(self.admin) as admin:
            await admin.alter_quotas({"user": name}, {"producer_byte_rate": bytes_per_second})

    async def throttled_s(self) -> float:
        """For how long clients were told to wait, in all."""
        return await asyncio.to_thread(lambda: sum(
            float(found) for each in self.state.processes if each.role == "broker"
            for found in _THROTTLED.findall(self._metrics(each.http_port))))

    def _metrics(self, port: int) -> str:
        url = f"https://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=10, context=self.files.trust()) as answer:
            return str(answer.read().decode())


def audited(folder: Path) -> list[dict[str, Any]]:
    """The events of all processes, in order of time."""
    lines = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(lines, key=lambda line: str(line["time"]))


def numbers(events: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(str(event["event"]) for event in events)


def _knocked(port: int, certificate: Path, key: Path) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is not let in, whatever it thinks of the process
    context.load_cert_chain(certificate, key)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain, context.wrap_socket(plain) as secured:
            secured.sendall(b"hello")
            return "" if secured.recv(1) else "the connection was closed"
    except ssl.SSLError as error:
        return f"TLS alert: {(error.reason or str(error)).lower().replace('_', ' ')}"
    except ConnectionError:
        return "the connection was closed"


__all__ = ["BROKERS", "SETTINGS", "TENANTS", "USER", "DemoFailure", "Stage", "audited", "numbers"]

"""A replica of the REST service without sockets, in a cluster with ACLs: requests in, answers out."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from hapax.admin.app import make_app
from hapax.admin.callers import Callers, ways_in
from hapax.admin.coalescing import QueryCoalescer
from hapax.admin.context import Context
from hapax.admin.gate import Gate
from hapax.admin.idempotency import Idempotency
from hapax.admin.tokens import Tokens
from hapax.codec.metadata import ScramCredentialRecord
from hapax.core.access.bindings import Binding
from hapax.core.access.index import Policy, of_bindings
from hapax.core.access.principals import Principal, user
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.sasl.scram_keys import ScramMechanism, credential_of, salted_password
from hapax.runtime import telemetry
from hapax.runtime.access import Access
from hapax.runtime.audit_events import EVENTS, Audit
from hapax.runtime.ports import KeyValue
from hapax.runtime.scram_image import ScramImage
from hapax.runtime.settings import Settings
from unit.admin.test_idempotency import Store

TOKENS = {
    "boss": ("admin", "boss-token-of-its-own"), "viewer": ("read-only", "viewer-token-of-its-own"),
    "billing": ("acl", "billing-token-of-its-own"),
}


class Random:
    """What is not secret here."""

    def randbytes(self, n: int) -> bytes:
        return bytes(n)


class Recording(Audit):
    def __init__(self) -> None:
        self.lines: list[tuple[str, str | None, str, dict[str, object]]] = []

    def record(self, event: str, principal: str | None, address: str, **fields: object) -> None:
        assert fields.keys() == EVENTS[event].fields.keys()
        self.lines.append((event, principal, address, fields))


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any

    @property
    def code(self) -> str | None:
        return self.body.get("code") if isinstance(self.body, dict) else None


def allow(who: str, operation: Operation, kind: ResourceType, name: str, *, prefixed: bool = False) -> Binding:
    pattern = Pattern.PREFIXED if prefixed else Pattern.LITERAL
    return Binding(kind, name, pattern, user(who), "*", operation, Permission.ALLOW)


def deny(who: str, operation: Operation, kind: ResourceType, name: str) -> Binding:
    return allow(who, operation, kind, name)._replace(permission=Permission.DENY)


def bearer(who: str) -> str:
    return f"Bearer {TOKENS[who][1]}"


def basic(who: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{who}:{password}".encode()).decode()


def set_password(scram: ScramImage, who: str, password: str | None) -> None:
    """For one mechanism; None: removes it."""
    mechanism = ScramMechanism.SCRAM_SHA_256
    kv: KeyValue | None = None
    if password is not None:
        salt = hashlib.sha256(password.encode()).digest()
        credential = credential_of(mechanism, salt, salted_password(mechanism, password, salt, 4096), 4096)
        kv = KeyValue("", ScramCredentialRecord(credential).encode(), 1, 1)
    scram.apply(mechanism, who, kv)


class Rest:
    """`view` and `admin` are what the handlers ask."""

    def __init__(
        self, folder: Path, *, ways: str = "tokens,passwords", view: Any = None, admin: Any = None,
        bindings: list[Binding] | None = None, super_users: frozenset[Principal] = frozenset(),
        settings: Settings | None = None,
    ) -> None:
        """`bindings`: None: the cluster has no authoriser."""
        file = folder / "tokens"
        file.write_text("".join(f"{name} {role} {token}\n" for name, (role, token) in TOKENS.items()))
        self.store, self.clock = Store(), Clock()
        self.scram = ScramImage(Random())  # type: ignore[arg-type]
        self.read = 0
        """Messages with parts of a body that were asked for."""
        self.audit = Recording()
        self.image = SimpleNamespace(index=of_bindings(bindings or []))
        view = view or SimpleNamespace()
        view.access = self.image
        access = None if bindings is None else Access(view, Policy(super_users, False, frozenset({
            "__consumer_offsets", "__hapax_events", "__transaction_state"})), frozenset(), audit=self.audit)
        self.settings = settings or Settings(
            admin_auth=ways, admin_security_protocol="SSL", ssl_client_auth="requested")
        self.metrics = telemetry.Metrics()
        ports: Any = SimpleNamespace(clock=self.clock, random=Random(), audit=self.audit)
        self.callers: Callers = ways_in(
            self.settings, ports, self.scram, access, Tokens(file, lambda: 0.0), self.metrics)

        async def call(work: Any) -> Any:
            return await work(admin)

        async def leases() -> Any:
            return admin

        clients: Any = SimpleNamespace(call=call, leases=leases)
        keys = Idempotency(self.store, self.clock, "c", claim_s=60)  # type: ignore[arg-type]
        context = Context(ports, self.settings, view, clients, QueryCoalescer(60.0), keys)
        self.gate = Gate(make_app(context), self.settings, self.callers, self.metrics, lambda: 0.0, self.audit)

    def permit(self, *bindings: Binding) -> None:
        """From now on these, and no others."""
        self.image.index = of_bindings(bindings)

    def set_password(self, who: str, password: str | None) -> None:
        set_password(self.scram, who, password)

    async def ask(
        self, method: str, path: str, body: Any = None, *, auth: str | None = None, certificate: bytes = b"",
        **headers: str,
    ) -> Answered:
        content = b"" if body is None else json.dumps(body).encode()
        sent: list[Any] = []

        async def receive() -> Any:
            self.read += 1
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        names = {"content-type": "application/json", **headers}
        if auth is not None:
            names["authorization"] = auth
        path, _, query = path.partition("?")
        await self.gate({
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "https",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "state": {"certificate": certificate},
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in names.items()],
            "server": ("127.0.0.1", 1), "client": ("192.0.2.7", 2),
        }, receive, send)
        answer = b"".join(each.get("body", b"") for each in sent[1:])
        told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answered(sent[0]["status"], told, json.loads(answer) if answer else None)

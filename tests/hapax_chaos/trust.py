"""A secure world: certificates for all processes and programs, users, passwords, tokens, permissions.

It has the ports of `hapax local up --secure`, and one more: programs log in with a password (SCRAM) or a token, or
prove themselves by a certificate (mTLS). Each program may use its own topics, its group and its transactional id, and
nothing else. The harness is the super user.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import ssl
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from hapax.client import Admin, HapaxError
from hapax.client.properties import read_properties
from hapax.client.users import ScramDeletion, ScramUpsertion
from hapax.core.access.bindings import Binding, Filter
from hapax.core.access.principals import user
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.errors import ErrorCode
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.local.authority import replace_file
from hapax.local.folder import Folder, ProcessState, Role
from hapax.local.secure import (
    CLIENTS,
    CLIENTS_LISTENER,
    DEFAULTS,
    ETCD_ROOT,
    NODES_LISTENER,
    SERVICES,
    SecureFolder,
)
from hapax.runtime.tls import TlsCertificates, TlsOptions

if TYPE_CHECKING:
    from hapax_chaos.world import Process

Login = Literal["mixed", "password", "token"]
"""mixed: some programs have a password, some a certificate."""

PROGRAMS: Final = 4
CERTIFIED_LISTENER: Final = "CERTIFIED"
RELOAD_MS: Final = 500
TOKENS_LAST_S: Final = 3600.0
_KEY_ID: Final = "chaos"
_ISSUER: Final = "https://chaos.example"
_AUDIENCE: Final = "hapax"
_LISTENERS_MAP: Final = f"{NODES_LISTENER}:SSL,{CLIENTS_LISTENER}:SASL_SSL,{CERTIFIED_LISTENER}:SSL"
_SHOWN_BY: Final = {"nodes": "", "rpc": "", "frames": "", "http": "", "kafka": "-public", "mtls": "-public",
                    "public-rpc": "-public"}
"""The ports of a process, and what follows its name in the certificate's file."""
_OF_NODES: Final = ("nodes", "frames", "kafka", "mtls")
_ASK_WHO: Final = ("nodes", "rpc", "frames", "mtls")
"""The ports where a certificate is the login; etcd's too."""
_LOOK_S: Final = 2.0
_OF_STRANGERS: Final = "of-strangers"
"""The topic that must not come to be."""


class Trust:
    """Files and users of one world."""

    def __init__(self, folder: Path, cluster_id: str, processes: Mapping[str, Process], login: Login) -> None:
        self._processes = processes
        self._cluster_id = cluster_id
        self._login = login
        self.secure = SecureFolder(Folder(folder), lambda process: (processes[process.name].host, "localhost"))
        self._passwords = folder / "passwords"
        self._tokens = folder / "tokens"

    # --- files

    def prepare(self, bootstrap: str, proxied: bool) -> None:
        """Before the first process starts."""
        self._proxied = proxied
        for made in (self._passwords, self._tokens):
            made.mkdir(mode=0o700)
        self.secure.prepare(self._cluster_id, self.states(), bootstrap)
        self._issue_programs()
        if self._login == "token":
            self._make_issuer()

    def states(self) -> list[ProcessState]:
        """The processes as a local cluster has them."""
        found = []
        for process in self._processes.values():
            role: Role = process.kind  # type: ignore[assignment]
            found.append(ProcessState(process.name, role, process.node_id, 0, 0, 0))
        return found

    def renew(self) -> None:
        """New certificates for everything. Raises RuntimeError if one is the former."""
        former = {path: path.read_bytes() for path in self._certificates()}
        self.secure.renew(self._cluster_id, self.states())
        self._issue_programs()
        kept = [path.name for path in self._certificates() if path.read_bytes() == former[path]]
        if kept or not former:
            raise RuntimeError(f"certificates that were not replaced: {', '.join(kept) or 'there are none'}")

    def _certificates(self) -> list[Path]:
        """Of the processes and programs."""
        owners = [*self._processes, *map(name_of, range(PROGRAMS))]
        return [
            path for owner in owners for suffix in ("", "-public")
            if (path := self.secure.file(f"{owner}{suffix}.crt")).exists()]

    def _issue_programs(self) -> None:
        clients = self.secure.authority(CLIENTS)
        for number in range(PROGRAMS):
            clients.issue(f"CN={name_of(number)}", use="client").write(self.secure.path, name_of(number))
        if self._proxied:
            clients.issue("CN=proxy", ["127.0.0.1"], use="server").write(self.secure.path, "proxy")

    def file(self, name: str) -> str:
        return str(self.secure.file(name))

    @property
    def etcd_options(self) -> list[str]:
        return self.secure.etcd_options()

    def prepare_store(self, endpoint: str) -> None:
        """Once etcd answers. Blocks."""
        from hapax.local.store_setup import prepare_store

        prepare_store(self.secure, endpoint, self._cluster_id)

    def store_certificates(self) -> TlsCertificates:
        return TlsCertificates(
            TlsOptions(chain_location=self.file(f"{ETCD_ROOT}.crt"), key_location=self.file(f"{ETCD_ROOT}.key"),
                       authorities_location=self.file(f"{SERVICES}.crt")), "client", "harness")

    def http(self) -> ssl.SSLContext:
        """For a look at a process's HTTP port."""
        return self.secure.trust()

    # --- settings

    def node_settings(self, process: Process) -> dict[str, object]:
        state = next(each for each in self.states() if each.name == process.name)
        ports = process.ports
        found: dict[str, object] = {
            **DEFAULTS, **self.secure.settings(state), "listener.security.protocol.map": _LISTENERS_MAP,
            f"listener.name.{CERTIFIED_LISTENER.lower()}.ssl.client.auth": "required",
            "ssl.reload.interval.ms": RELOAD_MS,
        }
        host, used = "127.0.0.1", (0, 0, 0)
        if process.kind in ("broker", "coordinator"):
            host, used = process.host, (ports["nodes"], ports["kafka"], ports["mtls"])
        names = (NODES_LISTENER, CLIENTS_LISTENER, CERTIFIED_LISTENER)
        where = {name: f"{host}:{port}" for name, port in zip(names, used, strict=True)}
        found["listeners"] = _listeners(where)
        if "proxy" in ports:
            found["advertised.listeners"] = _listeners({**where, CLIENTS_LISTENER: f"127.0.0.1:{ports['proxy']}"})
        if self._login == "token":
            prefix = f"listener.name.{CLIENTS_LISTENER.lower()}.sasl"
            found |= {
                f"{prefix}.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
                f"{prefix}.oauthbearer.expected.issuer": _ISSUER, f"{prefix}.oauthbearer.expected.audience": _AUDIENCE,
                f"{prefix}.oauthbearer.jwks.endpoint.url": (self._tokens / "keys.json").as_uri(),
            }
        return found

    def proxy(self) -> dict[str, str]:
        return {"certificate": self.file("proxy.crt"), "key": self.file("proxy.key"),
                "authorities": self.file(f"{CLIENTS}.crt")}

    def harness(self) -> dict[str, str]:
        """Of a client that may do everything, without the addresses."""
        found = read_properties(self.secure.profile)
        del found["bootstrap.servers"]
        return found

    def by_certificate(self, name: str) -> bool:
        """Whether a program proves itself by its certificate. The proxy could not show that to a node."""
        return self._login == "mixed" and not self._proxied and number_of(name) % 2 == 1

    def program(self, name: str) -> dict[str, str]:
        """Settings of the native client for a program, without the addresses."""
        own = name_of(number_of(name))
        found = {"ssl.ca.location": self.file(f"{CLIENTS}.crt")}
        if self.by_certificate(name):
            return found | {
                "security.protocol": "SSL", "ssl.certificate.location": self.file(f"{own}.crt"),
                "ssl.key.location": self.file(f"{own}.key")}
        found["security.protocol"] = "SASL_SSL"
        if self._login == "token":
            return found | {
                "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.file": str(self._tokens / own)}
        return found | {
            "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": own, "sasl.password.file": str(self._passwords / own)}

    # --- users

    async def make_users(self, admin: Admin) -> None:
        if self._login == "token":
            self.write_tokens(TOKENS_LAST_S)
        for number in range(PROGRAMS):
            await self.set_password(admin, name_of(number))

    async def set_password(self, admin: Admin, name: str) -> None:
        """A new one. First the program's file, then the cluster, so that no login fails with a former one for long."""
        password = secrets.token_urlsafe(12)
        replace_file(self._passwords / name, password.encode(), 0o600)
        await admin.alter_user_scram_credentials([ScramUpsertion(name, ScramMechanism.SCRAM_SHA_512, password)])

    @staticmethod
    async def remove(admin: Admin, name: str) -> None:
        await admin.alter_user_scram_credentials([ScramDeletion(name, ScramMechanism.SCRAM_SHA_512)])

    # --- permissions

    @staticmethod
    async def permit(admin: Admin, programs: Iterable[str], topics: Iterable[str], group: str) -> None:
        """What these programs need. `group`: of members; empty: each program has its own."""
        topics = list(topics)
        await admin.create_acls([
            binding
            for program in programs
            for binding in (
                *(allowed(program, ResourceType.TOPIC, topic, operation)
                  for topic in topics for operation in (Operation.READ, Operation.WRITE)),
                allowed(program, ResourceType.GROUP, group or f"group-of-{program}", Operation.READ),
                allowed(program, ResourceType.TRANSACTIONAL_ID, program, Operation.WRITE),
            )
        ])

    # --- tokens

    def _make_issuer(self) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec
        from jwt.algorithms import ECAlgorithm

        self._signs = ec.generate_private_key(ec.SECP256R1())
        key = json.loads(ECAlgorithm.to_jwk(self._signs.public_key())) | {"kid": _KEY_ID}
        (self._tokens / "keys.json").write_text(json.dumps({"keys": [key]}))

    def write_tokens(self, seconds: float) -> None:
        """New tokens for all programs, which end after that time."""
        import jwt

        now = time.time()
        for number in range(PROGRAMS):
            claims = {"iss": _ISSUER, "aud": _AUDIENCE, "sub": name_of(number), "iat": now, "exp": now + seconds}
            token = jwt.encode(claims, self._signs, "ES256", headers={"kid": _KEY_ID})
            replace_file(self._tokens / name_of(number), token.encode(), 0o600)

    # --- look

    async def open_to(self, bootstrap: str) -> list[str]:
        """What a stranger, or a program before it has a permission, may do in this world. Empty: it is closed."""
        found = []
        for process in self._processes.values():
            for use in ("kafka",) if process.kind == "etcd" else _SHOWN_BY:
                if use in _OF_NODES and process.kind not in ("broker", "coordinator", "etcd"):
                    continue
                if await _answers_plaintext(process.address(use)):
                    found.append(f"{process.name} {use} answers without TLS")
                elif (use in _ASK_WHO or process.kind == "etcd") and await _lets_in(process.address(use)):
                    found.append(f"{process.name} {use} asks for no certificate")
        harness = {**self.harness(), "bootstrap.servers": bootstrap}
        trusting = {name: value for name, value in harness.items() if not name.startswith("sasl.")}
        guess = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": name_of(0), "sasl.password": "guess"}
        tries = {
            "a wrong password": ({**trusting, **guess}, ErrorCode.SASL_AUTHENTICATION_FAILED),
            "a program without a permission": (
                {**self.program("c0-0"), "bootstrap.servers": bootstrap}, ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
        for who, (settings, code) in tries.items():
            try:
                async with Admin(settings) as admin:
                    await admin.create_topics([_OF_STRANGERS])
            except HapaxError as error:
                if error.code != code:
                    found.append(f"{who}: {error} in place of {code.name}")
            else:
                found.append(f"{who} creates a topic")
        return found

    async def outdated(self) -> list[str]:
        """The ports that do not show their present certificate."""
        found = []
        for process in self._processes.values():
            for use, suffix in ({"kafka": ""} if process.kind == "etcd" else _SHOWN_BY).items():
                if use in _OF_NODES and process.kind not in ("broker", "coordinator", "etcd"):
                    continue
                wanted = ssl.PEM_cert_to_DER_cert(self.secure.file(f"{process.name}{suffix}.crt").read_text())
                if await _shown(process.address(use)) != wanted:
                    found.append(f"{process.name} {use}")
        return found


def name_of(number: int) -> str:
    return f"program-{number}"


def number_of(program: str) -> int:
    """Of the user of a program, from the end of its name. A feeder has none and gets the last."""
    found = re.search(r"-(\d+)(?:-again)?$", program)
    return PROGRAMS - 1 if found is None else int(found[1]) % PROGRAMS


def allowed(program: str, kind: ResourceType, name: str, operation: Operation) -> Binding:
    return Binding(
        kind, name, Pattern.LITERAL, user(name_of(number_of(program))), "*", operation, Permission.ALLOW)


def exactly(binding: Binding) -> Filter:
    """Selects this one alone."""
    return Filter(
        binding.kind, binding.name, binding.pattern, binding.principal, binding.host, binding.operation,
        binding.permission)


def _listeners(where: Mapping[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in where.items())


async def _answers_plaintext(address: tuple[str, int]) -> bool:
    """Whether there is more than an alert or the end."""
    try:
        async with asyncio.timeout(_LOOK_S):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")  # ApiVersions
                answer = await reader.read(100)
            finally:
                writer.transport.abort()
    except ConnectionResetError:
        return False
    return bool(answer) and answer[:1] != b"\x15" and not answer.startswith(b"HTTP/1.0 400")


def _trusting_anyone() -> ssl.SSLContext:
    """Of a client without a certificate that looks at no server's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _lets_in(address: tuple[str, int]) -> bool:
    """Whether there is no alert for a client without a certificate."""
    try:
        async with asyncio.timeout(_LOOK_S):
            reader, writer = await asyncio.open_connection(*address, ssl=_trusting_anyone())
            try:
                await reader.read(1)
            finally:
                writer.transport.abort()
    except ssl.SSLError:
        return False
    except TimeoutError:
        pass
    return True


async def _shown(address: tuple[str, int]) -> bytes:
    """The certificate that a port shows; empty: none now."""
    try:
        async with asyncio.timeout(_LOOK_S):
            _, writer = await asyncio.open_connection(*address, ssl=_trusting_anyone())
            try:
                return writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return b""



"""A client that writes each frame of a login itself, honestly or not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import struct
from types import TracebackType
from typing import Any

from clients.logins import PASSWORD, Logins
from hapax.wire import messages
from integration.waiting import wait_until

_KEYS = {"SaslHandshake": (17, 9), "SaslAuthenticate": (36, 2), "ApiVersions": (18, 3), "Metadata": (3, 9),
         "Produce": (0, 9), "Fetch": (1, 12), "InitProducerId": (22, 2), "AddPartitionsToTxn": (24, 3),
         "WriteTxnMarkers": (27, 1), "CreateAcls": (30, 2)}
"""Name -> key, first flexible version."""
_ILLEGAL_STATE = 34


class RawClient:
    """One connection under TLS."""

    def __init__(self, users: Logins) -> None:
        context = ssl.create_default_context(cafile=str(users.tls.folder / "ca.crt"))
        plain = socket.create_connection(("127.0.0.1", users.tls.port), timeout=30)
        self._socket = context.wrap_socket(plain, server_hostname="127.0.0.1")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def write(self, content: bytes) -> None:
        self._socket.sendall(content)

    def send(
        self, name: str, version: int, correlation_id: int = 7, client_id: bytes | None = None, **fields: Any
    ) -> None:
        key, flexible_from = _KEYS[name]
        flexible = version >= flexible_from
        body = bytes(getattr(messages, f"{name}Request")(**fields).encode(version=version))
        head = struct.pack(">hhih", key, version, correlation_id, -1 if client_id is None else len(client_id))
        frame = head + (client_id or b"") + (b"\0" if flexible else b"") + body
        self.write(struct.pack(">i", len(frame)) + frame)

    def frame(self) -> bytes | None:
        """None: the connection is closed."""
        head = self._read(4)
        return None if head is None else self._read(*struct.unpack(">i", head))

    def _read(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            try:
                more = self._socket.recv(size - len(found))
            except (ConnectionError, ssl.SSLError):
                return None
            if not more:
                return None
            found += more
        return found

    def answer(self, name: str, version: int) -> Any:
        """None: the connection is closed."""
        frame = self.frame()
        if frame is None:
            return None
        flexible = version >= _KEYS[name][1] and name != "ApiVersions"
        return getattr(messages, f"{name}Response").decode(memoryview(frame)[5 if flexible else 4 :], version=version)

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        self.send(name, version, **fields)
        return self.answer(name, version)

    # --- logins -------------------------------------------------------------------------------------------------

    def handshake(self, mechanism: str) -> int:
        code: int = self.ask("SaslHandshake", 1, mechanism=mechanism).error_code
        return code

    def authenticate(self, token: bytes) -> Any:
        return self.ask("SaslAuthenticate", 2, auth_bytes=token)

    def begin(self, mechanism: str) -> None:
        """A handshake that is accepted: a login again waits until the former one is a second old."""
        codes: list[int] = []

        def answered() -> bool:
            codes.append(self.handshake(mechanism))
            return codes[-1] != _ILLEGAL_STATE

        wait_until(answered, "a handshake")
        assert codes[-1] == 0

    def plain(self, name: str, password: str = PASSWORD, authzid: str = "") -> Any:
        self.begin("PLAIN")
        return self.authenticate(f"{authzid}\0{name}\0{password}".encode())

    def bearer(self, token: str, authzid: str = "") -> Any:
        """The last answer; the client acknowledges a refusal, as the RFC wants it."""
        self.begin("OAUTHBEARER")
        identity = f"a={authzid}" if authzid else ""
        answer = self.authenticate(f"n,{identity},\x01auth=Bearer {token}\x01\x01".encode())
        return self.authenticate(b"\x01") if answer.error_code == 0 and answer.auth_bytes else answer

    def scram(self, name: str, password: str = PASSWORD, *, header: bytes = b"n,,", nonce: Any = None,
              mechanism: str = "SCRAM-SHA-256") -> list[Any]:
        """All answers after the handshake's. `nonce`: what becomes of the whole nonce."""
        self.begin(mechanism)
        bare = b"n=%s,r=client" % name.encode()
        first = self.authenticate(header + bare)
        if first.error_code:
            return [first]
        last = final_message(bare, bytes(first.auth_bytes), password, header, nonce, mechanism)
        return [first, self.authenticate(last)]

    @property
    def closed(self) -> bool:
        return self.frame() is None


def final_message(
    bare: bytes, challenge: bytes, password: str, header: bytes = b"n,,", nonce: Any = None,
    mechanism: str = "SCRAM-SHA-256",
) -> bytes:
    digest = "sha" + mechanism.rpartition("-")[2]
    fields = dict(part.split(b"=", 1) for part in challenge.split(b","))
    whole = fields[b"r"] if nonce is None else nonce(fields[b"r"])
    without = b"c=%s,r=%s" % (base64.b64encode(header), whole)
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(fields[b"s"]), int(fields[b"i"]))
    key = hmac.digest(salted, b"Client Key", digest)
    said = bare + b"," + challenge + b"," + without
    signature = hmac.digest(hashlib.new(digest, key).digest(), said, digest)
    return without + b",p=" + base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))

"""A real cluster with a listener under mTLS, and the files that its clients need."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import NamedTuple

from hapax.local.authority import Authority
from hapax.local.folder import hold_port

NODES = (0, 1, 2, 100, 101)
"""Ids of brokers and coordinators that a test may start."""
SECOND = 200
"""From the first port of a listener to that of a second one, where a test has it."""
_HELD: list[socket.socket] = []


class Secured(NamedTuple):
    """Files of an authority, `ca.crt`, `node.crt`, `node.key`, and of a client, `client.crt`, `client.key` and both in
    `client.pem`; and the listener's first port, that of node 0."""

    folder: Path
    authority: Authority
    port: int

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def settings(self, *more: str) -> list[str]:
        """Of a local cluster that has the listener besides its own."""
        return [
            f"listeners=SSL://127.0.0.1:{self.port}+node.id", "listener.name.ssl.ssl.client.auth=required",
            f"ssl.certificate.location={self.folder / 'node.crt'}", f"ssl.key.location={self.folder / 'node.key'}",
            f"ssl.truststore.location={self.folder / 'ca.crt'}", *more]

    def renew(self, name: str) -> None:
        """Gives `node` or `client` a new certificate and key of the same names."""
        if name == "node":
            issued = self.authority.issue("CN=node,O=hapax", ["127.0.0.1", "localhost"])
        else:
            issued = self.authority.issue("CN=client,O=shop", use="client")
        issued.write(self.folder, name)
        (self.folder / f"{name}.pem").write_bytes(issued.key + issued.certificate)

    @property
    def client(self) -> dict[str, str]:
        """Settings of the native client, and of Kafka's."""
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.folder / "ca.crt"),
            "ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.folder / "client.pem"),
        }

    def file(self) -> Path:
        """`client` as a file of properties."""
        path = self.folder / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self.client.items()))
        return path


def secured(folder: Path) -> Secured:
    authority = Authority.make()
    made = Secured(folder, authority, free_ports())
    (folder / "ca.crt").write_bytes(authority.certificate)
    made.renew("node")
    made.renew("client")
    return made


def free_ports() -> int:
    """The first port of a listener `...:PORT+node.id`. As the nodes bind theirs some time later, all of them are held
    until this process ends."""
    while True:
        first = 20_000 + secrets.randbelow(12_000)  # below the ports that the system gives to clients
        held: list[socket.socket] = []
        try:
            for node in NODES:
                held += hold_port(first + node)
                held += hold_port(first + SECOND + node)
        except OSError:
            for each in held:
                each.close()
            continue
        _HELD.extend(held)
        return first

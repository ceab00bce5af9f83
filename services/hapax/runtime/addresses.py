"""Addresses of listeners, as settings have them."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from hapax.core.hosts import plain_host
from hapax.runtime.security_settings import PLAINTEXT

_LISTENER_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,30}")


class Address(tuple[str, int]):
    """`host:port` of a listener or an advertised address; port 0 picks a free one."""

    @property
    def host(self) -> str:
        return self[0]

    @property
    def port(self) -> int:
        return self[1]

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Accepts `host:port`, `[v6]:port` and Kafka's `PLAINTEXT://host:port`. Raises ValueError."""
        protocol, separator, rest = text.strip().rpartition("://")
        if separator and protocol.upper() != PLAINTEXT:
            raise ValueError(f"listener protocol {protocol!r} is not supported, only PLAINTEXT")
        host, colon, port = rest.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is not host:port")
        return cls((host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)))


def parse_listeners(text: str, node_id: int = 0) -> dict[str, Address]:
    """By name, the nodes' own first. Raises ValueError."""
    found: dict[str, Address] = {}
    for part in text.split(","):
        name, separator, rest = part.strip().rpartition("://")
        name = name.upper() if separator else PLAINTEXT
        if not _LISTENER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a listener")
        if name in found:
            raise ValueError(f"two listeners are named {name}")
        address, plus, _ = rest.partition("+node.id")
        parsed = Address.parse(address)
        found[name] = Address((parsed.host, parsed.port + node_id)) if plus else parsed
    return found


def host_of(peer: str) -> str:
    """The IP address of `host:port`, in the one spelling that access rules use."""
    return plain_host(peer.rpartition(":")[0].strip("[]"))


def source_of(peer: str) -> str:
    """What counts as one address: for IPv6 a network, since a host may have a whole one."""
    return network_of(peer.rpartition(":")[0].strip("[]"))


def network_of(host: str) -> str:
    """The same for an address without a port."""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/64", strict=False))
    except ValueError:
        return host



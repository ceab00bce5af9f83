"""What the client touches the world through: three of the five ports, the real ones unless others are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hapax.runtime.ports import Clock, Network, Randomness


class ClientPorts(Protocol):
    """`hapax.runtime.ports.Ports` satisfies it; so does `Environment`."""

    @property
    def clock(self) -> Clock: ...
    @property
    def network(self) -> Network: ...
    @property
    def random(self) -> Randomness: ...


@dataclass(frozen=True, slots=True)
class Environment:
    clock: Clock
    network: Network
    random: Randomness


def real_ports() -> Environment:
    """This machine's clock, sockets and randomness. Imported late: gRPC is only needed for Hapax's own calls."""
    import random

    from hapax.runtime.clock import SystemClock
    from hapax.runtime.network import TcpNetwork

    return Environment(SystemClock(), TcpNetwork(), random.SystemRandom())

"""The client's access to the world: three of the five ports, the real ones unless others are given."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from hapax.runtime.clock import SystemClock
from hapax.runtime.ports import Clock, Network, Randomness


class ClientPorts(Protocol):
    """Implemented by `hapax.runtime.ports.Ports` and by `Environment`."""

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


class RealPorts:
    """This machine's clock, sockets and randomness. The network is made at its first use, inside the loop that it
    belongs to, because a client may be made before there is a loop."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.random: Randomness = random.SystemRandom()

    @cached_property
    def network(self) -> Network:
        from hapax.runtime.network import TcpNetwork

        return TcpNetwork()

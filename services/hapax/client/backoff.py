"""Pauses between attempts of a client."""

from __future__ import annotations

from hapax.client.environment import ClientPorts
from hapax.client.settings import Options


class Backoff:
    """Pauses that double from retry.backoff.ms to retry.backoff.max.ms, each varied randomly by up to 20 %."""

    def __init__(self, options: Options, ports: ClientPorts) -> None:
        self._next: float = options["retry.backoff.ms"]
        self._most: float = max(options["retry.backoff.max.ms"], self._next)
        self._random = ports.random

    def seconds(self) -> float:
        pause = self._next * self._random.uniform(0.8, 1.2) / 1000
        self._next = min(self._next * 2, self._most)
        return pause

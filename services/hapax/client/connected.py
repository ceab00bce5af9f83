"""What admin clients, consumers, leases and multi-writers have in common: a cluster, a beginning and an end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from hapax.client.cluster import ClusterClient
from hapax.client.environment import ClientPorts, RealPorts
from hapax.client.errors import WrongState
from hapax.client.settings import Options


class Connected:
    """`async with ...`, or `start()` and `close()`; once only."""

    def __init__(self, options: Options, timeout_ms: int, ports: ClientPorts | None) -> None:
        self._options = options
        self._timeout = timeout_ms
        """How long a call may take, attempts and all, ms."""
        self._ports = ports or RealPorts()
        self._cluster = ClusterClient(options, self._ports)
        self._started = self._closed = False

    async def start(self) -> Self:
        """Finds the cluster. Raises HapaxError."""
        if self._started:
            raise WrongState("started before; make a new one")
        self._started = True
        try:
            await self._cluster.start()
            await self._after_start()
        except BaseException:
            await self._cluster.close()
            raise
        return self

    async def close(self) -> None:
        """Disconnects. Closing twice is harmless."""
        if self._started and not self._closed:
            self._closed = True
            await self._before_close()
            await self._cluster.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _after_start(self) -> None:
        """What a subclass needs besides a cluster that answers."""

    async def _before_close(self) -> None:
        """What a subclass has to finish. Must not raise."""

    def _check_usable(self) -> None:
        if self._closed or not self._started:
            raise WrongState("closed" if self._closed else "not started")

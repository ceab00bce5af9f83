"""What admin clients, consumers, leases and multi-writers share: a cluster, a start and an end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from hapax.client.cluster import ClusterClient
from hapax.client.environment import ClientPorts, RealPorts
from hapax.client.errors import WrongState
from hapax.client.settings import Options


class Connected:
    """`async with ...`, or `start()` and `close()`. An object can be started only once."""

    def __init__(self, options: Options, timeout_ms: int, ports: ClientPorts | None) -> None:
        self._options = options
        self._timeout = timeout_ms
        """How long a call may take, including all attempts, in ms."""
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
        """Disconnects, even if this call is cancelled. Closing twice is harmless."""
        if self._started and not self._closed:
            self._closed = True
            try:
                await self._before_close()
            finally:
                await self._cluster.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _after_start(self) -> None:
        """The subclass's own preparation, once the cluster answers."""

    async def _before_close(self) -> None:
        """The subclass's own cleanup. Must not raise."""

    def _check_usable(self) -> None:
        if self._closed or not self._started:
            raise WrongState("closed" if self._closed else "not started")

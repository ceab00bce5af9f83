"""What every handler works with: the image of the cluster, and clients that are there when there is a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from hapax.admin.problems import unavailable
from hapax.admin.shared import Shared
from hapax.client import Admin, Leases
from hapax.codec.metadata import Role
from hapax.runtime import supervision
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Ports
from hapax.runtime.settings import Settings

T = TypeVar("T")

_HEAVY_AT_ONCE: Final = 4
_KAFKA_ROLES: Final[tuple[Role, ...]] = ("broker", "coordinator")


class Clients:
    """One admin client and one for leases, made at their first use and made anew when nothing that they know
    answers any more."""

    def __init__(self, ports: Ports, view: ClusterView, call_ms: int) -> None:
        self._ports = ports
        self._view = view
        self._call_ms = call_ms
        self._admin: asyncio.Future[Admin] | None = None
        self._left: list[asyncio.Future[Admin]] = []
        """Clients that were replaced; calls may still run on them."""
        self._began_with: list[str] = []
        self._leases: asyncio.Future[Leases] | None = None

    async def admin(self) -> Admin:
        """Raises Problem, HapaxError."""
        if self._admin is None or _failed(self._admin) or self._all_moved():
            self._admin = supervision.judged(Admin(self._options(), ports=self._ports).start())
        return await asyncio.shield(self._admin)

    async def leases(self) -> Leases:
        """Raises Problem, HapaxError."""
        if self._leases is None or _failed(self._leases):
            self._leases = supervision.judged(Leases(self._options(), ports=self._ports).start())
        return await asyncio.shield(self._leases)

    async def call(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """`work` with the admin client. Raises Problem, HapaxError."""
        return await work(await self.admin())

    async def close(self) -> None:
        for made in (self._admin, self._leases, *self._left):
            if made is not None:
                made.cancel()
                for client in await asyncio.gather(made, return_exceptions=True):
                    if isinstance(client, Admin | Leases):
                        await client.close()
        self._admin = self._leases = None

    def _addresses(self) -> list[str]:
        return [f"{node.host}:{node.port}" for role in _KAFKA_ROLES for node in self._view.nodes(role)]

    def _all_moved(self) -> bool:
        """The client asks the nodes that it knows for the others; when none of those it began with is there any more,
        it may be that it knows nobody."""
        assert self._admin is not None
        addresses = self._addresses()
        if not self._admin.done() or not addresses or any(each in self._began_with for each in addresses):
            return False
        self._left.append(self._admin)
        return True

    def _options(self) -> dict[str, object]:
        self._began_with = self._addresses()
        if not self._began_with:
            raise unavailable("no broker and no coordinator is alive")
        return {
            "bootstrap.servers": ",".join(self._began_with),
            "client.id": "hapax-admin",
            "request.timeout.ms": min(5_000, self._call_ms),
            "default.api.timeout.ms": self._call_ms,
        }


def _failed(made: asyncio.Future[T]) -> bool:
    return made.done() and (made.cancelled() or made.exception() is not None)


@dataclass(slots=True)
class Context:
    ports: Ports
    settings: Settings
    view: ClusterView
    clients: Clients
    shared: Shared
    heavy: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_HEAVY_AT_ONCE))
    """Held by what reads records: so much of it runs at once, and the rest waits its turn within its time-out."""



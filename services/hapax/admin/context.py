"""What every handler uses: the view of the cluster, and clients, which are created when the first node is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from hapax.admin.coalescing import QueryCoalescer
from hapax.admin.idempotency import Idempotency
from hapax.admin.problems import unavailable
from hapax.client import Admin, Leases
from hapax.codec.metadata import Role
from hapax.runtime import supervision
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Ports
from hapax.runtime.settings import Settings

T = TypeVar("T")

_HEAVY_AT_ONCE: Final = 4
_KAFKA_ROLES: Final[tuple[Role, ...]] = ("broker", "coordinator")


class _Client(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Client)


class _Made(Generic[C]):
    """A client that is created at its first use, and replaced when none of its first nodes is alive any more."""

    def __init__(self, make: Callable[[list[str]], Coroutine[Any, Any, C]]) -> None:
        self._make = make
        self._made: asyncio.Future[C] | None = None
        self._left: list[asyncio.Future[C]] = []
        """Clients that were replaced; calls may still run on them."""
        self._began_with: list[str] = []

    async def get(self, addresses: list[str]) -> C:
        """Raises Problem, HapaxError."""
        if self._made is None or _failed(self._made) or self._all_moved(self._made, addresses):
            if not addresses:
                raise unavailable("no broker and no coordinator is alive")
            if self._made is not None and not _failed(self._made):
                self._left.append(self._made)
            self._began_with = addresses
            self._made = supervision.judged(self._make(addresses))
        return await asyncio.shield(self._made)

    async def close(self) -> None:
        for made in (self._made, *self._left):
            if made is not None:
                made.cancel()
                for client in await asyncio.gather(made, return_exceptions=True):
                    if not isinstance(client, BaseException):
                        await client.close()
        self._made = None

    def _all_moved(self, made: asyncio.Future[C], addresses: list[str]) -> bool:
        """The client learns of other nodes from the nodes that it knows. If none of its first nodes is left, it may
        know no node that is alive."""
        return made.done() and bool(addresses) and not any(each in self._began_with for each in addresses)


class Clients:
    """One admin client and one for leases."""

    def __init__(self, ports: Ports, view: ClusterView, call_ms: int, given: Mapping[str, str] | None = None) -> None:
        """`given`: settings of a client, from `admin.client.config`; its `bootstrap.servers` replaces the addresses
        that the nodes use among themselves."""
        self._given = given or {}
        self._view = view
        self._call_ms = call_ms
        self._admin = _Made(lambda addresses: Admin(self._options(addresses), ports=ports).start())
        self._leases = _Made(lambda addresses: Leases(self._options(addresses), ports=ports).start())

    async def admin(self) -> Admin:
        """Raises Problem, HapaxError."""
        return await self._admin.get(self._addresses())

    async def leases(self) -> Leases:
        """Raises Problem, HapaxError."""
        return await self._leases.get(self._addresses())

    async def call(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """`work` with the admin client. Raises Problem, HapaxError."""
        return await work(await self.admin())

    async def close(self) -> None:
        await self._admin.close()
        await self._leases.close()

    def _addresses(self) -> list[str]:
        told = self._given.get("bootstrap.servers", "")
        if told:
            return [each.strip() for each in told.split(",")]
        return [f"{node.host}:{node.port}" for role in _KAFKA_ROLES for node in self._view.nodes(role)]

    def _options(self, addresses: list[str]) -> dict[str, object]:
        return {
            **self._given,
            "bootstrap.servers": ",".join(addresses),
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
    coalesced: QueryCoalescer
    keys: Idempotency
    heavy: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_HEAVY_AT_ONCE))
    """Limits how many queries that read records run at once. Others wait for it within their time-out."""

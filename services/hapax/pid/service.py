"""The PID allocator: blocks of producer ids for nodes, and single ones on lease for producers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from hapax.codec.metadata import PidLeaseRecord
from hapax.pid.blocks import BlockAllocator
from hapax.pid.leased_partitions import LeasedPartitions
from hapax.pid.leases import Leases
from hapax.pid.rpc_api import RpcApi
from hapax.runtime import supervision, telemetry
from hapax.runtime.asker import ASKER
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import MetadataUnavailable, Ports, Task
from hapax.runtime.registration import Registration
from hapax.runtime.settings import Settings
from hapax.runtime.starting import start_node
from hapax.wire.metrics import FENCINGS
from hapax.wire.rpc_node import RpcNode

log = telemetry.logger("pid")

_FENCE_TIMEOUT_S: Final = 10.0
_FORGET_AFTER_MS: Final = 30 * 86_400_000
_TIDY_EVERY_S: Final = 3600.0
_RPC_GRACE_S: Final = 1.0


class PidService:
    """Composed by `start`. `ready()` is "" while it serves; `close()` gives the registration up at once."""

    def __init__(
        self, ports: Ports, settings: Settings, view: ClusterView, on_lost: Callable[[str], None],
        metrics: telemetry.Metrics,
    ) -> None:
        self.view = view
        self._settings = settings
        self._random = ports.random
        self._audit = ports.audit
        self._on_lost = on_lost
        self._node = RpcNode("pid", ports, settings, view, metrics)
        self._tidier: Task | None = None
        self._takeovers = metrics.counters(FENCINGS).labels("lease_taken")
        self.blocks = BlockAllocator(ports.metadata, view.keys, view.rollback_guard, ports.random)
        self.leases = Leases(
            ports.metadata, view.keys, ports.clock, self.blocks, LeasedPartitions(ports.network, view),
            max_expire_ms=settings.pid_lease_max_ms,
            rest_after_ms=settings.producer_id_expiration_ms // 2,
            forget_after_ms=_FORGET_AFTER_MS,
            fence_timeout_s=_FENCE_TIMEOUT_S,
            taken_over=self._taken_over,
        )
        self._api = RpcApi(self.blocks, self.leases, view, settings.pid_block_size, ports.random, metrics,
            self._node.record, ports.audit)

    @property
    def registration(self) -> Registration | None:
        return self._node.registration

    @property
    def rpc_address(self) -> str:
        return self._node.rpc_address

    @property
    def public_rpc_address(self) -> str:
        return self._node.public_rpc_address

    def ready(self) -> str:
        return "" if self.registration is not None else "registration"

    async def serve(self, identity: str, http_address: str) -> None:
        with contextlib.suppress(MetadataUnavailable):  # checked again at every block
            await self.blocks.check()
        await self._node.serve(
            self._api.handlers(), self._api.public_handlers(), self.ready, identity, http_address, self._on_lost,
            self._api.lease_topics)
        self._tidier = supervision.keep(self._tidy, "lease-tidier", self._random)

    async def drain(self) -> None:
        """Nothing waits here for long: what runs is finished by `close`."""

    async def close(self) -> None:
        await supervision.end(self._tidier)
        await self._node.close(_RPC_GRACE_S)
        await self.view.close()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_EVERY_S * (0.5 + self._random.random()))
            try:
                await self.leases.tidy()
            except (MetadataUnavailable, TimeoutError) as error:
                log.warning("leases were not tidied", error=error)

    def _taken_over(self, lease: PidLeaseRecord, former_holder: str, outcome: str) -> None:
        asker = ASKER.get()
        self._audit.record(
            "lease_taken_over", asker.principal, asker.address, call=asker.call, outcome=outcome, lease=lease.name,
            old={"holder": former_holder}, new={
                "holder": lease.holder, "producer_id": lease.producer_id, "generation": lease.generation})
        if outcome != "done":
            return
        self._takeovers.add()
        self._node.record(
            "lease_taken_over", name=lease.name, producer_id=lease.producer_id, generation=lease.generation,
            by=lease.holder, former_holder=former_holder)


async def start(
    ports: Ports, settings: Settings, *, on_lost: Callable[[str], None], http_address: str = "",
    metrics: telemetry.Metrics | None = None,
) -> PidService:
    """Returns once the allocator serves and is registered. `on_lost` is called with one sentence when it must end.

    Raises FolderRefused, StoreRefused, NodeIdTaken, OSError.
    """
    collected = metrics or telemetry.Metrics()
    return await start_node(
        ports, settings, http_address, on_lost, lambda view: PidService(ports, settings, view, on_lost, collected))

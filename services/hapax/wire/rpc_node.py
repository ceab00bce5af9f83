"""A node that answers gRPC calls and has no Kafka listener: a PID allocator or a controller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hapax.codec.metadata import NodeRecord, Role
from hapax.core.types import NodeId
from hapax.runtime import telemetry
from hapax.runtime.access import access_of
from hapax.runtime.addresses import Address
from hapax.runtime.call_listeners import CallListeners, listen_for_calls
from hapax.runtime.cluster import ClusterView
from hapax.runtime.node_ids import open_ids
from hapax.runtime.ports import Ports, RpcHandler
from hapax.runtime.public_access import LeaseTopics
from hapax.runtime.registration import Registration, register
from hapax.runtime.settings import Settings
from hapax.wire.events import MAX_QUEUED, EventLog


class RpcNode:
    """The node's listeners, its registration, and the events that it records."""

    def __init__(
        self, role: Role, ports: Ports, settings: Settings, view: ClusterView, metrics: telemetry.Metrics
    ) -> None:
        self.registration: Registration | None = None
        self._role = role
        self._ports = ports
        self._settings = settings
        self._view = view
        self._metrics = metrics
        self._calls: CallListeners | None = None
        self._events: EventLog | None = None
        self._early: deque[tuple[str, dict[str, object]]] = deque(maxlen=MAX_QUEUED)
        """Events from before the registration, which events are written under."""

    @property
    def rpc_address(self) -> str:
        return "" if self._calls is None else self._calls.rpc_address

    @property
    def public_rpc_address(self) -> str:
        return "" if self._calls is None else self._calls.public_rpc_address

    async def serve(
        self, internal: dict[str, RpcHandler], public: dict[str, RpcHandler], ready: Callable[[], str], identity: str,
        http_address: str, on_lost: Callable[[str], None], lease_topics: LeaseTopics | None = None,
    ) -> None:
        """Listens first, because the ports are part of the registration. `ready`: what the service waits for, "" once
        it serves. Raises NodeIdTaken, OSError."""
        ports, settings = self._ports, self._settings
        calls = self._calls = await listen_for_calls(
            ports.network, settings, ready, internal=internal, public=public,
            access=access_of(settings, self._view, ports.audit), scram=self._view.scram, ports=ports,
            lease_topics=lease_topics)
        record = NodeRecord(
            NodeId(settings.node_id), self._role, Address.parse(calls.rpc_address).host, 0, calls.rpc_address,
            http_address, rack=settings.broker_rack or "", identity=identity,
            public_rpc_address=calls.public_rpc_address,
        )
        registration = self.registration = await register(
            ports.metadata, self._view.keys, record, random=ports.random, on_lost=on_lost,
            ttl_s=settings.broker_session_timeout_ms / 1000, among=open_ids(settings))
        self._events = EventLog(
            ports.network, ports.clock, self._view, ports.random, registration.record.node_id, registration.epoch,
            registration.record.session, self._metrics)
        while self._early:
            kind, fields = self._early.popleft()
            self._events.record(kind, **fields)

    def record(self, kind: str, **fields: object) -> None:
        """Records one of the cluster's events. Calls are answered before the node is registered, and the registration
        may wait for the end of another process's lease: events from before it are recorded after it."""
        if self._events is None:
            self._early.append((kind, fields))
        else:
            self._events.record(kind, **fields)

    async def close(self, grace_s: float) -> None:
        """`grace_s`: seconds that calls in progress have to finish."""
        if self._events is not None:
            await self._events.close()
        if self.registration is not None:
            await self.registration.close()
        if self._calls is not None:
            await self._calls.close(grace=grace_s)

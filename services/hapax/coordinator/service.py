"""The coordinator: owns shards of transactional ids and of consumer groups, and serves them.

`start` composes it from ports, so that the simulator runs the same code. The order matters. The listener starts before
the node registers, because its port is part of the registration. Shards come after the registration: they are assigned
to its epoch, and its session proves their writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from hapax.codec.metadata import NodeRecord, ShardKind
from hapax.coordinator.group_api import GroupApi, listing, protocol_of
from hapax.coordinator.groups import OffsetsShard
from hapax.coordinator.hanging import HangingTransactions
from hapax.coordinator.kafka_api import KafkaApi
from hapax.coordinator.log_reader import LogReader
from hapax.coordinator.log_writer import LogWriter
from hapax.coordinator.markers import MarkerSender
from hapax.coordinator.metrics import (
    GROUP_MEMBERS,
    GROUPS,
    IN_STATE,
    LATE,
    SHARDS,
    SHARDS_LOADING,
    TRANSACTIONAL_IDS,
    Counters,
)
from hapax.coordinator.peers import OffsetsVerifier, WinnersOfPartitions
from hapax.coordinator.rpc_api import RpcApi
from hapax.coordinator.shard import ShardResources
from hapax.coordinator.shards import Shards
from hapax.coordinator.sweep import Sweep
from hapax.coordinator.transactions import Reserve, TxnShard
from hapax.core.transaction.requests import Limits
from hapax.core.transaction.states import State
from hapax.core.types import Millis, NodeId, ShardId
from hapax.kafka.api import transaction_call
from hapax.kafka.node import node_table, server_limits
from hapax.kafka.registry import register_other_roles
from hapax.kafka.security import listener_securities
from hapax.kafka.server import KafkaServer
from hapax.runtime import telemetry
from hapax.runtime.call_listeners import CallListeners, listen_for_calls
from hapax.runtime.cluster import ClusterView
from hapax.runtime.handover import hand_over, shards_finished
from hapax.runtime.lingering import left, owners, taken_over
from hapax.runtime.ports import Ports
from hapax.runtime.producer_ids import ProducerIds
from hapax.runtime.registration import Registration, register
from hapax.runtime.settings import Settings
from hapax.runtime.starting import start_node
from hapax.wire.events import EventLog

log = telemetry.logger("coordinator")

_RPC_GRACE_S: Final = 1.0
_SWEPT_AT_ONCE: Final = 256
_LATE_AFTER_MS: Final = 1000
"""A transaction is aborted within a second of its limit."""


class CoordinatorService:
    """`start` composes it. `drain` ends it cleanly, `close` at once."""

    def __init__(
        self, ports: Ports, settings: Settings, view: ClusterView, on_lost: Callable[[str], None],
        metrics: telemetry.Metrics,
    ) -> None:
        self.settings = settings
        self.view = view
        self.node_id = NodeId(settings.node_id)
        self.registration: Registration | None = None
        self.shards = Shards(view, self.node_id)
        self.producer_ids = ProducerIds(
            ports.network, view, self.node_id, ports.random, block_size=settings.pid_block_size
        )
        self.sweep = Sweep(self.shards, ports.random)
        self.rpc = RpcApi(self.shards, view, ports.clock, ports.audit)
        self.counters = Counters(metrics)
        self._ports = ports
        self._on_lost = on_lost
        self._ending = False
        self._left = False
        self._owned: Mapping[tuple[ShardKind, ShardId], NodeId] = {}
        """Who owned which shard when this coordinator was asked to end."""
        self._writer: LogWriter | None = None
        self._markers: MarkerSender | None = None
        self._events: EventLog | None = None
        self._calls: CallListeners | None = None
        table = node_table(self.node_id, view, ports.network, settings, broker=False, audit=ports.audit)
        KafkaApi(self.shards, view, ports.clock, self.producer_ids).register(table)
        GroupApi(self.shards, view, ports.random).register(table)
        transaction_call.register(table, view, self.rpc.framed_handlers())
        register_other_roles(table)
        self.server = KafkaServer(
            ports.network, table, server_limits(settings), metrics, listener_securities(settings, view.scram, ports),
            ports.random, ports.audit)
        self._metrics = metrics
        metrics.observe(SHARDS, self.shards.owned)
        metrics.observe(TRANSACTIONAL_IDS, self.shards.transactional_ids)
        metrics.observe(SHARDS_LOADING, self.shards.not_serving)
        metrics.sweep((IN_STATE, LATE), self._sweep)
        metrics.sweep((GROUPS, GROUP_MEMBERS), self._sweep_groups)

    def _sweep(self, samples: Sequence[list[telemetry.Sample]]) -> Iterator[None]:
        """Counts the transactions by state, and those that are open past their time-out."""
        counts: Counter[State] = Counter()
        late = 0
        for shard in self.shards.serving_txn_shards():
            now = self._ports.clock.now_ms()
            for number, transaction in enumerate(list(shard.machine.transactions.values())):
                counts[transaction.state] += 1
                if transaction.is_open and not transaction.has_no_limit:
                    ends_ms = transaction.start_ms + max(transaction.limit_ms, transaction.timeout_ms)
                    late += now > ends_ms + _LATE_AFTER_MS
                if number % _SWEPT_AT_ONCE == 0:
                    yield
        samples[0] += [((state.kafka_name,), counts[state]) for state in State]
        samples[1].append(((), late))

    def _sweep_groups(self, samples: Sequence[list[telemetry.Sample]]) -> Iterator[None]:
        groups: Counter[tuple[str, str]] = Counter()
        members: Counter[str] = Counter()
        for shard in self.shards.serving_group_shards():
            for number, group_id in enumerate(list(shard.machine.groups())):
                listed = listing(shard, group_id)
                protocol = protocol_of(listed)
                groups[protocol, listed.state] += 1
                members[protocol] += shard.machine.members_of(group_id)
                if number % _SWEPT_AT_ONCE == 0:
                    yield
        samples[0] += sorted(groups.items())
        samples[1] += [((protocol,), count) for protocol, count in sorted(members.items())]

    def ready(self) -> str:
        """Returns "" when all shards are assigned and those of this node serve. Otherwise it names what is missing. A
        shard that is recorded for a former process of this node is about to be assigned again."""
        if self.registration is None:
            return "registration"
        if self._ending:
            return "the end of the process"
        cluster = self.view.cluster
        if cluster is None:
            return "cluster"
        given = [*self.view.shards("txn").values(), *self.view.shards("group").values()]
        if len(given) < cluster.txn_shards + cluster.group_shards or any(
            each.record.owner == self.registration.record.node_id
            and each.record.owner_registration != self.registration.epoch
            for each in given
        ):
            return "assignment of shards"
        return "shards" if self.shards.not_serving() else ""

    async def serve(self, identity: str, http_address: str) -> None:
        ports, settings, view = self._ports, self.settings, self.view
        calls = self._calls = await listen_for_calls(
            ports.network, settings, self.ready, internal=self.rpc.handlers(), public=self.rpc.public_handlers(),
            access=self.server.table.access, scram=view.scram, ports=ports)
        bound = await self.server.start_all(settings.kafka_addresses)
        advertised, *further = settings.advertised_kafka(bound).items()
        record = NodeRecord(
            self.node_id, "coordinator", *advertised[1],
            calls.rpc_address, http_address,
            rack=settings.broker_rack or "", identity=identity,
            listeners=tuple((name, *address) for name, address in further),
            public_rpc_address=calls.public_rpc_address, frames_address=calls.frames_address,
        )
        registration = self.registration = await register(
            ports.metadata, view.keys, record, random=ports.random, on_lost=self._on_lost,
            ttl_s=settings.broker_session_timeout_ms / 1000,
        )
        self.producer_ids.start()
        self._start_shards(registration)
        log.info("serving", address=str(advertised[1]), rpc=record.rpc_address)

    def _start_shards(self, registration: Registration) -> None:
        ports, settings, view = self._ports, self.settings, self.view
        proof = self.rpc.proof = (registration.epoch, registration.record.session)
        writer = self._writer = LogWriter(
            ports.network, ports.clock, view, self.node_id, *proof, self.counters, self._fault,
            settings.request_timeout_ms,
        )
        reader = LogReader(ports.network, view, self.node_id, settings.request_timeout_ms)
        events = self._events = EventLog(
            ports.network, ports.clock, view, ports.random, self.node_id, *proof, self._metrics)
        markers = self._markers = MarkerSender(
            ports.network, view, self.node_id, self.rpc.write_offsets_markers, self._fault
        )
        resources = ShardResources(
            self.node_id, settings, ports.clock, ports.random, view, writer, reader, self.counters,
            self._newest_connection,
            self._fault, self.server.table.access,
        )
        verifier = OffsetsVerifier(
            ports.network, view, self.node_id, ports.random, self.rpc.verify_partitions
        )
        self.rpc.hanging = HangingTransactions(
            self.shards, view, ports.network, ports.clock, self.node_id, markers, events, self.counters.healed,
            ports.audit,
        )
        winners = WinnersOfPartitions(ports.network, view)
        reserve = Reserve(self.producer_ids)
        limits = limits_of(settings)
        self.sweep.start()
        self.shards.start(
            registration.epoch,
            lambda shard, epoch: TxnShard(
                resources, shard, epoch, limits, reserve, markers, winners, events, ports.audit),
            lambda shard, epoch: OffsetsShard(resources, shard, epoch, verifier),
        )

    def _fault(self, error: BaseException) -> None:
        """The state of a shard may differ from its log, so it must not answer any call."""
        self.shards.release("the process ends")
        self._on_lost(f"a fault of this program: {error!r}")

    def _newest_connection(self) -> int:
        return max((session.connection.serial for session in self.server.sessions), default=-1)

    async def drain(self) -> None:
        """Lets other nodes take the shards over, answers the calls that wait for the log, and releases the other
        shards."""
        self._owned = owners(self.view)
        if self.registration is not None:
            await hand_over(self.registration, self.view, shards_finished, self.settings.drain_timeout_ms / 2000)
        self._ending = True
        await self.sweep.close()
        await self.shards.drain()
        if self.registration is not None:
            await self.registration.close()
        self._left = await left(self.registration, self.view)

    def handed_over(self) -> bool:
        return self._left and taken_over(self.node_id, self._owned, owners(self.view))

    async def close(self) -> None:
        await self.sweep.close()
        self.shards.release("the process ends")
        if self.registration is not None:
            await self.registration.close()
        await self.server.close()
        for part in (self._markers, self._events, self._writer, self.producer_ids):
            if part is not None:
                await part.close()
        if self._calls is not None:
            await self._calls.close(grace=_RPC_GRACE_S)
        await self.view.close()


def limits_of(settings: Settings) -> Limits:
    """The settings that the transaction machine needs."""
    return Limits(
        max_timeout_ms=settings.transaction_max_timeout_ms,
        id_expiration_ms=settings.transactional_id_expiration_ms,
        token_id_expiration_ms=settings.transactional_token_expiration_ms,
        single_use_keep_ms=settings.transaction_single_use_retention_ms,
        hold_ms=Millis(settings.transaction_completion_wait_ms),
        max_scopes=settings.transaction_max_scopes,
        max_members=settings.transaction_max_members,
        two_phase_commit=settings.transaction_two_phase_commit_enable,
    )


async def start(
    ports: Ports, settings: Settings, *, on_lost: Callable[[str], None], http_address: str = "",
    metrics: telemetry.Metrics | None = None,
) -> CoordinatorService:
    """Returns once the coordinator listens and is registered. It is `ready()` when its shards serve.

    `on_lost` is called with one sentence when the process must end. Raises FolderRefused, StoreRefused, NodeIdTaken,
    OSError.
    """
    collected = metrics or telemetry.Metrics()
    return await start_node(
        ports, settings, http_address, on_lost,
        lambda view: CoordinatorService(ports, settings, view, on_lost, collected))

"""Carries out a plan's actions, with the calls by which nodes forward requests to the active controller."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

from hapax.client import Leases
from hapax.client.errors import HapaxError
from hapax.client.identities import Identities
from hapax.codec.metadata import PolicyRecord
from hapax.core.cluster.failover import FIT
from hapax.core.cluster.moves import Held, ImpossiblePlan, Targets, change_factor
from hapax.core.cluster.placement import Site
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Compare, Delete, MetadataStore, Put
from hapax_operator import plan_topic
from hapax_operator.conditions import Note
from hapax_operator.plan_brokers import DRAINED_BY, Drain, Undrain
from hapax_operator.plan_lease import Keep, Take
from hapax_operator.plan_producer import Fence
from hapax_operator.plan_topic import Action, Configure, Create, Grow, Replicate
from hapax_operator.resources import ProducerResource
from hapax_operator.topic_making import TopicMaker

TIMEOUT_MS: Final = 20_000
_SEEN_S: Final = 10.0


async def apply_to_topic(
    administration: Administration, maker: TopicMaker, view: ClusterView, topic: str, action: Action, uid: str
) -> Note:
    """`uid`: that of the resource. Returns the event to record. Raises Refusal, with the cluster's message."""
    match action:
        case Create(partitions, factor, config):
            spec = pb.TopicSpec(
                name=topic, partitions=partitions, replication_factor=factor, config=dict(config), made_by=uid)
            _check(await maker.create(spec))
            return Note("Normal", "TopicCreated", f"topic {topic} was created with {partitions} partitions")
        case Grow(partitions):
            _check((await administration.create_partitions({topic: partitions}, TIMEOUT_MS))[0])
            return Note("Normal", "PartitionsAdded", f"topic {topic} now has {partitions} partitions")
        case Configure(changes):
            change = pb.TopicConfigChange(
                topic=topic, set={name: value for name, value in changes.items() if value is not None},
                reset=[name for name, value in changes.items() if value is None])
            _check((await administration.alter_topic_configs([change], TIMEOUT_MS))[0])
            told = ", ".join(f"{name}={value}" if value is not None else f"{name} reset"
                             for name, value in changes.items())
            return Note("Normal", "Configured", f"topic {topic}: {told}")
        case Replicate(factor):
            await _replicate(administration, view, topic, factor)
            return Note("Normal", "ReplicasChanging", f"topic {topic} is being changed to {factor} replicas")
        case plan_topic.Delete(topic_id):
            (result,) = await administration.delete_topics([], [bytes.fromhex(topic_id)], TIMEOUT_MS)
            if result.error != ErrorCode.UNKNOWN_TOPIC_ID:  # otherwise it was already deleted
                _check(result)
            return Note("Normal", "TopicDeleted", f"topic {topic} and its records are deleted")


async def _replicate(administration: Administration, view: ClusterView, topic: str, factor: int) -> None:
    partitions = {}
    for each in view.topics():
        for index, partition in view.partitions_of(each.topic_id).items():
            record = partition.record
            staying = tuple(node for node in record.replicas if node not in record.removing)
            partitions[TopicPartition(each.name, PartitionIndex(index))] = Held(staying, tuple(record.isr))
    sites = [Site(node.node_id, node.record.rack) for node in view.nodes("broker") if view.rank(node) == FIT]
    try:
        targets = change_factor(partitions, topic, factor, sites)
    except ImpossiblePlan as error:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, str(error)) from None
    await apply_moves(administration, targets)


async def apply_drain(administration: Administration, action: Drain | Undrain) -> None:
    """Raises Refusal."""
    if isinstance(action, Drain):
        await administration.set_draining(action.brokers, True, TIMEOUT_MS, DRAINED_BY)
        return
    await administration.set_draining(action.brokers, False, TIMEOUT_MS)
    back = [pb.Reassignment(topic=name.topic, partition=name.partition) for name in action.cancel]
    if back:  # not a move that has just ended, or whose old replicas are gone: it continues
        await administration.alter_reassignments(back, TIMEOUT_MS)


async def apply_moves(administration: Administration, targets: Targets) -> None:
    """Starts the moves; the cluster completes them. Raises the first Refusal of the cluster."""
    moves = [
        pb.Reassignment(topic=name.topic, partition=name.partition, target=pb.Replicas(nodes=target))
        for name, target in targets.items()
    ]
    for result in await administration.alter_reassignments(moves, TIMEOUT_MS):
        if result.error:
            raise Refusal(ErrorCode(result.error), f"{result.topic}-{result.partition}: {result.reason}")


def _check(result: pb.TopicResult) -> None:
    if result.error:
        raise Refusal(ErrorCode(result.error), result.reason)


class PolicyWriter:
    """Writes policies to the metadata store, on condition that the policy is unchanged and this operator leads."""

    def __init__(self, store: MetadataStore, view: ClusterView, fences: Sequence[Compare]) -> None:
        self._store = store
        self._view = view
        self._fences = tuple(fences)

    async def store(self, uid: str, policy: PolicyRecord | None) -> None:
        """Returns when the view of the cluster includes the change. Raises MetadataUnavailable, Refusal."""
        key = self._view.keys.policy(uid)
        known = self._view.policies.get(uid)
        compare = Compare(key, "mod_revision", 0 if known is None else known.mod_revision)
        write = Delete(key) if policy is None else Put(key, policy.encode())
        result = await self._store.txn([*self._fences, compare], [write])
        await self._view.reached(result.revision, _SEEN_S)
        if not result.succeeded:
            raise Refusal(ErrorCode.CONCURRENT_TRANSACTIONS, "the policy was changed by another writer in the meantime")


async def apply_fence(identities: Identities, resource: ProducerResource, fence: Fence) -> int | None:
    """Fences that instance and aborts its open transaction, but no instance that has replaced it since. May be
    repeated. Returns the epoch after that; None if the named transaction has already ended. Raises HapaxError."""
    by = f"hapax-operator for {resource.meta.ref} ({fence.reason})"
    try:
        return await identities.fence(
            fence.transactional_id, fence.instance, by, socket.gethostname(), serial=fence.serial)
    except HapaxError as error:
        if fence.serial and error.code == ErrorCode.INVALID_TXN_STATE:
            return None
        raise


async def apply_lease(leases: Leases, action: Take | Keep) -> None:
    """Raises HapaxError, also if another program has taken the lease in the meantime."""
    lease = action.lease
    partitions = [_partition(each) for each in lease.partitions]
    if isinstance(action, Take):
        await leases.take(
            lease.name, partitions, expire_ms=lease.expire_s * 1000, holder="hapax-operator", unless_held=True)
    else:
        await leases.take(
            lease.name, partitions, expire_ms=lease.expire_s * 1000, resume=(action.producer_id, action.generation))


def _partition(name: str) -> TopicPartition:
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, PartitionIndex(int(index)))

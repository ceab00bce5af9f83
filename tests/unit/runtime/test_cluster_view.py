"""The image of the cluster: lookups, change reports, outages, compaction, and stores that went backwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hapax.codec.metadata import (
    ClusterRecord,
    ControllerRecord,
    DeletedTopicRecord,
    Keys,
    NodeRecord,
    PartitionRecord,
    PidCounterRecord,
    PolicyRecord,
    ShardRecord,
    TopicRecord,
)
from hapax.core.types import (
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    ProducerId,
    RegistrationEpoch,
    ShardEpoch,
    ShardId,
    TopicId,
    TopicIdPartition,
)
from hapax.kafka.api.find_coordinator import FindCoordinatorApi
from hapax.runtime.cluster import Changes, ClusterView
from hapax.runtime.disk import RealDisk, open_folder
from hapax.runtime.ports import Delete, Put, WatchEvent
from hapax.runtime.rollback_guard import RollbackGuard, StoreRefused
from hapax_sim.metadata import MemoryMetadata, MetadataModel

KEYS = Keys("c")
TOPIC = TopicId(b"t" * 16)


class Store:
    def __init__(self) -> None:
        self.model = MetadataModel()

    def put(self, key: str, record: object) -> int:
        return self.model.txn([], [Put(key, record.encode())]).revision  # type: ignore[attr-defined]

    def delete(self, key: str) -> int:
        return self.model.txn([], [Delete(key)]).revision

    def node(self, node_id: int, session: bytes = b"s" * 16) -> RegistrationEpoch:
        record = NodeRecord(NodeId(node_id), "broker", "h", 9092, f"h:{node_id}", session=session)
        return RegistrationEpoch(self.put(KEYS.node(NodeId(node_id)), record))

    def topic(self, partitions: int = 1) -> None:
        self.put(KEYS.topic("t"), TopicRecord(TOPIC, "t", partitions, 1))

    def partition(self, leader: int, registration: int, epoch: int = 0, accepted: int = 0, index: int = 0) -> int:
        return self.put(KEYS.partition(TOPIC, PartitionIndex(index)), PartitionRecord(
            NodeId(leader), LeaderEpoch(epoch), RegistrationEpoch(registration), (NodeId(leader),), (NodeId(leader),),
            LeaderEpoch(accepted)))

    async def view(self, **options: object) -> ClusterView:
        view = ClusterView(MemoryMetadata(self.model), "c", random.Random(1), **options)  # type: ignore[arg-type]
        await view.start()
        return view


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    opened = open_folder(str(tmp_path))
    yield opened
    opened.close()


async def test_lookups_by_every_name(store: Store) -> None:
    store.put(KEYS.cluster, ClusterRecord("c", 4, 4, 1))
    registration = store.node(0)
    store.topic()
    store.partition(0, registration)
    store.put(KEYS.shard("txn", ShardId(2)), ShardRecord(NodeId(0), registration, ShardEpoch(3)))
    store.put(KEYS.controller, ControllerRecord(NodeId(300), "h:1", RegistrationEpoch(1)))
    store.put(KEYS.deleted(TopicId(b"d" * 16)), DeletedTopicRecord(TopicId(b"d" * 16), "d", 1))
    store.put(Keys("cc").topic("other"), TopicRecord(TopicId(b"o" * 16), "other", 1, 1))
    view = await store.view()
    assert view.cluster == ClusterRecord("c", 4, 4, 1)
    assert [topic.name for topic in view.topics()] == ["t"]
    assert view.topic_by_id(TOPIC) is view.topic("t")
    assert view.is_deleted(TopicId(b"d" * 16)) and not view.is_deleted(TOPIC)
    leader = view.leader_of(TOPIC, 0)
    assert leader is not None and leader.registration == registration and leader is view.node(NodeId(0))
    assert view.registered(registration, b"s" * 16) is leader
    assert view.registered(registration, b"x" * 16) is None
    assert view.registered(RegistrationEpoch(registration + 1), b"s" * 16) is None
    assert view.txn_shard_owner(2) is leader and view.txn_shard_owner(1) is None and view.group_shard_owner(2) is None
    assert view.controller is not None and view.controller.create_revision > 0
    assert view.partition(TOPIC, 1) is None and view.partition(TopicId(b"x" * 16), 0) is None
    await view.close()


async def test_a_foreign_key_changes_nothing(store: Store) -> None:
    """Neither the first reading nor the watch fails at a key of the cluster's prefix that Hapax does not write."""
    store.put(KEYS.prefix + "nodes/before", ClusterRecord("c", 4, 4, 1))
    view = await store.view()
    store.put(KEYS.prefix + "partitions/xyz/1", ClusterRecord("c", 4, 4, 1))
    store.topic()
    await view.reached(store.model.revision, 5)
    assert view.topic("t") is not None and view.nodes() == []
    await view.close()


async def test_a_leader_counts_only_alive_accepted_and_under_its_registration(store: Store) -> None:
    registration = store.node(0)
    store.topic()
    view = await store.view()

    async def leader_after(revision: int) -> bool:
        await view.reached(revision, 5)
        return view.leader_of(TOPIC, 0) is not None

    assert not await leader_after(store.partition(0, registration, epoch=1, accepted=0))
    assert await leader_after(store.partition(0, registration, epoch=1, accepted=1))
    assert not await leader_after(store.partition(0, registration - 1, epoch=1, accepted=1))
    assert await leader_after(store.partition(0, registration, epoch=1, accepted=1))
    assert not await leader_after(store.delete(KEYS.node(NodeId(0))))
    store.node(0)  # another process under the same id
    assert not await leader_after(store.model.revision)
    await view.close()


async def test_who_waits_gets_what_it_waited_for_even_if_it_is_gone_again(store: Store) -> None:
    """Two batches of events in one turn of the loop: a shard's owner comes and dies."""
    shard = KEYS.shard("group", ShardId(0))
    store.put(KEYS.cluster, ClusterRecord("c", 1, 1, 1))
    view = await store.view()
    waiting = asyncio.ensure_future(view.wait_for(lambda view: view.group_shard_owner(0), 60))
    finding = asyncio.ensure_future(FindCoordinatorApi(view).handle(
        SimpleNamespace(api_version=4, listener="PLAINTEXT"),  # type: ignore[arg-type]
        SimpleNamespace(key_type=0, coordinator_keys=["g"])))
    await asyncio.sleep(0)
    assert view._follower is not None
    view._follower.cancel()
    registration = store.node(0)
    store.put(shard, ShardRecord(NodeId(0), registration, ShardEpoch(3)))
    found = [store.model.get(KEYS.node(NodeId(0))), store.model.get(shard)]
    view._apply_events([WatchEvent(kv.key, kv, kv.mod_revision) for kv in found if kv is not None])
    view._apply_events([WatchEvent(KEYS.node(NodeId(0)), None, store.delete(KEYS.node(NodeId(0))))])
    owner = await waiting
    assert owner is not None and owner.node_id == 0 and view.group_shard_owner(0) is None
    (coordinator,) = (await finding).coordinators
    assert (coordinator.error_code, coordinator.node_id) == (0, 0), "or an error, but never nobody without one"
    await view.close()


async def test_changes_are_reported_once_each_after_they_are_applied(store: Store) -> None:
    view = await store.view()
    reports: list[Changes] = []
    end = view.on_change(reports.append)
    registration = store.node(0)
    store.model.txn([], [
        Put(KEYS.topic("t"), TopicRecord(TOPIC, "t", 2, 1).encode()),
        *(Put(KEYS.partition(TOPIC, PartitionIndex(i)), PartitionRecord(
            NodeId(0), LeaderEpoch(0), registration, (NodeId(0),), (NodeId(0),)).encode()) for i in range(2)),
    ])
    await view.reached(store.model.revision, 5)
    assert [list(report.nodes) for report in reports] == [[0], []]
    assert list(reports[1].topics) == ["t"]
    assert list(reports[1].partitions) == [TopicIdPartition(TOPIC, PartitionIndex(i)) for i in range(2)]
    reports.clear()
    store.delete(KEYS.partition(TOPIC, PartitionIndex(0)))
    store.put(KEYS.pid_next, PidCounterRecord(ProducerId(5)))
    await view.reached(store.model.revision, 5)
    assert len(reports) == 1  # producer ids are nobody's business here
    assert view.partition(TOPIC, 0) is None and list(view.partitions_of(TOPIC)) == [1]
    end()
    await view.reached(store.node(1), 5)
    assert len(reports) == 1
    await view.close()


async def test_policies_are_followed(store: Store) -> None:
    store.put(KEYS.policy("1"), PolicyRecord("app", created="1", uid="1", max_timeout_ms=5))
    view = await store.view()
    reported: list[dict[str, None]] = []
    view.on_change(lambda changes: reported.append(changes.policies))
    assert view.policies.of("app").max_timeout_ms == 5
    written = store.put(KEYS.policy("1"), PolicyRecord("app", created="1", uid="1", max_timeout_ms=7))
    await view.reached(written)
    stored = view.policies.get("1")
    assert stored is not None and (stored.policy.max_timeout_ms, stored.mod_revision) == (7, written)
    await view.reached(store.delete(KEYS.policy("1")))
    assert view.policies.of("app").max_timeout_ms == 0 and reported == [{"1": None}, {"1": None}]
    await view.close()


async def test_wait_for_wakes_on_the_change_and_times_out_without_one(store: Store) -> None:
    view = await store.view()
    waiting = asyncio.ensure_future(view.wait_for(lambda v: v.node(NodeId(3)) is not None, 5))
    await asyncio.sleep(0)
    store.node(3)
    await waiting
    with pytest.raises(TimeoutError):
        await view.wait_for(lambda v: v.node(NodeId(4)) is not None, 0.01)
    await view.close()


async def test_what_happened_during_an_outage_is_reported_afterwards(store: Store) -> None:
    store.node(0)
    gone = store.node(1)
    view = await store.view()
    reports: list[Changes] = []
    view.on_change(reports.append)
    store.model.end_watches()
    store.delete(KEYS.node(NodeId(1)))
    changed = store.node(0, b"n" * 16)
    store.model.compact(store.model.revision)
    await view.reached(changed, 5)
    assert [sorted(report.nodes) for report in reports] == [[0, 1]]
    assert view.node(NodeId(1)) is None and view.registered(gone, b"s" * 16) is None
    await view.close()


async def test_an_outage_is_survived_with_the_last_image(store: Store) -> None:
    store.node(0)
    view = await store.view()
    store.model.stop()
    with pytest.raises(TimeoutError):
        await view.wait_for(lambda v: v.node(NodeId(1)) is not None, 0.05)
    assert view.node(NodeId(0)) is not None
    store.model.start()
    await view.reached(store.node(1), 5)
    await view.close()


async def test_start_waits_for_the_store(store: Store) -> None:
    store.model.stop()
    starting = asyncio.ensure_future(store.view())
    await asyncio.sleep(0.01)
    assert not starting.done()
    store.node(0)
    store.model.start()
    view = await starting
    assert view.node(NodeId(0)) is not None
    await view.close()


async def refused(store: Store, backwards: object) -> str:
    """Why a running view refuses after `backwards` happened to the store behind an outage."""
    end: asyncio.Future[StoreRefused] = asyncio.get_running_loop().create_future()
    view = await store.view(on_refused=end.set_result)
    await view.reached(store.node(7), 5)
    backwards()  # type: ignore[operator]
    store.model.end_watches()
    async with asyncio.timeout(5):
        reason = str(await end)
    await view.close()
    return reason


async def test_a_store_at_a_lower_revision_is_refused(store: Store) -> None:
    for _ in range(5):
        store.node(0)

    def restore() -> None:
        store.model.revision -= 2

    assert "at revision 5, but this node has seen 7" in await refused(store, restore)


async def test_a_store_that_lost_a_write_is_refused_even_at_a_higher_revision(store: Store) -> None:
    older = store.node(0)
    kv = store.model.get(KEYS.node(NodeId(0)))
    store.node(0)

    def restore() -> None:
        assert kv is not None and kv.mod_revision == older
        store.model._kvs[kv.key] = kv
        store.model.revision += 100

    assert "it lost writes" in await refused(store, restore)


async def test_another_clusters_store_is_refused(store: Store) -> None:
    store.put(KEYS.cluster, ClusterRecord("c", 4, 4, 1))
    reason = await refused(store, lambda: store.put(KEYS.cluster, ClusterRecord("c", 9, 9, 2)))
    assert "the cluster's record was" in reason


async def test_a_value_that_cannot_be_read_ends_the_service_rather_than_the_watch(store: Store) -> None:
    reason = await refused(store, lambda: store.model.txn([], [Put(KEYS.topic("t"), b'{"v":2}')]))
    assert "topic: not of version 1" in reason


# --- what is kept over a restart


async def test_a_restarted_node_refuses_a_store_behind_its_memory(store: Store, disk: RealDisk) -> None:
    for _ in range(9):
        store.node(0)
    view = await store.view(rollback_guard=RollbackGuard("c", disk))
    view.rollback_guard.note_producer_id(41)
    await view.close()

    remembered = RollbackGuard("c", disk)
    assert (remembered.revision, remembered.producer_id) == (10, 41)
    restored = Store()
    restored.node(0)
    with pytest.raises(StoreRefused, match="at revision 2, but this node has seen 10"):
        await restored.view(rollback_guard=remembered)
    with pytest.raises(StoreRefused, match="producer id 41, but 41 is in use"):
        remembered.check_producer_counter(41)
    remembered.check_producer_counter(42)
    with pytest.raises(StoreRefused, match="belongs to cluster 'c', not to 'other'"):
        RollbackGuard("other", disk)


async def test_a_store_that_would_hand_out_an_id_again_is_refused_whatever_its_revision(
    store: Store, disk: RealDisk
) -> None:
    store.put(KEYS.pid_next, PidCounterRecord(ProducerId(3000)))
    view = await store.view(rollback_guard=RollbackGuard("c", disk))
    assert view.producer_ids_below == 3000
    assert await view.check_producer_id(2999)
    await view.close()

    restored = Store()
    restored.put(KEYS.pid_next, PidCounterRecord(ProducerId(2000)))
    restored.model.revision += 1000
    with pytest.raises(StoreRefused, match="would hand out producer id 2000, but this node has seen those below 3000"):
        await restored.view(rollback_guard=RollbackGuard("c", disk))


async def test_an_id_in_a_log_beyond_the_counter_ends_the_service(store: Store) -> None:
    store.put(KEYS.pid_next, PidCounterRecord(ProducerId(2000)))
    refusals: list[StoreRefused] = []
    view = await store.view(on_refused=refusals.append)
    store.put(KEYS.pid_next, PidCounterRecord(ProducerId(3000)))
    assert await view.check_producer_id(2500), "the image may lag behind the store, which is asked then"
    assert refusals == []
    assert not await view.check_producer_id(3000)
    assert "would hand out producer id 3000, but 3000 is in a log here" in str(refusals)
    await view.close()


async def test_a_counter_that_goes_back_is_refused(store: Store) -> None:
    store.put(KEYS.pid_next, PidCounterRecord(ProducerId(2000)))
    reason = await refused(store, lambda: store.put(KEYS.pid_next, PidCounterRecord(ProducerId(1000))))
    assert "counter of producer ids went back from 2000 to 1000" in reason


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"cluster_id":"c","revision":"x","producer_id":1}'])
async def test_a_damaged_memory_is_not_taken_for_an_empty_one(disk: RealDisk, damage: bytes) -> None:
    await disk.write_atomically("metadata-seen.json", damage)
    with pytest.raises(StoreRefused, match="damaged"):
        RollbackGuard("c", disk)

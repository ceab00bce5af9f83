"""Which partitions a broker serves, under which epoch, and what becomes of their folders."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from hapax.broker.commit import Committer
from hapax.broker.copying import Copying
from hapax.broker.partitions import PartitionSet
from hapax.broker.replica_context import ReplicaContext
from hapax.broker.storage import StorageGuard
from hapax.codec.metadata import DeletedTopicRecord, Keys, NodeRecord, PartitionRecord, TopicRecord
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.verification import ShardEpochs
from hapax.core.types import LeaderEpoch, NodeId, PartitionIndex, RegistrationEpoch, TopicId, TopicIdPartition
from hapax.log.layout import INHERITED
from hapax.runtime.cluster import ClusterView
from hapax.runtime.disk import RealDisk
from hapax.runtime.ports import Delete, Put
from hapax.runtime.registration import Registration, register
from hapax.runtime.settings import Settings
from hapax_sim.metadata import MemoryMetadata, MetadataModel
from unit.broker.broker_fixtures import FakeClock, FaultyDisk, batch, unfollowing

NODE = NodeId(0)
KEYS = Keys("c")


class Broker:
    """One process's partitions, on a store that the test plays the controller of."""

    def __init__(self, disk: RealDisk, model: MetadataModel) -> None:
        self.disk: Any = FaultyDisk(disk) if isinstance(disk, RealDisk) else disk
        self.model = model
        self.store = MemoryMetadata(model)
        self.view = ClusterView(self.store, "c", random.Random(1))
        self.fatal: list[str] = []
        self.committer = Committer(self.disk, self.fatal.append)
        context = ReplicaContext(
            disk=self.disk, clock=FakeClock(), committer=self.committer,
            storage=StorageGuard(self.disk, random.Random(1)), shard_epochs=ShardEpochs(), ask=lambda *_: None,
            refused=lambda *_: None,
        )
        self.partitions = PartitionSet(
            context, self.view, self.store, Settings(), lambda: -1, unfollowing(self.view, self.committer))
        self.registration: Registration

    async def start(self) -> None:
        await self.view.start()
        await self.partitions.start()
        self.registration = await register(
            self.store, KEYS, NodeRecord(NODE, "broker", "h", 1, "h:2", identity="me"), random=random.Random(2),
            on_lost=self.fatal.append,
        )
        self.partitions.follow(self.registration)

    async def start_with_topic(self, **config: Any) -> TopicId:
        """Starts the broker with a topic `t` that it serves."""
        await self.start()
        topic_id = self.make_topic(**config)
        await self.served()
        return topic_id

    async def stop(self, *, clean: bool) -> None:
        if clean:
            await self.committer.drain()
            self.partitions.stop_serving()
            await self.partitions.close_cleanly()
        else:
            await self.partitions.abandon()
            for replica in self.partitions.replicas.values():
                replica.log.close()
        await self.registration.close()
        await self.view.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Conditions that follow from a change of the store: looked at after each turn of the loop."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - nothing announces what the broker has done with a folder
                await asyncio.sleep(0)

    async def served(self, name: str = "t", partition: int = 0) -> None:
        """Until the store has this broker's word for it."""
        topic = self.view.topic(name)
        await self.until(lambda: (topic or self.view.topic(name)) is not None)
        topic = self.view.topic(name)
        assert topic is not None

        def accepted() -> bool:
            assigned = self.view.partition(topic.topic_id, partition)
            return assigned is not None and assigned.record.accepted and self.leads(name, partition)

        await self.until(accepted)

    def leads(self, name: str = "t", partition: int = 0) -> bool:
        return (name, partition) in self.partitions.by_name

    # --- the controller's part

    def assign(
        self, topic_id: TopicId, partition: int = 0, *, epoch: int = 0, leader: NodeId = NODE,
        registration: int | None = None,
    ) -> None:
        record = PartitionRecord(
            leader, LeaderEpoch(epoch),
            self.registration.epoch if registration is None else RegistrationEpoch(registration), (NODE,), (NODE,),
        )
        self.model.txn([], [Put(KEYS.partition(topic_id, PartitionIndex(partition)), record.encode())])

    def make_topic(self, name: str = "t", *, number: int = 1, partitions: int = 1, **config: str) -> TopicId:
        topic_id = TopicId(bytes([number]) * 16)
        self.model.txn([], [Put(KEYS.topic(name), TopicRecord(topic_id, name, partitions, 1, config).encode())])
        for partition in range(partitions):
            self.assign(topic_id, partition)
        return topic_id

    def delete_topic(self, topic_id: TopicId, name: str = "t") -> None:
        self.model.txn([], [
            Delete(KEYS.topic(name)), Delete(KEYS.partition(topic_id, PartitionIndex(0))),
            Put(KEYS.deleted(topic_id), DeletedTopicRecord(topic_id, name, 0).encode()),
        ])

    def replace_topic(self, former: TopicId, name: str = "t", *, number: int = 2) -> TopicId:
        """Deletes it and makes another of its name: the broker hears of both at once."""
        topic_id, first = TopicId(bytes([number]) * 16), PartitionIndex(0)
        record = PartitionRecord(NODE, LeaderEpoch(0), self.registration.epoch, (NODE,), (NODE,))
        self.model.txn([], [
            Put(KEYS.deleted(former), DeletedTopicRecord(former, name, 0).encode()),
            Delete(KEYS.partition(former, first)),
            Put(KEYS.topic(name), TopicRecord(topic_id, name, 1, 1).encode()),
            Put(KEYS.partition(topic_id, first), record.encode()),
        ])
        return topic_id

    async def write(self, count: int = 1) -> None:
        replica = self.partitions.find("t", 0)
        for _ in range(count):
            replica.produce(memoryview(batch()), _Ignored(), 0)
        await self.committer.drain()

    def end_offset(self) -> int:
        return self.partitions.find("t", 0).machine.high_watermark


class _Ignored:
    def settle(self, number: int, result: object) -> None: ...


@pytest.fixture
async def begin(folder: RealDisk) -> AsyncIterator[Callable[[], Broker]]:
    model = MetadataModel()
    made: list[Broker] = []

    def make() -> Broker:
        made.append(Broker(folder, model))
        return made[-1]

    yield make
    await made[-1].stop(clean=False)


async def test_a_new_topic_is_served_and_accepted(begin: Callable[[], Broker]) -> None:
    broker = begin()
    await broker.start()
    assert broker.partitions.settled()
    broker.make_topic(partitions=3)
    for partition in range(3):
        await broker.served(partition=partition)
    assert broker.partitions.settled()
    await broker.write()
    with pytest.raises(Refusal) as refused:
        broker.partitions.find("t", 3)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(Refusal) as refused:
        broker.partitions.find(bytes(16), 0)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_new_partition_has_no_past_that_older_connections_could_speak_of(
    begin: Callable[[], Broker],
) -> None:
    """A client that creates a topic goes on with the connection that it has."""
    broker = begin()
    broker.partitions._newest_connection = lambda: 7
    topic_id = await broker.start_with_topic()
    replica = broker.partitions.find("t", 0)
    assert replica.newest_connection == -1
    replica.resign()
    assigned = broker.view.partition(topic_id, 0)
    assert assigned is not None
    broker.partitions._lead(replica, assigned)
    assert replica.newest_connection == 7, "what it knew of connections is lost"
    broker.assign(topic_id, epoch=1)
    await broker.until(lambda: replica.leader_epoch == 1)
    assert replica.newest_connection == 7


async def test_a_topic_that_is_made_again_has_the_past_of_its_name(begin: Callable[[], Broker]) -> None:
    """What was sent to the former topic may come late, over a connection that its client has given up. It names the
    topic by name, and the client's transaction of today may have the new topic's partition."""
    broker = begin()
    broker.partitions._newest_connection = lambda: 7
    former = await broker.start_with_topic()
    assert broker.partitions.find("t", 0).newest_connection == -1
    topic_id = broker.replace_topic(former)
    await broker.until(lambda: (topic_id, 0) in broker.partitions.by_id)
    assert broker.partitions.find("t", 0).newest_connection == 7


async def test_a_name_that_moved_away_before_it_was_made_again_has_its_past_too(begin: Callable[[], Broker]) -> None:
    broker = begin()
    broker.partitions._newest_connection = lambda: 7
    former = await broker.start_with_topic()
    broker.assign(former, leader=NodeId(9), epoch=1)
    await broker.until(lambda: not broker.partitions.by_name)
    broker.partitions._newest_connection = lambda: 9
    broker.partitions._withdraw(broker.partitions.replicas[TopicIdPartition(former, PartitionIndex(0))])
    broker.make_topic("u", number=3)
    await broker.until(lambda: ("u", 0) in broker.partitions.by_name)
    assert broker.partitions.find("u", 0).newest_connection == 7


async def test_a_leadership_after_the_first_knows_nothing_of_older_connections(begin: Callable[[], Broker]) -> None:
    broker = begin()
    broker.partitions._newest_connection = lambda: 7
    await broker.start()
    topic_id = broker.make_topic(partitions=2)
    broker.assign(topic_id, 0, epoch=1)  # another may have led under epoch 0
    await broker.served()
    assert broker.partitions.find("t", 0).newest_connection == 7


@pytest.mark.parametrize("clean", [True, False])
async def test_a_restarted_process_serves_nothing_under_its_old_epoch(begin: Callable[[], Broker], clean: bool) -> None:
    broker = begin()
    topic_id = await broker.start_with_topic()
    await broker.write(5)
    await broker.stop(clean=clean)
    again = begin()
    await again.start()
    assert not again.partitions.settled()
    assert again.partitions.replicas == {}
    again.assign(topic_id, epoch=1)
    await again.served()
    assert again.end_offset() == 5
    assert again.partitions.find("t", 0).leader_epoch == 1
    await again.write()
    assert [h[1] for h in again.partitions.find("t", 0).machine.leader_epochs.entries()] == [0, 5]


@pytest.mark.parametrize("first_clean", [True, False])
async def test_a_clean_stop_says_nothing_of_what_was_not_open(
    begin: Callable[[], Broker], folder: RealDisk, first_clean: bool
) -> None:
    """A crash, then a process that ends cleanly before it opened the partition: it still needs its scan."""
    broker = begin()
    topic_id = await broker.start_with_topic()
    await broker.write(5)
    await broker.stop(clean=first_clean)
    between = begin()
    await between.start()
    await between.stop(clean=True)
    assert folder.exists(".kafka_cleanshutdown")
    again = begin()
    await again.start()
    again.assign(topic_id, epoch=1)
    await again.served()
    assert again.end_offset() == 5
    sizes = again.partitions._clean
    assert ("t-0" in sizes) == first_clean


async def test_a_folder_that_changed_since_the_clean_stop_is_scanned(
    begin: Callable[[], Broker], folder: RealDisk
) -> None:
    broker = begin()
    topic_id = await broker.start_with_topic()
    await broker.write(5)
    await broker.stop(clean=True)
    folder.open(f"t-0/{0:020d}.log").append([b"something else"])
    again = begin()
    await again.start()
    again.assign(topic_id, epoch=1)
    await again.served()
    assert again.end_offset() == 5
    assert again.partitions.find("t", 0).log.active.size == 5 * len(batch())


async def test_a_partition_given_to_another_is_not_served(begin: Callable[[], Broker]) -> None:
    broker = begin()
    topic_id = await broker.start_with_topic()
    broker.assign(topic_id, epoch=1, leader=NodeId(7))
    await broker.until(lambda: not broker.leads())
    with pytest.raises(Refusal) as refused:
        broker.partitions.find("t", 0)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    broker.assign(topic_id, epoch=2)
    await broker.served()
    assert broker.partitions.find("t", 0).leader_epoch == 2


async def test_another_registration_of_this_node_is_another_node(begin: Callable[[], Broker]) -> None:
    broker = begin()
    await broker.start()
    topic_id = TopicId(bytes([1]) * 16)
    broker.model.txn([], [Put(KEYS.topic("t"), TopicRecord(topic_id, "t", 1, 1).encode())])
    broker.assign(topic_id, registration=broker.registration.epoch + 1)
    broker.make_topic("other", number=2)
    await broker.served("other")
    assert not broker.leads()


async def test_a_deleted_topics_folder_goes_and_its_name_begins_anew(
    begin: Callable[[], Broker], folder: RealDisk
) -> None:
    broker = begin()
    topic_id = await broker.start_with_topic()
    await broker.write(5)
    broker.delete_topic(topic_id)
    await broker.until(lambda: not any(name.startswith("t-0") for name in folder.list("")))
    broker.make_topic(number=2)
    await broker.served()
    assert broker.end_offset() == 0
    assert broker.fatal == []


async def test_a_topic_deleted_and_made_again_in_one_turn_gets_nothing_of_the_old_one(
    begin: Callable[[], Broker], folder: RealDisk
) -> None:
    """A checkpoint of the old one is at work: its snapshot must not come into the new folder."""
    broker = begin()
    topic_id = await broker.start_with_topic()
    await broker.write(5)
    old = broker.partitions.find("t", 0)
    broker.disk.hold_replacements()
    old.maintenance.begin_checkpoint()
    await broker.until(lambda: bool(broker.disk.held))
    new_id = broker.replace_topic(topic_id)
    await broker.until(lambda: any(known.topic_id == new_id for known in broker.partitions.replicas))
    broker.disk.release()
    await broker.served()
    await broker.write(2)
    await broker.until(lambda: [name for name in folder.list("") if name.startswith("t-0")] == ["t-0"])
    assert not [name for name in folder.list("t-0") if name.endswith(".snapshot")]
    assert broker.partitions.find("t", 0).id.topic_id == new_id
    assert broker.end_offset() == 2
    assert broker.fatal == []


async def test_a_log_that_is_being_cut_does_not_keep_its_name_from_the_next_topic(
    begin: Callable[[], Broker], folder: RealDisk
) -> None:
    broker = begin()
    topic_id = await broker.start_with_topic()
    await broker.write(5)
    old = broker.partitions.find("t", 0)
    broker.assign(topic_id, epoch=1, leader=NodeId(7))
    await broker.until(lambda: not broker.leads())
    copying = Copying(old, NodeId(7), LeaderEpoch(1))
    old.copying = copying
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        await old.log.folder.write_atomically(INHERITED, b"of the old one")
        await old.log.truncate_to(0)

    copying.begin(work(), lambda lost, error: None)
    new_id = broker.replace_topic(topic_id)
    await broker.until(lambda: any(known.topic_id == new_id for known in broker.partitions.replicas))
    await broker.served()
    await broker.write(2)
    go_on.set()
    await broker.until(lambda: [name for name in folder.list("") if name.startswith("t-0")] == ["t-0"])
    assert INHERITED not in folder.list("t-0")
    assert broker.end_offset() == 2
    assert folder.open(f"t-0/{0:020d}.log").size() == 2 * len(batch())
    assert broker.fatal == []


async def test_a_topic_deleted_while_the_broker_was_away(begin: Callable[[], Broker], folder: RealDisk) -> None:
    broker = begin()
    topic_id = await broker.start_with_topic()
    await broker.write(5)
    await broker.stop(clean=False)
    broker.delete_topic(topic_id)
    again = begin()
    again.registration = broker.registration
    again.make_topic(number=2)
    await again.start()
    again.assign(TopicId(bytes([2]) * 16), epoch=1)
    await again.served()
    assert again.end_offset() == 0
    await again.until(lambda: [name for name in folder.list("") if name.startswith("t-0")] == ["t-0"])


async def test_a_folder_of_an_unknown_topic_is_moved_away_not_removed(
    begin: Callable[[], Broker], folder: RealDisk
) -> None:
    """The store has lost a topic without a word of its deletion: its data is not ours to remove (rule 12)."""
    broker = begin()
    topic_id = await broker.start_with_topic()
    await broker.write(5)
    await broker.stop(clean=True)
    broker.model.txn([], [Delete(KEYS.topic("t")), Delete(KEYS.partition(topic_id, PartitionIndex(0)))])
    again = begin()
    await again.start()
    again.make_topic(number=2)
    await again.served()
    assert again.end_offset() == 0
    (stray,) = [name for name in folder.list("") if name.endswith("-stray")]
    assert f"{0:020d}.log" in folder.list(stray)


async def test_a_folder_that_a_crash_left_half_made(begin: Callable[[], Broker], folder: RealDisk) -> None:
    folder.make_folder("t-0")
    folder.open(f"t-0/{0:020d}.log", create=True).close()
    broker = begin()
    await broker.start_with_topic()
    await broker.write()
    assert "partition.metadata" in folder.list("t-0")


async def test_a_folder_that_does_not_say_whose_records_it_holds_is_not_begun_anew(
    begin: Callable[[], Broker], folder: RealDisk
) -> None:
    broker = begin()
    await broker.start_with_topic()
    await broker.write(5)
    await broker.stop(clean=True)
    held = folder.open(f"t-0/{0:020d}.log").size()
    folder.open("t-0/partition.metadata").truncate(3)
    again = begin()
    await again.start()
    await again.until(lambda: bool(again.partitions._unopened))
    assert not again.partitions.replicas
    assert folder.open(f"t-0/{0:020d}.log").size() == held


async def test_a_topics_configuration_is_followed(begin: Callable[[], Broker]) -> None:
    broker = begin()
    topic_id = await broker.start_with_topic(**{"segment.bytes": "1000"})
    replica = broker.partitions.find("t", 0)
    assert replica.log.config.segment_bytes == 1000
    record = TopicRecord(topic_id, "t", 1, 1, {"segment.bytes": "5000", "max.message.bytes": "77"})
    broker.model.txn([], [Put(KEYS.topic("t"), record.encode())])
    await broker.until(lambda: replica.log.config.segment_bytes == 5000)
    assert replica.settings.message_max_bytes == 77


async def test_acceptance_is_repeated_after_a_lost_answer(begin: Callable[[], Broker]) -> None:
    broker = begin()
    topic_id = await broker.start_with_topic()
    assigned = broker.view.partition(topic_id, 0)
    assert assigned is not None
    unaccepted = replace(assigned.record, accepted_epoch=LeaderEpoch(-1))
    broker.model.txn([], [Put(KEYS.partition(topic_id, PartitionIndex(0)), unaccepted.encode())])
    await broker.until(lambda: broker.view.leader_of(topic_id, 0) is not None)

"""Groups of native clients: what `test_groups.py` asks of librdkafka's members, and what only the native client has."""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from hapax.client import (
    AbortableError,
    FencedError,
    HapaxError,
    MembershipLostError,
    NewTopic,
    TopicPartition,
    WrongState,
)
from hapax.client.blocking import Admin, Consumer, Producer
from hapax.local.cluster import LocalCluster
from integration.polling import Polling
from integration.test_groups import FAST, Source, committed, ends, new_topic, produce, read, settled
from integration.waiting import nothing_is_open, wait_until

ClusterFactory = Callable[..., LocalCluster]
Settings = dict[str, object]


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def member_settings(bootstrap: str, group: str, protocol: str) -> Settings:
    settings: Settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "group.protocol": protocol,
        "enable.auto.commit": False, "isolation.level": "read_committed",
    }
    if protocol == "classic":
        settings |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    return settings


class Member(Polling):
    """A consumer that polls in a thread until it is closed."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, **settings: object) -> None:
        self.consumer = Consumer(
            member_settings(bootstrap, group, protocol) | {k.replace("_", "."): v for k, v in settings.items()})
        self.owned: frozenset[int] = frozenset()
        self.events: list[tuple[str, frozenset[int]]] = []
        self.values: list[bytes | None] = []
        self.commits = "enable_auto_commit" not in settings
        self.foreign = 0
        """Records of partitions that were not this member's."""
        self.hold = threading.Event()
        """While it is set, the program does not poll."""
        self.consumer.subscribe([topic], on_assigned=self._assigned, on_revoked=self._revoked, on_lost=self._lost)
        super().__init__()

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        assert not self.owned & {each.partition for each in partitions}
        self.owned |= {each.partition for each in partitions}
        self.events.append(("assigned", frozenset(each.partition for each in partitions)))

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        if self.commits:
            self.consumer.commit()  # a blocking call, and the partitions are still this member's
        self.owned -= {each.partition for each in partitions}
        self.events.append(("revoked", frozenset(each.partition for each in partitions)))

    def _lost(self, partitions: list[TopicPartition]) -> None:
        self.owned -= {each.partition for each in partitions}
        self.events.append(("lost", frozenset(each.partition for each in partitions)))

    def _run(self) -> None:
        with self.consumer:
            while not self._stop.is_set():
                if self.hold.is_set():
                    self._stop.wait(0.02)
                    continue
                records = self.consumer.poll(50)
                self.foreign += sum(record.partition not in self.owned for record in records)
                self.values += [record.value for record in records]
                if records and self.commits:
                    with contextlib.suppress(MembershipLostError):
                        self.consumer.commit()

    def close(self) -> None:
        super().close()
        assert self.foreign == 0


@pytest.fixture
def members() -> Iterator[list[Member]]:
    made: list[Member] = []
    yield made
    for member in made:
        member.close()


def shared(members: list[Member], partitions: int) -> bool:
    """Each partition has one owner, and every member has some."""
    for member in members:
        member.check()
    owned = Counter(partition for member in members for partition in member.owned)
    return owned == Counter(range(partitions)) and all(member.owned for member in members)


def test_members_share_the_partitions(cluster_factory: ClusterFactory, members: list[Member], protocol: str) -> None:
    """They come one after the other and leave; every record is read, and committed positions are taken over."""
    cluster = cluster_factory(settings=FAST)
    topic = new_topic(cluster.bootstrap, 6)
    sent = produce(cluster.bootstrap, topic, 0, 600, 6)
    for count in (1, 2, 3):
        members.append(Member(cluster.bootstrap, "g", topic, protocol))
        wait_until(lambda: shared(members, 6), f"share of {count} members")
    wait_until(lambda: set(sent) == {v for m in members for v in m.values}, "record read")
    members.pop(0).close()
    wait_until(lambda: shared(members, 6), "share of those that are left")
    more = produce(cluster.bootstrap, topic, 600, 600, 6)
    wait_until(lambda: set(more) <= {v for m in members for v in m.values}, "record after one left")
    wait_until(lambda: committed(cluster.bootstrap, topic, 6) == ends(cluster.bootstrap, topic, 6), "commit")
    while members:
        members.pop().close()
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        (group,) = admin.list_groups("g")
        assert group.members == 0


def test_a_group_survives_its_coordinator(
    cluster_factory: ClusterFactory, members: list[Member], protocol: str
) -> None:
    """The next coordinator knows the members: nobody loses a partition, and no round begins."""
    cluster = cluster_factory(coordinators=2, settings=FAST)
    topic = new_topic(cluster.bootstrap, 4)
    for _ in range(2):
        members.append(Member(cluster.bootstrap, "g", topic, protocol))
    wait_until(lambda: shared(members, 4), "share")
    before = [list(member.events) for member in members]
    for number, name in enumerate(("coordinator-0", "coordinator-1")):
        cluster.kill(name)
        sent = produce(cluster.bootstrap, topic, 1000 * number, 400, 4)
        wait_until(lambda: set(sent) <= {v for m in members for v in m.values}, "record")  # noqa: B023
        wait_until(lambda: committed(cluster.bootstrap, topic, 4) == ends(cluster.bootstrap, topic, 4), "commit")
        cluster.start(name)
        cluster.wait_ready()
    assert [member.events for member in members] == before
    assert sum(len(member.values) for member in members) == 800


class Copier(Polling):
    """Consume, process, produce: each batch in a transaction with its offsets."""

    def __init__(self, bootstrap: str, source: str, target: str, protocol: str, number: int) -> None:
        self.member = Consumer(member_settings(bootstrap, "copy", protocol))
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "transactional.id": f"copier-{number}-{uuid.uuid4().hex[:6]}"})
        self.member.subscribe([source])
        self.target = target
        self.transactions = self.aborted = 0
        super().__init__()

    def _run(self) -> None:
        with self.producer, self.member:
            while not self._stop.is_set():
                self._copy()

    def _copy(self) -> None:
        records = self.member.poll(100, max_records=20)
        if not records:
            return
        positions = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}  # type: ignore[arg-type]
        try:
            with self.producer.transaction():
                self.producer.send_many(self.target, [(None, record.value) for record in records])
                self.producer.send_offsets(positions, self.member.group_metadata())
            self.transactions += 1
        except AbortableError:
            self.aborted += 1
            owned = self.member.assignment()
            found = self.member.committed(owned)
            for each in owned:
                self.member.seek(each, found[each].offset if each in found else 0)


def test_rebalances_amid_transactions_lose_and_double_nothing(cluster_factory: ClusterFactory, protocol: str) -> None:
    """Four members come one after the other, each of the first three leaves, and a coordinator is killed."""
    cluster = cluster_factory(coordinators=2, settings=FAST)
    source, target = new_topic(cluster.bootstrap, 4), new_topic(cluster.bootstrap, 1)
    records = Source(cluster.bootstrap, source, 4)
    copiers = [Copier(cluster.bootstrap, source, target, protocol, 0)]
    records.start()

    def did(copier: Copier, transactions: int) -> bool:
        copier.check()
        return copier.transactions > transactions

    try:
        for number in range(1, 4):
            wait_until(lambda: did(copiers[-1], 3), "transaction")
            copiers.append(Copier(cluster.bootstrap, source, target, protocol, number))
            if number == 2:
                cluster.kill("coordinator-0")
                cluster.start("coordinator-0")
            wait_until(lambda: did(copiers[-1], 0), "first transaction")
            copiers.pop(0).close()
        records.end()
        wait_until(lambda: settled(cluster, source), "end")
    finally:
        records.end()
        for copier in copiers:
            copier.close()
    wait_until(lambda: nothing_is_open(cluster.bootstrap, target), "end of all transactions")
    assert Counter(read(cluster.bootstrap, target)) == Counter(records.sent)


def test_a_member_that_does_not_poll_is_left_behind_and_comes_back(
    cluster_factory: ClusterFactory, members: list[Member], protocol: str
) -> None:
    cluster = cluster_factory(settings=FAST)
    topic = new_topic(cluster.bootstrap, 4)
    for _ in range(2):
        members.append(Member(cluster.bootstrap, "g", topic, protocol, max_poll_interval_ms=7000))
    wait_until(lambda: shared(members, 4), "share")
    slow, other = members
    had = slow.owned
    stale = slow.consumer.group_metadata()
    slow.hold.set()
    wait_until(lambda: len(other.owned) == 4, "take-over")
    assert slow.owned == had, "no callback runs while the program is busy"
    with pytest.raises(MembershipLostError, match="is not assigned"):
        slow.consumer.commit({TopicPartition(topic, partition): 1 for partition in had})  # type: ignore[misc]
    zombie = slow.consumer.group_metadata()
    assert zombie.member_id == stale.member_id, "what was read before the loss must not be committed after it"
    with (
        Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "zombie"}) as producer,
        pytest.raises(AbortableError), producer.transaction(),
    ):
        producer.send_offsets({TopicPartition(topic, p): 1 for p in had}, zombie)  # type: ignore[misc]
    slow.hold.clear()
    wait_until(lambda: shared(members, 4), "share")
    assert ("lost", had) in slow.events


def test_static_members(cluster_factory: ClusterFactory, members: list[Member], protocol: str) -> None:
    """One that is closed and comes back has its partitions, and nobody else hears of it."""
    cluster = cluster_factory(settings=FAST)
    topic = new_topic(cluster.bootstrap, 4)
    for number in range(2):
        members.append(Member(cluster.bootstrap, "g", topic, protocol, group_instance_id=f"i{number}"))
    wait_until(lambda: shared(members, 4), "share")
    before, had = list(members[0].events), members[1].owned
    members.pop().close()
    members.append(Member(cluster.bootstrap, "g", topic, protocol, group_instance_id="i1"))
    wait_until(lambda: shared(members, 4), "share")
    assert members[1].owned == had and members[0].events == before
    if protocol == "classic":
        newer = Member(cluster.bootstrap, "g", topic, protocol, group_instance_id="i1")
        members.append(newer)
        fenced = members.pop(1)
        wait_until(lambda: fenced.failure is not None, "fence")
        assert isinstance(fenced.failure, FencedError)
        assert "'g'" in str(fenced.failure) and "'i1'" in str(fenced.failure)
        assert "give it a group.instance.id of its own" in str(fenced.failure)
        assert re.search(r"was taken by '[^']+' from 127\.0\.0\.1, as member 'i1-", str(fenced.failure))
        assert fenced.failure.by and fenced.failure.where == "127.0.0.1"


def test_a_pattern_finds_new_topics(cluster_factory: ClusterFactory, protocol: str) -> None:
    cluster = cluster_factory(settings=FAST)
    prefix = f"p{uuid.uuid4().hex[:8]}"
    settings = member_settings(cluster.bootstrap, "g", protocol) | {"metadata.max.age.ms": 1000}
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin, Consumer(settings) as consumer:
        assigned: set[str] = set()
        consumer.subscribe(pattern=f"{prefix}-.*", on_assigned=lambda given: assigned.update(p.topic for p in given))

        def read_until(topics: set[str]) -> None:
            wait_until(lambda: not consumer.poll(50) and assigned == topics, f"assignment of {topics}")

        admin.create_topics([NewTopic(f"{prefix}-a", 1, 1), NewTopic(f"{prefix}x", 1, 1)])
        read_until({f"{prefix}-a"})
        admin.create_topics([NewTopic(f"{prefix}-b", 1, 1)])
        read_until({f"{prefix}-a", f"{prefix}-b"})
        assert consumer.subscription() == f"{prefix}-.*"


def test_what_a_subscription_excludes(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(settings=FAST)
    topic = new_topic(cluster.bootstrap, 1)
    settings = {"bootstrap.servers": cluster.bootstrap}
    with Consumer(settings) as consumer, pytest.raises(WrongState, match=r"needs a group\.id"):
        consumer.subscribe([topic])
    with Consumer({**settings, "group.id": "g"}) as consumer:
        with pytest.raises(WrongState, match="either a list of topics or a pattern"):
            consumer.subscribe()
        with pytest.raises(HapaxError, match="is not a valid RE2 regular expression"):
            consumer.subscribe(pattern="(")
        consumer.assign([TopicPartition(topic, 0)])  # type: ignore[arg-type]
        with pytest.raises(WrongState, match="unsubscribe"):
            consumer.subscribe([topic])
        consumer.unsubscribe()
        polls: list[str] = []

        def assigned(partitions: list[TopicPartition]) -> None:
            with pytest.raises(WrongState, match="must not call poll"):
                consumer.poll(0)
            with pytest.raises(WrongState, match="must not call poll"):
                consumer.unsubscribe()
            polls.append("refused")
            raise ZeroDivisionError

        consumer.subscribe([topic], on_assigned=assigned)
        with pytest.raises(WrongState, match="has subscribed"):
            consumer.assign([TopicPartition(topic, 0)])  # type: ignore[arg-type]
        with pytest.raises(ZeroDivisionError):
            while True:
                consumer.poll(100)
        assert polls == ["refused"] and consumer.assignment() == [TopicPartition(topic, 0)]  # type: ignore[arg-type]
        consumer.unsubscribe()
        assert consumer.assignment() == [] and consumer.subscription() is None

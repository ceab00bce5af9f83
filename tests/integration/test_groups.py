"""Groups of real clients: members come, go, die, and their coordinator dies; each record is handled by one of them.

Each test runs with both protocols, spoken by librdkafka.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from hapax.cli.main import application
from hapax.client import HapaxError
from hapax.client import TopicPartition as NativePartition
from hapax.client.blocking import Admin
from hapax.local.cluster import LocalCluster
from integration.polling import Polling
from integration.waiting import nothing_is_open, wait_until

ClusterFactory = Callable[..., LocalCluster]
FAST = ["group.initial.rebalance.delay.ms=100", "group.consumer.heartbeat.interval.ms=500"]


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


UNDELIVERED = {
    KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._WAIT_COORD, KafkaError._NO_OFFSET,
    KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Errors of commits that did not reach a coordinator which could decide."""


class Member(Polling):
    """A consumer that polls in a thread until it is closed."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, **settings: object) -> None:
        config: dict[str, object] = {
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "group.protocol": protocol, "log_level": 0,
            "topic.metadata.refresh.interval.ms": 1000, "on_commit": self._committed,
        }
        self.refused: list[KafkaError] = []
        if protocol == "classic":
            config |= {"session.timeout.ms": 6000, "partition.assignment.strategy": "cooperative-sticky",
                       "heartbeat.interval.ms": 500}
        self.consumer = Consumer(config | settings)
        self.owned: frozenset[int] = frozenset()
        self.events: list[tuple[str, frozenset[int]]] = []
        self.values: list[bytes | None] = []
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        super().__init__()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned |= {each.partition for each in partitions}
        self.events.append(("assigned", frozenset(each.partition for each in partitions)))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned -= {each.partition for each in partitions}
        self.events.append(("revoked", frozenset(each.partition for each in partitions)))

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is not None and error.code() not in UNDELIVERED:
            self.refused.append(error)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                message = self.consumer.poll(0.05)
                if message is None:
                    # librdkafka does not repeat an asynchronous commit that finds no coordinator for too long, and
                    # it repeats one that is refused for a moment after later ones, which sets the position back. What
                    # is committed already, by its own account, it does not send again.
                    self.consumer.commit(asynchronous=True)
                    continue
                error = message.error()
                if error is None:
                    self.values.append(message.value())
                    self.consumer.commit(message=message, asynchronous=True)
                elif not error.retriable() and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
        finally:
            self.consumer.close()


@pytest.fixture
def members() -> Iterator[list[Member]]:
    made: list[Member] = []
    yield made
    for member in made:
        member.close()


def new_topic(bootstrap: str, partitions: int) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"log_level": 0, "bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        created.result(30)
    return name


def shared(members: list[Member], partitions: int) -> bool:
    """Each partition has one owner, and every member has some."""
    owned = Counter(partition for member in members for partition in member.owned)
    return owned == Counter(range(partitions)) and all(member.owned for member in members)


def produce(bootstrap: str, topic: str, first: int, count: int, partitions: int) -> list[bytes]:
    producer = Producer({"log_level": 0, "bootstrap.servers": bootstrap, "enable.idempotence": True})
    sent = [b"%d" % number for number in range(first, first + count)]
    for number, value in enumerate(sent):
        producer.produce(topic, value=value, partition=number % partitions)
    assert producer.flush(60) == 0
    return sent


LATER = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)
"""A coordinator that got no processor time for a lease is loading its groups. librdkafka's admin client does not ask
again."""


def deletion(admin: AdminClient, group: str) -> int:
    """The error code; 0: it is deleted."""
    try:
        admin.delete_consumer_groups([group])[group].result(30)
    except KafkaException as error:
        return int(error.args[0].code())
    return 0


def answered(codes: list[int], code: int) -> bool:
    codes.append(code)
    return code not in LATER


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

    admin = AdminClient({"log_level": 0, "bootstrap.servers": cluster.bootstrap})
    described = admin.describe_consumer_groups(["g"])["g"].result(30)
    assert described.state is ConsumerGroupState.STABLE and len(described.members) == 2
    listed = {each.group_id: each for each in admin.list_consumer_groups().result(30).valid}
    assert listed["g"].state is ConsumerGroupState.STABLE
    codes: list[int] = []
    wait_until(lambda: answered(codes, deletion(admin, "g")), "answer of the coordinator")
    assert codes[-1] == KafkaError.NON_EMPTY_GROUP
    while members:
        members.pop().close()
    admin.delete_consumer_groups(["g"])["g"].result(30)
    assert "g" not in {each.group_id for each in admin.list_consumer_groups().result(30).valid}


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
    for name in ("coordinator-0", "coordinator-1"):
        cluster.kill(name)
        sent = produce(cluster.bootstrap, topic, 0, 400, 4)
        for member in members:
            member.values.clear()
        sent = produce(cluster.bootstrap, topic, 1000, 400, 4)
        wait_until(lambda: set(sent) <= {v for m in members for v in m.values}, "record")  # noqa: B023
        wait_until(lambda: committed(cluster.bootstrap, topic, 4) == ends(cluster.bootstrap, topic, 4), "commit")
        cluster.start(name)
        cluster.wait_ready()
    assert [member.events for member in members] == before
    assert not [error for member in members for error in member.refused]


def committed(bootstrap: str, topic: str, partitions: int, group: str = "g") -> list[int]:
    consumer = Consumer({"log_level": 0, "bootstrap.servers": bootstrap, "group.id": group})
    try:
        return [each.offset for each in consumer.committed([TopicPartition(topic, n) for n in range(partitions)], 30)]
    finally:
        consumer.close()


def ends(bootstrap: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"log_level": 0, "bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return [consumer.get_watermark_offsets(TopicPartition(topic, n), 30)[1] for n in range(partitions)]
    finally:
        consumer.close()


class Copier(Polling):
    """Consume, process, produce: each batch in a transaction with its offsets."""

    def __init__(self, bootstrap: str, source: str, target: str, protocol: str, number: int) -> None:
        self.member = Consumer({
            "bootstrap.servers": bootstrap, "group.id": "copy", "auto.offset.reset": "earliest", "log_level": 0,
            "enable.auto.commit": False, "group.protocol": protocol, "isolation.level": "read_committed",
        } | ({"session.timeout.ms": 6000, "heartbeat.interval.ms": 500} if protocol == "classic" else {}))
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "transactional.id": f"copier-{number}-{uuid.uuid4().hex[:6]}",
            "log_level": 0, "linger.ms": 0})
        self.member.subscribe([source])
        self.target = target
        self.transactions = 0
        super().__init__()

    def _run(self) -> None:
        try:
            self.producer.init_transactions(60)
            while not self._stop.is_set():
                messages = [each for each in self.member.consume(20, 0.1) if each.error() is None]
                if messages:
                    self._copy(messages)
        finally:
            self.member.close()

    def _copy(self, messages: list[object]) -> None:
        self.producer.begin_transaction()
        try:
            for message in messages:
                self.producer.produce(self.target, value=message.value(), partition=0)  # type: ignore[attr-defined]
            positions = {}
            for message in messages:
                positions[message.topic(), message.partition()] = message.offset() + 1  # type: ignore[attr-defined]
            self.producer.send_offsets_to_transaction(
                [TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()],
                self.member.consumer_group_metadata(), 60)
            self.producer.commit_transaction(60)
            self.transactions += 1
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.producer.abort_transaction(60)
            for partition in self.member.committed(self.member.assignment(), 60):
                self.member.seek(TopicPartition(partition.topic, partition.partition, max(partition.offset, 0)))


class Source(threading.Thread):
    """Produces for as long as the test needs input."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__()
        self._producer = Producer({"log_level": 0, "bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._topic, self._partitions = topic, partitions
        self._stop_now = threading.Event()
        self.sent: list[bytes] = []

    def run(self) -> None:
        while not self._stop_now.wait(0.002):  # paces the input
            value = b"%d" % len(self.sent)
            self._producer.produce(self._topic, value=value, partition=len(self.sent) % self._partitions)
            self.sent.append(value)
        assert self._producer.flush(60) == 0

    def end(self) -> None:
        self._stop_now.set()
        self.join(90)


def test_rebalances_amid_transactions_lose_and_double_nothing(cluster_factory: ClusterFactory, protocol: str) -> None:
    """Four members come one after the other, each of the first three leaves, and a coordinator is killed."""
    cluster = cluster_factory(coordinators=2, settings=FAST)
    source, target = new_topic(cluster.bootstrap, 4), new_topic(cluster.bootstrap, 1)
    records = Source(cluster.bootstrap, source, 4)
    copiers = [Copier(cluster.bootstrap, source, target, protocol, 0)]
    records.start()
    try:
        for number in range(1, 4):
            wait_until(lambda: copiers[-1].transactions > 3, "transaction")
            copiers.append(Copier(cluster.bootstrap, source, target, protocol, number))
            if number == 2:
                cluster.kill("coordinator-0")
                cluster.start("coordinator-0")
            wait_until(lambda: copiers[-1].transactions > 0, "first transaction")
            copiers.pop(0).close()
        records.end()
        wait_until(lambda: settled(cluster, source), "end")
    finally:
        records.end()
        for copier in copiers:
            copier.close()
    wait_until(lambda: nothing_is_open(cluster.bootstrap, target), "end of all transactions")
    assert Counter(read(cluster.bootstrap, target)) == Counter(records.sent)


def settled(cluster: LocalCluster, source: str) -> bool:
    return committed(cluster.bootstrap, source, 4, "copy") == ends(cluster.bootstrap, source, 4)


def read(bootstrap: str, topic: str) -> list[bytes | None]:
    consumer = Consumer({
        "log_level": 0, "bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True,
        "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "no answer in 60 s"
            if message.error() is None:
                found.append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise KafkaException(message.error())
    finally:
        consumer.close()


def test_the_command_shows_members(cluster_factory: ClusterFactory, members: list[Member], protocol: str) -> None:
    cluster = cluster_factory(settings=FAST)
    topic = new_topic(cluster.bootstrap, 2)
    members.append(Member(cluster.bootstrap, "g", topic, protocol))
    wait_until(lambda: shared(members, 2), "share")
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        (listed,) = admin.list_groups("g")
        assert (listed.protocol, listed.state, listed.members) == (protocol, "Stable", 1)
        found = admin.describe_group("g")
        (member,) = found.members
        assert member.assigned == tuple(NativePartition(topic, number) for number in range(2))
        assert member.client_id == "rdkafka" and found.state == "Stable" and found.protocol == protocol
        with pytest.raises(HapaxError, match="NON_EMPTY_GROUP"):
            admin.delete_group_offsets("g")
    command = ["group", "describe", "g", "--bootstrap", cluster.bootstrap, "--json"]
    shown = CliRunner().invoke(application(command[:1]), command)
    assert shown.exit_code == 0, shown.output
    described = json.loads(shown.stdout)
    assert described["members"][0]["assigned"] == [f"{topic}-0", f"{topic}-1"]
    (member_id,) = [each["member_id"] for each in described["members"]]
    assert [(each["partition"], each["member_id"]) for each in described["lag"]] == [
        (f"{topic}-{number}", member_id) for number in range(2)]
    without = CliRunner().invoke(application(command[:1]), [*command, "--no-lag"])
    assert json.loads(without.stdout)["lag"] is None


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_members_of_both_protocols_share_the_partitions(
    cluster_factory: ClusterFactory, members: list[Member], assignor: str
) -> None:
    """A group changes its protocol while it works, there and back. Every record is read, and who is left has all."""
    cluster = cluster_factory(coordinators=2, settings=FAST)
    topic = new_topic(cluster.bootstrap, 6)
    admin = AdminClient({"log_level": 0, "bootstrap.servers": cluster.bootstrap})
    sent: list[bytes] = []

    def types() -> list[str]:
        found = admin.list_consumer_groups().result(30).valid
        return [each.type.name for each in found if each.group_id == "g"]

    def check(partitions: int, kind: str) -> None:
        wait_until(lambda: shared(members, partitions), f"share of {len(members)} members")
        wait_until(lambda: types() == [kind], f"group of type {kind}")
        sent.extend(produce(cluster.bootstrap, topic, len(sent), 300, partitions))
        wait_until(lambda: set(sent) <= read_by | {v for m in members for v in m.values}, "record")
        wait_until(lambda: committed(cluster.bootstrap, topic, 6) == ends(cluster.bootstrap, topic, 6), "commit")

    def close(member: Member) -> None:
        members.remove(member)
        member.close()
        read_by.update(member.values)

    read_by: set[bytes | None] = set()
    for _ in range(2):
        members.append(Member(cluster.bootstrap, "g", topic, "classic", **{"partition.assignment.strategy": assignor}))
    check(6, "CLASSIC")
    members.append(Member(cluster.bootstrap, "g", topic, "consumer"))
    check(6, "CONSUMER")
    cluster.kill("coordinator-0")
    cluster.start("coordinator-0")
    cluster.wait_ready()
    check(6, "CONSUMER")
    members.append(Member(cluster.bootstrap, "g", topic, "classic", **{"partition.assignment.strategy": assignor}))
    check(6, "CONSUMER")

    def stable() -> bool:
        described = admin.describe_consumer_groups(["g"])["g"].result(30)
        return len(described.members) == 4 and described.state is ConsumerGroupState.STABLE

    wait_until(stable, "group that has settled")
    close(members[2])
    check(6, "CLASSIC")
    members.append(Member(cluster.bootstrap, "g", topic, "consumer"))
    check(6, "CONSUMER")
    while members:
        close(members[0])
    assert len(set(sent)) == len(sent)

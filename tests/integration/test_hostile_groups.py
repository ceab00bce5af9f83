"""Hostile members at a real coordinator: each gets the protocol's error, the coordinator's memory stays bounded, and a
well-behaved group beside them goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from conftest import end_cluster, start_cluster
from hapax.core.errors import ErrorCode
from hapax.local.cluster import LocalCluster
from hapax.wire import messages
from integration.bad_input import ClusterProcess, Wire, create_topic, wire

TIMES = 10_000
PARTITIONS = 100_000
MEBIBYTE = 1 << 20
METADATA_LIMIT = 2 * MEBIBYTE
SETTINGS = [
    "socket.request.max.bytes=20971520",
    "queued.max.request.bytes=33554432",
    "group.initial.rebalance.delay.ms=0",
    f"group.max.metadata.bytes={METADATA_LIMIT}",
]
SESSION_MS = 6_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of its own: these tests measure its memory."""
    cluster = start_cluster(tmp_path_factory.mktemp("hostile-groups"), settings=SETTINGS)
    with wire(ClusterProcess(cluster, "broker-0").address) as connection:
        assert create_topic(connection, "t", 4) == 0
    yield cluster
    end_cluster(cluster)


@pytest.fixture(scope="module")
def coordinator(cluster: LocalCluster) -> ClusterProcess:
    return ClusterProcess(cluster, "coordinator-0")


class Group:
    """A classic group of one well-behaved member."""

    def __init__(self, node: ClusterProcess, name: str) -> None:
        self._wire = Wire(node.address)
        self.name = name
        member_id = join(self._wire, name).member_id
        joined = join(self._wire, name, member_id=member_id)
        assert joined.error_code == 0, joined
        self.member_id, self.generation = joined.member_id, joined.generation_id
        kind = messages.SyncGroupRequest
        synced = self._wire.ask(
            "SyncGroup", 4, group_id=name, generation_id=self.generation, member_id=self.member_id,
            group_instance_id=None,
            assignments=[kind.SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"all")])
        assert (synced.error_code, synced.assignment) == (0, b"all")

    def works(self) -> None:
        beat = self._wire.ask(
            "Heartbeat", 3, group_id=self.name, generation_id=self.generation, member_id=self.member_id,
            group_instance_id=None)
        assert beat.error_code == 0, beat
        (answer,) = commit(self._wire, self.name, self.member_id, self.generation, [0])
        assert answer.error_code == 0, answer


class Neighbour(Group):
    """Works all the time, and is a member as long as no round takes `SESSION_MS`."""

    def __init__(self, node: ClusterProcess) -> None:
        super().__init__(node, "neighbour")
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._rounds = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.2):
                self.works()
                self._rounds.release()
        except BaseException as error:
            self._failure = error
            self._rounds.release()

    def has_noticed_nothing(self) -> None:
        """Raises what went wrong, up to a round that begins after the call."""
        while self._rounds.acquire(blocking=False):
            pass
        for _ in range(2):
            assert self._rounds.acquire(timeout=10), "the neighbour is stuck"
            if self._failure is not None:
                raise self._failure

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture(scope="module")
def neighbour(coordinator: ClusterProcess) -> Iterator[Neighbour]:
    neighbour = Neighbour(coordinator)
    yield neighbour
    neighbour.end()


@pytest.fixture(autouse=True)
def nothing_else_happens(coordinator: ClusterProcess, neighbour: Neighbour) -> Iterator[None]:
    before = coordinator.memory()
    yield
    neighbour.has_noticed_nothing()
    assert coordinator.is_the_same_process()
    assert coordinator.memory() - before < 60 * MEBIBYTE


def join(
    connection: Wire, group: str, member_id: str = "", metadata: bytes = b"", version: int = 5,
    session_ms: int = SESSION_MS,
) -> Any:
    kind = messages.JoinGroupRequest
    return connection.ask(
        "JoinGroup", version, group_id=group, session_timeout_ms=session_ms, rebalance_timeout_ms=SESSION_MS,
        member_id=member_id, group_instance_id=None, protocol_type="consumer",
        protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=metadata)])


def commit(connection: Wire, group: str, member_id: str, generation: int, partitions: list[int]) -> Any:
    kind = messages.OffsetCommitRequest
    topic = kind.OffsetCommitRequestTopic
    answer = connection.ask(
        "OffsetCommit", 7, group_id=group, generation_id_or_member_epoch=generation, member_id=member_id,
        group_instance_id=None,
        topics=[topic(name="t", partitions=[
            topic.OffsetCommitRequestPartition(
                partition_index=each, committed_offset=1, committed_leader_epoch=-1, committed_metadata="")
            for each in partitions])])
    return [] if answer is None else answer.topics[0].partitions


def consumer_heartbeat(connection: Wire, group: str, member_id: str, epoch: int, **fields: Any) -> Any:
    return connection.ask(
        "ConsumerGroupHeartbeat", 1, group_id=group, member_id=member_id, member_epoch=epoch, **{
            "instance_id": None, "rack_id": None, "rebalance_timeout_ms": 45_000, "subscribed_topic_names": [],
            "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": []} | fields)


def test_a_client_that_asks_to_join_ten_thousand_times_and_never_returns(coordinator: ClusterProcess) -> None:
    """Each time it is told its member id (KIP-394). The ids count into the limit of the group's metadata, so the group
    is full in the end; afterwards, a true member joins another one."""
    codes: dict[int, int] = {}
    with wire(coordinator.address) as connection:
        for _ in range(TIMES):
            code = join(connection, "never-returns", session_ms=600_000).error_code
            codes[code] = codes.get(code, 0) + 1
    assert codes.keys() <= {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED}, codes
    assert codes[ErrorCode.MEMBER_ID_REQUIRED] * 1_000 <= METADATA_LIMIT
    assert codes[ErrorCode.GROUP_MAX_SIZE_REACHED] > 0
    Group(coordinator, "beside-it")


def test_a_client_that_joins_and_never_syncs_ten_thousand_times(coordinator: ClusterProcess) -> None:
    """In a group of its own each time, so that it waits for no other member. Another client then takes the last group
    over, when the session there is over."""
    workers = 8

    def joins(first: int) -> None:
        with wire(coordinator.address) as connection:
            for number in range(first, TIMES, workers):
                assert join(connection, f"never-syncs-{number}", version=3).error_code == 0

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(joins, range(workers)))
    with wire(coordinator.address) as connection:
        assert join(connection, f"never-syncs-{TIMES - 1}", version=3).error_code == 0


@pytest.mark.parametrize("size", [METADATA_LIMIT, 3 * MEBIBYTE, 100 * MEBIBYTE])
def test_metadata_that_are_too_large(coordinator: ClusterProcess, size: int) -> None:
    """A frame beyond its limit (docs/protocol.md) ends the connection."""
    with wire(coordinator.address) as connection:
        member_id = join(connection, "large").member_id
        try:
            answer = join(connection, "large", member_id=member_id, metadata=bytes(size))
        except ConnectionError:
            answer = None
        if size < 4 * MEBIBYTE:
            assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        else:
            assert answer is None


def test_a_commit_that_names_a_hundred_thousand_partitions(coordinator: ClusterProcess) -> None:
    with wire(coordinator.address) as connection:
        answers = commit(connection, "many", "", -1, list(range(PARTITIONS)))
        codes = {each.error_code for each in answers}
        assert len(answers) == PARTITIONS
        assert [each.error_code for each in answers[:4]] == [0, 0, 0, 0]
        assert codes == {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_look_at_a_hundred_thousand_offsets(coordinator: ClusterProcess, neighbour: Group) -> None:
    kind = messages.OffsetFetchRequest
    with wire(coordinator.address) as connection:
        answer = connection.ask("OffsetFetch", 7, group_id=neighbour.name, require_stable=True, topics=[
            kind.OffsetFetchRequestTopic(name="t", partition_indexes=list(range(PARTITIONS)))])
        (topic,) = answer.topics
        assert len(topic.partitions) == PARTITIONS
        assert {each.committed_offset for each in topic.partitions} <= {-1, 1}


@pytest.mark.parametrize(("expression", "code"), [
    ("((a+)+)+b", ErrorCode.NONE),  # backtracking matchers need exponential time for it
    ("(((((a{1000}){1000}){1000}", ErrorCode.INVALID_REGULAR_EXPRESSION),
    ("(a{1000}){1000}", ErrorCode.INVALID_REGULAR_EXPRESSION),
    (r"(a)\1", ErrorCode.INVALID_REGULAR_EXPRESSION),
    (30_000 * "(a|b)", ErrorCode.INVALID_REQUEST),
], ids=["nested", "unbalanced", "repeated", "back reference", "150 kB"])  # fmt: skip
def test_a_hostile_regular_expression(cluster: LocalCluster, coordinator: ClusterProcess, expression: str,
                                      code: int) -> None:
    with wire(ClusterProcess(cluster, "broker-0").address) as connection:
        create_topic(connection, 249 * "a", 1)
    with wire(coordinator.address) as connection:
        answer = consumer_heartbeat(
            connection, f"expressions-{code}", str(uuid4()), 0, subscribed_topic_regex=expression)
        assert answer.error_code == code


def test_a_member_of_another_group(coordinator: ClusterProcess, neighbour: Group) -> None:
    other = Group(coordinator, "other")
    with wire(coordinator.address) as connection:
        beat = connection.ask("Heartbeat", 3, group_id=neighbour.name, generation_id=other.generation,
                              member_id=other.member_id, group_instance_id=None)
        assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        (answer,) = commit(connection, neighbour.name, other.member_id, other.generation, [0])
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        kind = messages.LeaveGroupRequest
        left = connection.ask("LeaveGroup", 3, group_id=neighbour.name, members=[
            kind.MemberIdentity(member_id=other.member_id, group_instance_id=None)])
        assert left.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert join(connection, neighbour.name, member_id=other.member_id).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        # A consumer group's heartbeat with an epoch names a member that this group does not have.
        assert consumer_heartbeat(
            connection, "never-made", other.member_id, 3).error_code == ErrorCode.GROUP_ID_NOT_FOUND

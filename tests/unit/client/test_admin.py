"""The administrative client: a change that is repeated because its answer was lost changes nothing else."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from hapax.client.admin import Admin, ProducerInfo
from hapax.client.errors import FatalError, from_code
from hapax.client.metadata import Leader, Topic
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.ports import RpcError, RpcStatus
from hapax.wire import messages
from hapax.wire.messages import unknown_tag
from hapax.wire.peer import LEADER_ONLY_TAG, PeerClosed, PeerError


class Controller(Admin):
    """An Admin whose controller is this object: topics by name."""

    def __init__(self, *names: str) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": 1})
        self.ids = {name: uuid.uuid4() for name in names}
        self.lost_answers: list[str] = []
        """Each is made again under its name while the answer is lost."""
        self.unreachable = 0
        """This many connections are refused."""
        self._cluster.existing = self._existing  # type: ignore[method-assign]

    async def _existing(self, names: Any) -> dict[str, Topic]:
        return {
            name: Topic(name, self.ids[name], {PartitionIndex(0): Leader(0, 1)}) for name in names if name in self.ids}

    async def _controller(self) -> Any:
        if self.unreachable:
            self.unreachable -= 1
            raise PeerError("refused")
        return self

    async def call(self, message: Any) -> Any:
        assert isinstance(message, messages.DeleteTopicsRequest)
        Answer = messages.DeleteTopicsResponse
        answers = []
        for topic in message.topics:
            name = topic.name or next((n for n, each in self.ids.items() if each == topic.topic_id), None)
            code = ErrorCode.NONE
            if name is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            elif name not in self.ids:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                del self.ids[name]
            answers.append(Answer.DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=int(code), error_message=None))
        if self.lost_answers:
            for name in self.lost_answers:
                self.ids[name] = uuid.uuid4()
            self.lost_answers = []
            raise PeerClosed("the answer is lost")
        return Answer(responses=answers)


async def test_a_repeated_deletion_spares_the_topic_that_was_made_again() -> None:
    controller = Controller("t", "other")
    controller.lost_answers = ["t"]
    await controller.delete_topics(["t", "other"])
    assert list(controller.ids) == ["t"]


async def test_a_topic_that_is_not_there_is_an_error() -> None:
    controller = Controller("t")
    with pytest.raises(FatalError, match=r"'u'.*UNKNOWN_TOPIC_OR_PARTITION"):
        await controller.delete_topics(["u"])


async def test_a_change_that_was_never_sent_is_not_taken_for_done() -> None:
    controller = Controller("t")
    controller.unreachable = 2
    with pytest.raises(FatalError, match=r"'u'.*UNKNOWN_TOPIC_OR_PARTITION"):
        await controller.delete_topics(["u"])


class ActingController(Admin):
    """An Admin whose calls of Hapax's own to the controller end in these ways, one after the other; None: no controller
    acts."""

    def __init__(self, *outcomes: RpcStatus | bytes | None) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": 1})
        self.outcomes = list(outcomes)
        self._cluster.controller_address = self._address  # type: ignore[method-assign]
        self._cluster.channel = lambda address: self  # type: ignore[assignment, method-assign, return-value]

    async def _address(self) -> str:
        if self.outcomes[0] is None:
            self.outcomes.pop(0)
            raise from_code(ErrorCode.NOT_CONTROLLER, "finding the controller")
        return "127.0.0.1:2"

    async def call(self, method: str, request: bytes, seconds: float) -> bytes:
        outcome = self.outcomes.pop(0)
        assert outcome is not None
        if isinstance(outcome, bytes):
            return outcome
        raise RpcError(outcome, "told so")


def changed(error: int = 0) -> bytes:
    return pb.CreatePartitionsResponse(topics=[pb.TopicResult(error=error)]).SerializeToString()


@pytest.mark.parametrize("status", ["UNIMPLEMENTED", "PERMISSION_DENIED", "FAILED_PRECONDITION", "INVALID_ARGUMENT"])
async def test_what_the_controller_refuses_is_told_at_once(status: RpcStatus) -> None:
    admin = ActingController(status)
    with pytest.raises(FatalError, match=status):
        await admin.set_draining([0], True)
    admin = ActingController(status)
    with pytest.raises(FatalError, match=status):
        await admin.change_topic("t", partitions=3)
    assert admin.outcomes == []


@pytest.mark.parametrize("status", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL"])
async def test_a_repeated_change_may_be_done_already(status: RpcStatus) -> None:
    admin = ActingController(status, changed(ErrorCode.INVALID_PARTITIONS))
    assert await admin.change_topic("t", partitions=3) == 0


async def test_a_change_that_found_no_controller_is_not_taken_for_done() -> None:
    admin = ActingController(None, changed(ErrorCode.INVALID_PARTITIONS))
    with pytest.raises(FatalError, match="INVALID_PARTITIONS"):
        await admin.change_topic("t", partitions=3)


class Partitions(Admin):
    """A producer of version 1 keeps its epoch from one transaction to the next."""

    def __init__(self) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": 1})
        self.open_from = 17
        self.markers = 0
        self.next_after_lost_answer: int | None = None
        """The next transaction begins here while the answer to the marker is lost."""
        self.next_after_refused: int | None = None
        """The next transaction begins here while the connection to the leader is refused."""
        self._cluster.topics["t"] = Topic("t", uuid.uuid4(), {PartitionIndex(0): Leader(0, 1)})
        self._cluster.peer = self._peer  # type: ignore[method-assign]

    async def _peer(self, node_id: int, purpose: str = "data") -> Any:
        if self.next_after_refused is not None:
            self.open_from, self.next_after_refused = self.next_after_refused, None
            raise PeerError("refused")

    async def describe_producers(self, partition: TopicPartition) -> list[ProducerInfo]:
        return [ProducerInfo(4001, 0, 5, 0, self.open_from, 0)]

    async def _write_marker(self, leader: Any, partition: TopicPartition, producer: ProducerInfo) -> None:
        self.markers += 1
        if self.next_after_lost_answer is not None:
            self.open_from, self.next_after_lost_answer = self.next_after_lost_answer, None
            raise PeerClosed("the answer is lost")


async def test_a_repeated_abort_leaves_the_next_transaction_alone() -> None:
    admin, where = Partitions(), TopicPartition("t", PartitionIndex(0))
    assert await admin.abort_hanging(where, 4001, 17)
    admin.open_from = 30
    assert not await admin.abort_hanging(where, 4001, 17)
    assert admin.markers == 1
    assert await admin.abort_hanging(where, 4001)


@pytest.mark.parametrize("first_offset", [17, None])
async def test_an_abort_whose_answer_was_lost_leaves_the_next_transaction_alone(first_offset: int | None) -> None:
    admin, where = Partitions(), TopicPartition("t", PartitionIndex(0))
    admin.next_after_lost_answer = 30
    assert await admin.abort_hanging(where, 4001, first_offset)
    assert admin.markers == 1
    admin.next_after_lost_answer = 30  # the marker was not written
    assert await admin.abort_hanging(where, 4001, 30) and admin.markers == 3


@pytest.mark.parametrize("next_one", [-1, 30])
async def test_a_transaction_that_ended_before_its_abort_was_sent_was_not_aborted(next_one: int) -> None:
    admin, where = Partitions(), TopicPartition("t", PartitionIndex(0))
    admin.next_after_refused = next_one
    assert not await admin.abort_hanging(where, 4001, 17)
    assert admin.markers == 0


async def test_a_late_copy_does_not_answer_for_the_leader() -> None:
    """An abort decides by the answer that there is nothing to abort."""
    admin = Admin({"bootstrap.servers": "127.0.0.1:1"})
    asked: list[bytes | None] = []
    admin._cluster.topics["t"] = Topic("t", uuid.uuid4(), {PartitionIndex(0): Leader(0, 1)})

    class Leading:
        async def call(self, request: Any) -> Any:
            asked.append(unknown_tag(request, LEADER_ONLY_TAG))
            kind = messages.DescribeProducersResponse.TopicResponse
            answer = kind.PartitionResponse(partition_index=0, error_code=0, active_producers=[])
            return messages.DescribeProducersResponse(topics=[kind(name="t", partitions=[answer])])

    async def peer(node_id: int, purpose: str = "data") -> Any:
        return Leading()

    admin._cluster.peer = peer  # type: ignore[method-assign]
    assert await admin.describe_producers(TopicPartition("t", PartitionIndex(0))) == []
    assert asked == [b""]


class RestartingCoordinator(Admin):
    """An Admin whose coordinator, node 100, is listed and not registered at its first look."""

    def __init__(self) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": 1})
        self.looks: list[str | None] = [None, "127.0.0.1:2"]
        self.called: list[str] = []
        self._cluster.coordinator = self._coordinator  # type: ignore[method-assign]
        self._cluster.rpc_address = self._address  # type: ignore[method-assign]
        self._cluster.channel = lambda address: self  # type: ignore[assignment, method-assign, return-value]

    async def _coordinator(self, kind: str, key: str) -> int:
        return 100

    async def _address(self, node_id: int) -> str | None:
        return self.looks.pop(0)

    async def call(self, method: str, request: bytes, seconds: float) -> bytes:
        self.called.append(method.rpartition("/")[2])
        return b""


async def test_a_coordinator_that_is_not_registered_is_looked_for_again() -> None:
    group, transaction = RestartingCoordinator(), RestartingCoordinator()
    assert await group.delete_group_offsets("g") == 0
    assert (await transaction.describe_transactional_id("t")).transactional_id == "t"
    assert group.called + transaction.called == ["DeleteOffsets", "DescribeTransactionalId"]

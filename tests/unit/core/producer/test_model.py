"""Property: against a leader that behaves like Kafka's and a network that drops, repeats and reorders across
reconnects, every record the producer reports delivered is in the log once, none twice, all in order.

Histories are drawn by a seeded generator with weights, not step by step by hypothesis: the faults that matter need
several unlikely steps in a row, and weights find them some hundred times as often. A failing seed is reproducible.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from hapax.core.errors import ErrorCode
from hapax.core.producer.machine import ClientProducer, ProducerOptions
from hapax.core.producer.partition_queue import NO_IDENTITY, Batch, Identity
from hapax.core.producer.states import Delivered, Failed, RequestProducerId, SendBatch
from hapax.core.types import Millis, Offset, PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicPartition

PARTITIONS = [TopicPartition("t", PartitionIndex(i)) for i in range(2)]
FOREVER = 10**9


@dataclass
class Request:
    """A copy of what was sent: the batch may be renumbered while the copy is under way."""

    batch: Batch
    identity: Identity
    sequence: int


@dataclass
class Connection:
    requests: deque[Request] = field(default_factory=deque)
    answers: deque[tuple[Batch, int, int]] = field(default_factory=deque)


class Leader:
    """One partition as Kafka keeps it: five batches per producer, any sequence where it knows nothing."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = {}

    def append(self, request: Request) -> tuple[int, int]:
        batch, (producer_id, epoch), first = request.batch, request.identity, request.sequence
        last = first + batch.records - 1
        known = self.producers.get(producer_id)
        if known is not None:
            if epoch < known[0]:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if epoch > known[0]:
                if first != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            else:
                for start, end, offset in known[1]:
                    if (start, end) == (first, last):
                        return 0, offset
                if last < known[1][0][0]:
                    return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1
                if first != known[1][-1][1] + 1:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if known is None or epoch > known[0]:
            known = self.producers[producer_id] = (epoch, deque(maxlen=5))
        offset = len(self.log)
        assert isinstance(batch.content, str)
        self.log += [f"{batch.content}/{i}" for i in range(batch.records)]
        known[1].append((first, last, offset))
        return 0, offset


class History:
    def __init__(self, first_epoch: int) -> None:
        self.now = 0
        self.first_epoch = first_epoch
        self.machine = ClientProducer(ProducerOptions())
        self.machine.initialize()
        self.leaders = {partition: Leader() for partition in PARTITIONS}
        self.connections = {partition: Connection() for partition in PARTITIONS}
        self.ghosts: list[tuple[TopicPartition, Connection]] = []
        self.enqueued: dict[TopicPartition, list[Batch]] = {partition: [] for partition in PARTITIONS}
        self.outcomes: dict[str, Delivered | Failed] = {}
        self.names = 0
        self.ids = 7
        self.pump()

    def pump(self) -> None:
        for effect in self.machine.poll(Millis(self.now)):
            if isinstance(effect, SendBatch):
                batch = effect.batch
                request = Request(batch, batch.identity, batch.sequence)
                self.connections[batch.partition].requests.append(request)
            elif isinstance(effect, RequestProducerId):
                assert effect.current == NO_IDENTITY
                self.machine.initialized(Identity(ProducerId(self.ids), ProducerEpoch(self.first_epoch)))
                self.ids += 1
                self.pump()
            else:
                assert isinstance(effect, Delivered | Failed)
                assert isinstance(effect.batch.content, str)
                assert effect.batch.content not in self.outcomes, "reported twice"
                self.outcomes[effect.batch.content] = effect

    def enqueue(self, partition: TopicPartition, records: int, patient: bool) -> None:
        deadline = FOREVER if patient else self.now + 300
        batch = Batch(partition, records, Millis(deadline), content=str(self.names))
        self.names += 1
        self.enqueued[partition].append(batch)
        self.machine.enqueue(batch)
        self.pump()

    def serve(self, partition: TopicPartition, fault: str) -> None:
        self.serve_from(partition, self.connections[partition], fault)

    def serve_from(self, partition: TopicPartition, connection: Connection, fault: str = "") -> None:
        if not connection.requests:
            return
        request = connection.requests.popleft()
        if fault == "refuse":
            code, offset = int(ErrorCode.NOT_ENOUGH_REPLICAS), -1
        else:
            code, offset = self.leaders[partition].append(request)
            if fault == "late" and code == 0:
                code = int(ErrorCode.REQUEST_TIMED_OUT)
        connection.answers.append((request.batch, code, offset))

    def answer(self, partition: TopicPartition) -> None:
        connection = self.connections[partition]
        if not connection.answers:
            return
        batch, code, offset = connection.answers.popleft()
        if code:
            self.machine.refused(batch, code, "", Millis(self.now))
        else:
            self.machine.delivered(batch, Offset(offset), TimestampMs(-1))
        self.pump()

    def cut(self, partition: TopicPartition, delivered_later: bool) -> None:
        """The connection breaks; what the leader has not read yet may still reach it, at any later time."""
        connection = self.connections[partition]
        self.connections[partition] = Connection()
        for batch, _, _ in connection.answers:
            self.machine.lost(batch, "cut", Millis(self.now))
        for request in connection.requests:
            self.machine.lost(request.batch, "cut", Millis(self.now))
        if delivered_later and connection.requests:
            self.ghosts.append((partition, connection))
        self.pump()

    def haunt(self, which: int, repeat: bool) -> None:
        if not self.ghosts:
            return
        partition, connection = self.ghosts[which % len(self.ghosts)]
        if connection.requests:
            if repeat:
                connection.requests.appendleft(connection.requests[0])
            self.serve_from(partition, connection)
            connection.answers.clear()

    def pass_time(self, step: int) -> None:
        self.now += step
        self.machine.expire(Millis(self.now))
        self.pump()

    def check(self) -> None:
        """No record twice. In order too; but where the epochs were used up and a new producer id began, a batch
        reported as lost can still arrive late (nothing fences the former id), so there only the delivered ones."""
        for partition, leader in self.leaders.items():
            order = {
                f"{batch.content}/{i}": (place, i)
                for place, batch in enumerate(self.enqueued[partition])
                for i in range(batch.records)
            }
            assert len(set(leader.log)) == len(leader.log), leader.log
            log = leader.log
            if self.ids > 8:
                log = [r for r in log if isinstance(self.outcomes.get(r.split("/")[0]), Delivered)]
            places = [order[record] for record in log]
            assert places == sorted(places), leader.log

    def heal(self) -> None:
        """The network heals: everything is decided, and reports and log agree."""
        for _ in range(400):
            for partition in PARTITIONS:
                self.serve(partition, "")
                self.answer(partition)
            self.pass_time(101)
            if not self.machine.pending:
                break
        assert not self.machine.pending
        while any(connection.requests for _, connection in self.ghosts):
            for which in range(len(self.ghosts)):
                self.haunt(which, False)
        self.check()
        for partition, batches in self.enqueued.items():
            log = self.leaders[partition].log
            for batch in batches:
                assert isinstance(batch.content, str)
                outcome = self.outcomes[batch.content]
                copies = log.count(f"{batch.content}/0")
                if isinstance(outcome, Delivered):
                    assert copies == 1
                    assert outcome.offset in (-1, log.index(f"{batch.content}/0"))
                elif not outcome.maybe_written:
                    assert copies == 0


def play(seed: int, steps: int = 120) -> History:
    draw = random.Random(seed)
    history = History(first_epoch=draw.choice([0, 0, 32766]))
    partitions = PARTITIONS[: draw.choice([1, 2])]
    for _ in range(steps):
        partition = draw.choice(partitions)
        kind = draw.random()
        if kind < 0.25:
            history.enqueue(partition, draw.randint(1, 3), draw.random() < 0.4)
        elif kind < 0.5:
            history.serve(partition, draw.choice(["", "", "", "refuse", "late"]))
        elif kind < 0.72:
            history.answer(partition)
        elif kind < 0.78:
            history.cut(partition, draw.random() < 0.7)
        elif kind < 0.86:
            history.haunt(draw.randint(0, 5), draw.random() < 0.3)
        else:
            history.pass_time(draw.choice([50, 101, 101, 400]))
        history.check()
    history.heal()
    return history


@pytest.mark.parametrize("block", range(8))
def test_delivered_once_and_in_order(block: int) -> None:
    for seed in range(block * 80, block * 80 + 80):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_histories_contain_what_they_are_for() -> None:
    """Deliveries, losses in doubt, raised epochs and new producer ids all occur."""
    histories = [play(seed) for seed in range(40)]
    outcomes = [outcome for history in histories for outcome in history.outcomes.values()]
    assert sum(isinstance(outcome, Delivered) for outcome in outcomes) > 300
    assert sum(isinstance(outcome, Failed) and outcome.maybe_written for outcome in outcomes) > 50
    assert any(history.ids > 8 for history in histories)
    assert any(history.machine.identity.epoch > history.first_epoch for history in histories)

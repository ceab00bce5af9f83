"""One log of the writer: what goes into a batch, and what each answer means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hapax.codec.batch import check_batch, read_header
from hapax.codec.control import decode_control
from hapax.codec.internal_records import decode_batch
from hapax.coordinator.log_writer import MAX_BATCH_BYTES, ShardLog, Unit
from hapax.coordinator.metrics import Counters
from hapax.core.control import ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import NodeId, PartitionIndex, RegistrationEpoch, ShardEpoch, TopicId
from hapax.runtime.telemetry import Metrics
from hapax.wire.internal_writes import LIST_OFFSETS_VERSION, InternalBatch, encode_list_ends, encode_produce, proof
from hapax.wire.messages import ListOffsetsRequest, ProduceRequest, set_unknown_tag, unknown_tag
from hapax.wire.peer import INTERNAL_WRITE_TAG

TOPIC = TopicId(bytes(range(16)))


class Writer:
    node_id = NodeId(100)

    def __init__(self) -> None:
        self.woken = 0
        self.counters = Counters(Metrics())

    def wake(self, shard_log: ShardLog) -> None:
        self.woken += 1


class Watched:
    """A log, and what became of it and its units."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.happened: list[str] = []
        self.log = ShardLog(
            self.writer, TOPIC, PartitionIndex(3), ShardEpoch(5),  # type: ignore[arg-type]
            lost=lambda reason: self.happened.append(f"lost: {reason}"),
            fenced=lambda reason: self.happened.append(f"fenced: {reason}"),
        )

    def append(self, name: str, value: bytes = b"v", **options: Any) -> None:
        self.log.append(Unit(
            ((name.encode(), value),), lambda offset: self.happened.append(f"{name} at {offset}"),
            lambda code, reason: self.happened.append(f"{name} refused {code.name}"), **options,
        ))

    def leaves(self) -> list[str]:
        """Keys of the batch that leaves now."""
        batch = self.log.take_batch(1000)
        header = read_header(batch)
        check_batch(batch, header)
        return [key.decode() for _, key, _ in decode_batch(batch, header)]

    def answer(self, code: ErrorCode, offset: int = -1) -> None:
        self.log.answered(code, offset, "")


@pytest.fixture
async def watched() -> Watched:
    return Watched()


async def test_what_comes_while_a_batch_is_under_way_leaves_together(watched: Watched) -> None:
    watched.append("a")
    assert watched.leaves() == ["a"]
    watched.append("b")
    watched.append("c")
    assert watched.writer.woken == 1, "one request in flight"
    watched.answer(ErrorCode.NONE, 10)
    assert watched.writer.woken == 2 and watched.leaves() == ["b", "c"]
    watched.answer(ErrorCode.NONE, 11)
    assert watched.happened == ["a at 10", "b at 11", "c at 12"]
    assert watched.log.next_offset == 13


async def test_a_batch_is_of_one_producer_and_of_bounded_size(watched: Watched) -> None:
    watched.append("a")
    watched.append("b", producer_id=7, producer_epoch=1)
    watched.append("c", producer_id=7, producer_epoch=1)
    watched.append("d", producer_id=7, producer_epoch=2)
    watched.append("e", bytes(MAX_BATCH_BYTES - 200))
    watched.append("f", bytes(300))
    seen = []
    for offset in range(5):
        seen.append(watched.leaves())
        watched.answer(ErrorCode.NONE, offset * 2)
    assert seen == [["a"], ["b", "c"], ["d"], ["e"], ["f"]]


@pytest.mark.parametrize("code", [
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.UNKNOWN_SERVER_ERROR,
])
async def test_whatever_may_have_been_stored_is_never_sent_again(watched: Watched, code: ErrorCode) -> None:
    watched.append("a")
    watched.leaves()
    watched.append("b")
    watched.answer(code)
    assert watched.happened == [f"lost: append answered {code.name} "]
    assert watched.log.idle, "nothing is left to be sent"
    with pytest.raises(Refusal):
        watched.append("c")
    watched.answer(ErrorCode.NONE, 10)
    assert len(watched.happened) == 1, "a late answer changes nothing"


async def test_a_verdict_on_the_batch_refuses_its_units_alone(watched: Watched) -> None:
    watched.append("a", producer_id=7, producer_epoch=1)
    watched.leaves()
    watched.append("b")
    watched.answer(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert watched.leaves() == ["b"]
    watched.answer(ErrorCode.NONE, 0)
    assert watched.happened == ["a refused INVALID_PRODUCER_EPOCH", "b at 0"]


async def test_a_higher_epoch_in_the_log_ends_it(watched: Watched) -> None:
    watched.append("a")
    watched.leaves()
    watched.answer(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert watched.happened == ["fenced: "] and watched.log.closed


async def test_a_log_without_its_fence_makes_it_begin_again(watched: Watched) -> None:
    """An unclean election took the fence: nobody has replaced this owner, and nobody else would take the shard over."""
    watched.append("a")
    watched.leaves()
    watched.answer(ErrorCode.OPERATION_NOT_ATTEMPTED)
    assert watched.happened == ["lost: append answered OPERATION_NOT_ATTEMPTED "] and watched.log.closed


async def test_an_offset_from_before_means_that_the_leader_had_it(watched: Watched) -> None:
    watched.append("a")
    watched.leaves()
    watched.answer(ErrorCode.NONE, 10)
    watched.append("b")
    watched.leaves()
    watched.answer(ErrorCode.NONE, 4)
    assert watched.happened == ["a at 10", "b at -1"] and watched.log.next_offset == 11


async def test_a_gap_before_the_batch_is_a_record_of_the_leader_s_own(watched: Watched) -> None:
    watched.append("a")
    watched.leaves()
    watched.answer(ErrorCode.NONE, 10)
    watched.append("b")
    watched.leaves()
    watched.answer(ErrorCode.NONE, 12)
    assert watched.happened == ["a at 10", "b at 12"]


async def test_leadership_is_confirmed_by_an_append_that_leaves_after_the_question(watched: Watched) -> None:
    watched.append("a")
    watched.leaves()
    confirmed = asyncio.ensure_future(watched.log.confirm())
    watched.append("b")
    await asyncio.sleep(0)
    watched.answer(ErrorCode.NONE, 0)
    await asyncio.sleep(0)
    assert not confirmed.done(), "`a` had left before the question"
    watched.leaves()
    watched.answer(ErrorCode.NONE, 1)
    await confirmed


async def test_leadership_is_confirmed_by_an_end_that_has_not_moved(watched: Watched) -> None:
    watched.append("a")
    watched.leaves()
    watched.answer(ErrorCode.NONE, 0)
    confirmed = asyncio.ensure_future(watched.log.confirm())
    await asyncio.sleep(0)
    assert watched.log.only_confirms and not watched.log.idle
    watched.log.take_confirms()
    watched.append("b")
    assert watched.writer.woken == 2, "it waits for the answer"
    watched.log.end_answered(ErrorCode.NONE, 1)
    await confirmed
    assert watched.leaves() == ["b"]


async def test_an_answer_about_what_was_stored_before_confirms_nothing(watched: Watched) -> None:
    """A leader that was replaced gives it from memory."""
    watched.append("a")
    watched.leaves()
    watched.answer(ErrorCode.NONE, 10)
    confirmed = asyncio.ensure_future(watched.log.confirm())
    watched.append("b")
    await asyncio.sleep(0)
    watched.leaves()
    watched.answer(ErrorCode.NONE, 4)
    await asyncio.sleep(0)
    assert not confirmed.done() and watched.log.only_confirms
    watched.log.take_confirms()
    watched.log.end_answered(ErrorCode.NONE, 11)
    await confirmed


async def test_a_refused_batch_confirms_nothing(watched: Watched) -> None:
    """A leader that was replaced refuses it from memory, too: an old epoch of a producer, say."""
    confirmed = asyncio.ensure_future(watched.log.confirm())
    watched.append("a", producer_id=7, producer_epoch=1)
    await asyncio.sleep(0)
    watched.leaves()
    watched.answer(ErrorCode.INVALID_PRODUCER_EPOCH)
    await asyncio.sleep(0)
    assert not confirmed.done() and watched.log.only_confirms
    watched.log.take_confirms()
    watched.log.end_answered(ErrorCode.NONE, 0)
    await confirmed


async def test_who_asks_is_answered_also_where_the_append_ends_the_shard(watched: Watched) -> None:
    """What is done once a record is stored may find that the shard has to be given up."""
    confirmed = asyncio.ensure_future(watched.log.confirm())
    watched.log.append(Unit(((b"a", b"v"),), lambda offset: watched.log.close(), lambda code, reason: None))
    await asyncio.sleep(0)
    watched.leaves()
    watched.answer(ErrorCode.NONE, 0)
    await asyncio.wait_for(confirmed, 1)


async def test_a_leader_that_cannot_say_whether_it_leads_costs_the_readers_and_not_the_shard(watched: Watched) -> None:
    confirmed = asyncio.ensure_future(watched.log.confirm())
    await asyncio.sleep(0)
    watched.log.take_confirms()
    watched.append("a")
    watched.log.end_answered(ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    with pytest.raises(Refusal) as refused:
        await confirmed
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert watched.leaves() == ["a"] and watched.happened == []


async def test_a_moved_end_is_settled_by_a_fence_of_the_same_epoch(watched: Watched) -> None:
    confirmed = asyncio.ensure_future(watched.log.confirm())
    await asyncio.sleep(0)
    watched.log.take_confirms()
    watched.log.end_answered(ErrorCode.NONE, 7)
    batch = watched.log.take_batch(1000)
    assert decode_control(batch, read_header(batch)) == ShardFence(5, 100)
    watched.answer(ErrorCode.NONE, 7)
    await confirmed

    confirmed = asyncio.ensure_future(watched.log.confirm())
    await asyncio.sleep(0)
    watched.log.take_confirms()
    watched.log.end_answered(ErrorCode.NONE, 9)
    watched.log.take_batch(1000)
    watched.answer(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    with pytest.raises(Refusal):
        await confirmed


async def test_the_request_is_what_the_schema_says() -> None:
    shown = proof(RegistrationEpoch(7), b"s" * 16, ShardEpoch(9))
    other = TopicId(bytes(reversed(range(16))))
    body = b"".join(encode_produce(
        [InternalBatch(TOPIC, PartitionIndex(3), b"x" * 300), InternalBatch(other, PartitionIndex(0), b"y"),
         InternalBatch(TOPIC, PartitionIndex(4), b"z")],
        1234, shown,
    ))
    request = ProduceRequest.decode(body, version=13)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, -1, 1234)
    assert [
        (topic.topic_id.bytes, [(p.index, bytes(p.records)) for p in topic.partition_data])
        for topic in request.topic_data
    ] == [(TOPIC, [(3, b"x" * 300), (4, b"z")]), (other, [(0, b"y")])]
    assert unknown_tag(request, 10000) == shown


async def test_the_question_for_the_ends_of_logs_is_what_the_library_encodes() -> None:
    shown = proof(RegistrationEpoch(7), b"s" * 16)
    asked = {"__transaction_state": [PartitionIndex(3), PartitionIndex(49)], "__consumer_offsets": [PartitionIndex(0)]}
    kind = ListOffsetsRequest.ListOffsetsTopic
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, timeout_ms=0, topics=[
        kind(name=name, partitions=[
            kind.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
            for index in indexes
        ])
        for name, indexes in asked.items()
    ])
    set_unknown_tag(request, INTERNAL_WRITE_TAG, shown)
    assert encode_list_ends(asked, shown) == request.encode(version=LIST_OFFSETS_VERSION)

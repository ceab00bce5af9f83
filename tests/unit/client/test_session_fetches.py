"""The fetcher in fetch sessions: what it names, and that nothing is lost, hidden or read twice when a session ends."""

from __future__ import annotations

import pytest

from hapax.client.readings import Begin
from hapax.core.errors import ErrorCode
from unit.client.fetching_world import A, B, Cluster, said

BOTH = {"a": 0, "b": 0}


async def reading(**settings: object) -> Cluster:
    """Both topics are empty, and read in session 1 of node 0."""
    world = Cluster(reset="earliest", **settings)
    world.fetcher.assign([A, B])
    first, second = await world.rounds(0, 2)
    assert said(first) == (0, 0, BOTH, [])
    assert said(second) == (1, 1, {}, [])
    return world


async def test_an_idle_consumer_names_no_partition() -> None:
    world = await reading()
    for request in await world.rounds(0, 3):
        assert said(request)[2:] == ({}, [])
    await world.fetcher.close()


async def test_a_partition_is_named_once_for_the_records_that_were_read() -> None:
    world = await reading()
    world.write("b", "b0", "b1")
    assert await world.take() == ["b0", "b1"]
    named = [said(each)[2] for each in world.brokers[0].requests[2:] + await world.rounds(0, 3)]
    assert [each for each in named if each] == [{"b": 2}]
    assert await world.fetcher.take(5, 10) == []
    await world.fetcher.close()


async def test_what_is_paused_is_forgotten_and_what_is_resumed_is_named() -> None:
    world = await reading()
    world.fetcher.pause([A])
    assert {"a"} in [set(said(each)[3]) for each in await world.rounds(0, 2)]
    world.write("a", "a0")
    assert await world.fetcher.take(20, 10) == []
    world.fetcher.resume([A])
    assert await world.take() == ["a0"]
    await world.fetcher.close()


async def test_a_seek_is_told() -> None:
    world = await reading()
    world.write("a", "a0", "a1", "a2")
    assert await world.take() == ["a0", "a1", "a2"]
    await world.rounds(0, 2)
    world.fetcher.seek(A, 1)
    assert await world.take() == ["a1", "a2"]
    await world.fetcher.close()


async def test_records_of_an_answer_that_a_seek_made_useless_come_again() -> None:
    """The position is the same as before, so the request names nothing."""
    world = await reading()

    def seek() -> None:
        world.fetcher.seek(A, 0)
        world.brokers[0].when_asked = lambda: None

    world.write("a", "a0")
    world.brokers[0].when_asked = seek
    assert await world.take() == ["a0"]
    await world.fetcher.close()


@pytest.mark.parametrize("what", ["request", "answer", "answer alone"])
async def test_after_a_lost_answer_everything_is_named_again(what: str) -> None:
    world = await reading()
    world.write("a", "a0", "a1")
    world.brokers[0].lose = [what]
    asked = len(world.brokers[0].requests)
    assert await world.take() == ["a0", "a1"]
    lost, full, *more = [said(each) for each in world.brokers[0].requests[asked:] + await world.rounds(0, 3)]
    assert lost[:2] in ((1, 1), (1, 2)) and full[:2] == (1, 0)
    named = {topic for each in (full, *more) for topic in each[2]}
    assert named == set(BOTH), "the pauses of the partitions end one by one"
    assert list(world.brokers[0].cache.sessions) == [2], "the former session has ended"
    await world.fetcher.close()


async def test_a_new_connection_begins_a_new_session() -> None:
    world = await reading()
    world.connections.pop(0)
    requests = [said(each) for each in await world.rounds(0, 3)]
    assert (1, 0, BOTH, []) in requests and requests[-1][0] == 2
    await world.fetcher.close()


async def test_an_evicted_session_is_replaced_without_a_pause() -> None:
    world = await reading(retry_backoff_ms=60_000, retry_backoff_max_ms=60_000)
    world.brokers[0].cache.clear()
    requests = [said(each) for each in await world.rounds(0, 4)]
    assert (0, 0, BOTH, []) in requests
    world.write("a", "a0")
    assert await world.take() == ["a0"]
    await world.fetcher.close()


async def test_a_node_without_room_for_sessions_is_asked_for_everything_each_time() -> None:
    world = Cluster(reset="earliest")
    world.brokers[0].cache._max_sessions = 0
    world.fetcher.assign([A, B])
    assert [said(each) for each in await world.rounds(0, 3)] == [(0, 0, BOTH, [])] * 3
    world.write("b", "b0")
    assert await world.take() == ["b0"]
    await world.fetcher.close()
    assert all(said(each)[0] == 0 for each in world.brokers[0].requests)


async def test_a_node_from_which_nothing_is_read_any_more_loses_its_session() -> None:
    world = await reading()
    world.write("a", "a0")
    world.elect("a", 1)
    world.elect("b", 1)
    assert await world.take() == ["a0"]
    await world.rounds(1)
    assert said(world.brokers[0].requests[-1]) == (1, -1, {}, [])
    assert not world.brokers[0].cache.sessions
    await world.fetcher.close()


async def test_a_node_whose_partitions_are_paused_keeps_its_session() -> None:
    world = await reading()
    world.fetcher.pause([A, B])
    assert await world.fetcher.take(20, 10) == []
    assert list(world.brokers[0].cache.sessions) == [1]
    await world.fetcher.close()


async def test_the_sessions_end_with_the_consumer() -> None:
    world = await reading()
    world.elect("b", 1)
    await world.rounds(1, 2)
    await world.fetcher.close()
    for broker in world.brokers.values():
        assert said(broker.requests[-1])[1:] == (-1, {}, [])
        assert not broker.cache.sessions


async def test_a_partition_that_comes_back_has_the_ends_that_the_session_knows() -> None:
    """Its offset is the same as before, so neither the request nor the answer names it."""
    world = await reading()
    world.write("a", "a0", "a1")
    world.fetcher.seek(A, 2)
    await world.rounds(0, 3)
    assert world.fetcher._readings[A].end == 2
    world.fetcher.drop([A])
    world.fetcher.add([A])
    world.fetcher.seek(A, 2)
    requests = await world.rounds(0, 3)
    assert not any(said(each)[2] or said(each)[3] for each in requests[1:])
    assert world.fetcher._readings[A].end == 2
    await world.fetcher.close()


async def test_a_partition_that_comes_back_and_fails_has_not_been_tried() -> None:
    """The session knows its ends from before. Were the group's offset taken for one that a leader has confirmed, the
    topic's next life would be read from its beginning, and what the group has read of it twice."""
    world = await reading()
    world.fetcher.drop([A])
    world.fetcher.add([A])
    assert await world.fetcher.begin([A]) == {A: 0}
    world.make_again("a", heard=False)
    world.committed[world.there["a"].topic_id] = 3
    del world.asked[:]
    assert await world.take() == ["new3", "new4"]
    assert world.asked == [(A, Begin.COMMITTED)]
    await world.fetcher.close()


async def test_a_topic_made_again_is_forgotten_by_its_id() -> None:
    world = await reading()
    former = world.topics["a"].topic_id
    world.make_again("a")
    assert await world.take() == ["new0", "new1", "new2", "new3", "new4"]
    await world.rounds(0, 2)
    (session,) = world.brokers[0].cache.sessions.values()
    assert {key[0] for key in session.partitions} == {
        world.there["a"].topic_id.bytes, world.there["b"].topic_id.bytes}
    assert former.bytes in [
        each.topic_id.bytes for request in world.brokers[0].requests for each in request.forgotten_topics_data]
    await world.fetcher.close()


async def test_a_partition_that_fails_is_left_out_and_named_again() -> None:
    world = await reading()
    world.brokers[0].refuses["a"] = ErrorCode.KAFKA_STORAGE_ERROR
    world.fetcher.seek(A, 0)
    assert await world.fetcher.take(10, 10) == []
    world.write("a", "a0")
    world.brokers[0].refuses.clear()
    assert await world.take() == ["a0"]
    await world.fetcher.close()


async def test_an_answer_about_another_partition_ends_the_session() -> None:
    world = await reading()
    (session,) = world.brokers[0].cache.sessions.values()
    former = session.partitions[world.there["b"].topic_id.bytes, 0]
    world.fetcher.drop([B])
    while former.key in session.partitions:
        await world.rounds(0)
    session.update([(former.key, former.asked)], (), session.mode)  # a node that did not forget it
    world.write("b", "b0")
    assert (1, 0, {"a": 0}, []) in [said(each) for each in await world.rounds(0, 4)]
    world.fetcher.add([B])
    assert await world.take() == ["b0"]
    await world.fetcher.close()

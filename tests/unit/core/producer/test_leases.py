from __future__ import annotations

from dataclasses import replace
from functools import reduce
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.control import later_end
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.producer import leases
from hapax.core.producer.leases import CLOSED_GENERATION, LAST_GENERATION, Lease, LeaseRequest
from hapax.core.types import (
    NO_PRODUCER_ID,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicIdPartition,
)

TOPIC = TopicId(bytes(16))
P = [TopicIdPartition(TOPIC, PartitionIndex(i)) for i in range(4)]
HELD = Lease("loader", ProducerId(7), ProducerEpoch(3), "host-a", 1_000, 61_000, (P[0], P[1]))


def request(**fields: object) -> LeaseRequest:
    return LeaseRequest("loader", (P[1], P[2]), 60_000, "host-b")._replace(**fields)


def test_a_take_over_raises_the_generation_and_keeps_every_partition() -> None:
    taken = leases.acquire(HELD, request(), 5_000)
    assert (taken.producer_id, taken.generation, taken.holder) == (7, 4, "host-b")
    assert (taken.held_since_ms, taken.expires_at_ms) == (5_000, 65_000)
    assert taken.partitions == (P[0], P[1], P[2])
    assert leases.former_holder(HELD, taken, 5_000) == "host-a"
    assert leases.former_holder(HELD, taken, 61_000) == ""  # it had expired: nobody was fenced


def test_a_holder_resumes_under_the_same_generation() -> None:
    resumed = leases.acquire(HELD, request(resume_producer_id=7, resume_generation=3, holder=""), 5_000)
    assert (resumed.generation, resumed.holder, resumed.held_since_ms) == (3, "host-a", 1_000)
    assert resumed.expires_at_ms == 65_000 and resumed.partitions == (P[0], P[1], P[2])
    assert leases.former_holder(HELD, resumed, 5_000) == ""


@pytest.mark.parametrize(("producer_id", "generation", "now", "code"), [
    (7, 2, 5_000, ErrorCode.PRODUCER_FENCED),
    (6, 3, 5_000, ErrorCode.PRODUCER_FENCED),
    (7, 4, 5_000, ErrorCode.INVALID_PRODUCER_EPOCH),   # a store behind what was given out
    (7, 3, 61_000, ErrorCode.INVALID_PRODUCER_EPOCH),  # expired at that very millisecond
])
def test_only_the_holder_resumes_renews(producer_id: int, generation: int, now: int, code: ErrorCode) -> None:
    with pytest.raises(Refusal) as resumed:
        leases.acquire(HELD, request(resume_producer_id=producer_id, resume_generation=generation), now)
    with pytest.raises(Refusal) as renewed:
        leases.renew(HELD, producer_id, generation, 60_000, now)
    assert resumed.value.code == renewed.value.code == code


def test_a_lease_that_somebody_holds_is_left_alone_where_that_is_asked() -> None:
    careful = request(unless_held=True)
    with pytest.raises(Refusal, match="held by 'host-a' until 61000"):
        leases.check_free(HELD, careful, 60_999)
    leases.check_free(HELD, careful, 61_000)
    leases.check_free(HELD, request(), 5_000)
    leases.check_free(HELD, request(unless_held=True, resume_producer_id=7, resume_generation=3), 5_000)


def test_a_call_that_is_repeated_is_known() -> None:
    mine = request(call_id=b"mine")
    taken = leases.acquire(HELD, mine, 5_000)
    assert leases.repeats(taken, mine, 64_999)
    assert not leases.repeats(taken, mine, 65_000), "it has expired: it is taken over, as any other"
    assert not leases.repeats(HELD, mine, 5_000)
    assert not leases.repeats(taken, request(call_id=b"other"), 5_000)
    assert not leases.repeats(taken, mine._replace(resume_producer_id=7, resume_generation=4), 5_000)
    assert not leases.repeats(leases.close(taken), mine, 5_000)
    assert not leases.repeats(leases.settle(leases.close(taken), {}), mine, 5_000)
    assert not leases.repeats(leases.acquire(HELD, request(), 5_000), request(), 5_000), "no call is named"
    assert not leases.repeats(leases.acquire(taken, request(), 5_000), mine, 5_000), "somebody else has it now"


def test_who_is_fenced_is_told_by_whom_and_when() -> None:
    with pytest.raises(Refusal, match="taken over by 'host-a' at 1000"):
        leases.renew(HELD, 7, 2, 1, 5_000)


def test_release_ends_the_lease_once() -> None:
    released = leases.release(HELD, 7, 3, 5_000)
    assert released.expires_at_ms == 5_000
    assert leases.release(released, 7, 3, 9_000) == released
    with pytest.raises(Refusal):
        leases.release(HELD, 7, 2, 5_000)


def test_an_exhausted_lease_is_closed_counted_and_goes_on_under_a_new_id() -> None:
    last = replace(HELD, generation=LAST_GENERATION, carried={P[0]: 5})
    assert leases.must_close(last, request())
    assert not leases.must_close(last, request(resume_producer_id=7, resume_generation=LAST_GENERATION))
    closed = leases.close(last)
    assert closed.generation == CLOSED_GENERATION and closed.closing and not closed.rests
    at_rest = leases.settle(closed, {P[0]: 100})  # the topic of P[1] was deleted
    assert at_rest.rests and at_rest.carried == {P[0]: 105} and at_rest.partitions == (P[0],)
    again = leases.acquire(at_rest, request(), 9_000, ProducerId(900))
    assert (again.producer_id, again.generation) == (900, 0)
    assert again.carried == {P[0]: 105} and again.partitions == (P[0], P[1], P[2])


def test_rest_and_oblivion_come_in_order() -> None:
    assert not leases.may_rest(HELD, 61_999, 1_000)
    assert leases.may_rest(HELD, 62_000, 1_000)
    assert not leases.forgettable(HELD, 10**12, 1_000)
    at_rest = leases.settle(leases.close(HELD), {})
    assert not leases.may_rest(at_rest, 10**12, 1_000)
    assert not leases.forgettable(at_rest, 10**12, 1_000), "partitions keep its producer until they are told"
    at_rest = leases.told(at_rest, HELD.producer_id)
    assert leases.forgettable(at_rest, 62_000, 1_000)
    assert leases.forgettable(replace(at_rest, carried={P[0]: 0}), 62_000, 1_000)
    assert not leases.forgettable(replace(at_rest, carried={P[0]: 0, P[1]: 1}), 10**12, 1_000)


@pytest.mark.parametrize("bad", [request(name=""), request(name="x" * 250), request(expire_ms=0),
                                 request(expire_ms=-5), request(expire_ms=100_001)])
def test_bad_requests(bad: LeaseRequest) -> None:
    with pytest.raises(Refusal) as refused:
        leases.check_request(bad, 100_000)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


_steps = st.lists(st.tuples(
    st.sampled_from(["take", "resume", "renew", "release", "rest"]), st.integers(0, 5), st.integers(0, 100_000)),
    max_size=30)


@given(_steps, st.integers(LAST_GENERATION - 4, LAST_GENERATION))
def test_no_identity_is_ever_held_by_two(steps: list[tuple[str, int, int]], start: int) -> None:
    """Whatever happens, each (producer id, generation) has one period of holding, and generations only rise."""
    lease, now, fresh = replace(HELD, generation=ProducerEpoch(start)), 1_000, 100
    held = {(lease.producer_id, lease.generation): lease.held_since_ms}
    for step, which, wait in steps:
        now += wait
        before = lease
        identities = list(held)
        producer_id, generation = identities[-1 - which % len(identities)]
        try:
            if step == "take":
                if leases.must_close(lease, request()):
                    lease = leases.settle(leases.close(lease), {p: 1 for p in lease.partitions})
                fresh += 1
                lease = leases.acquire(lease, request(), now, ProducerId(fresh))
            elif step == "resume":
                asked = request(resume_producer_id=producer_id, resume_generation=generation)
                lease = leases.acquire(lease, asked, now)
            elif step == "renew":
                lease = leases.renew(lease, producer_id, generation, 60_000, now)
            elif step == "release":
                lease = leases.release(lease, producer_id, generation, now)
            elif leases.may_rest(lease, now, 1_000):
                lease = leases.settle(leases.close(lease), {p: 1 for p in lease.partitions})
        except Refusal:
            assert (producer_id, generation) != (before.producer_id, before.generation) or before.expires_at_ms <= now
            lease = before
        if lease.rests:
            assert lease.producer_id == NO_PRODUCER_ID
            continue
        identity = (lease.producer_id, lease.generation)
        assert lease.generation <= LAST_GENERATION
        assert held.setdefault(identity, lease.held_since_ms) == lease.held_since_ms
        assert identity >= max(held)
        assert set(lease.partitions) >= set(before.partitions)


def test_a_lease_is_never_shortened_by_its_holder() -> None:
    longer = leases.renew(HELD, 7, 3, 120_000, 5_000)
    assert leases.renew(longer, 7, 3, 1_000, 6_000) == longer
    resumed = leases.acquire(longer, request(resume_producer_id=7, resume_generation=3, expire_ms=1_000), 6_000)
    assert resumed.expires_at_ms == longer.expires_at_ms
    assert leases.release(longer, 7, 3, 6_000).expires_at_ms == 6_000
    assert leases.acquire(longer, request(expire_ms=1_000), 6_000).expires_at_ms == 7_000, "another holder's own"


@given(ends=st.lists(st.sampled_from([-1, 0, 1, 50, 70, 90]), min_size=1, max_size=5), seed=st.randoms())
def test_fences_of_one_generation_may_come_in_any_order(ends: list[int], seed: Random) -> None:
    shuffled = ends[:]
    seed.shuffle(shuffled)
    assert reduce(later_end, shuffled) == reduce(later_end, ends)

"""Meters against models that keep every event, and how many meters clients can make."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.quota.meter import LONGEST_MS, Meter, TokenBucket, Windows
from hapax.core.quota.meters import Meters, Owner

_EVENTS = st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 3_000)), max_size=60)
"""(milliseconds since the one before, amount)."""
_WINDOWS = st.builds(Windows, st.integers(2, 12), st.sampled_from([100, 1_000]))


@given(_EVENTS, _WINDOWS, st.floats(0.5, 5_000), st.integers(0, 10**9))
def test_a_rate_counts_what_the_last_windows_have(
    events: list[tuple[int, int]], windows: Windows, rate: float, start: int
) -> None:
    now, kept = start, []
    meter = Meter(windows, now)
    for later, amount in events:
        now += later
        kept.append((now, amount))
        meter.add(amount, now)
        window = now // windows.size_ms
        total = sum(each for at, each in kept if at // windows.size_ms > window - windows.number)
        span_ms = (windows.number - 1) * windows.size_ms + now % windows.size_ms
        wait = meter.wait_ms(rate, now)
        assert wait == pytest.approx(max(0, math.ceil(total / rate * 1000 - span_ms)), abs=1)
        assert (wait > 0) == (total / (span_ms / 1000) > rate) or total / (span_ms / 1000) == pytest.approx(rate)


@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=80), st.integers(200, 5_000))
def test_who_waits_as_told_stays_near_the_rate(amounts: list[int], rate: int) -> None:
    """Twice the rate at most, where single requests are worth ten seconds: what they exceed it by is forgotten with the
    windows, as in Kafka."""
    now, used = 0, 0
    meter = Meter(Windows(), 0)
    for amount in amounts:
        meter.add(amount, now)
        used += amount
        while wait := meter.wait_ms(rate, now):
            now += wait
        assert used <= 2 * rate * (Windows().full_s + 1 + now / 1000)


def test_ten_seconds_worth_may_be_used_at_once_and_then_waits() -> None:
    meter = Meter(Windows(), 0)
    meter.add(10_000, 0)
    assert meter.wait_ms(1_000, 0) == 0
    meter.add(500, 0)
    assert meter.wait_ms(1_000, 0) == 500
    assert meter.wait_ms(1_000, 400) == 100
    assert meter.wait_ms(1_000, 11_000) == 0
    meter.add(10**30, 11_000)
    assert meter.wait_ms(1_000, 11_000) == LONGEST_MS
    assert not meter.unused(22_000) and meter.unused(22_001)


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 50)), max_size=40), st.floats(0.1, 20),
    st.integers(0, 10**9))
def test_a_bucket_fills_at_the_rate_and_no_further_than_the_burst(
    events: list[tuple[int, int]], rate: float, start: int
) -> None:
    now, tokens = start, rate * 11
    bucket = TokenBucket(Windows(), now)
    for later, amount in events:
        now += later
        tokens = min(rate * 11, tokens + later * rate / 1000)
        wait = bucket.wait_ms(rate, now)
        assert wait == pytest.approx(max(0.0, -tokens / rate * 1000), abs=1.01)
        bucket.take(amount, rate, now)
        tokens -= amount
    full = bucket.unused(now)
    assert full or tokens < rate * 11 + 1e-6


@pytest.mark.parametrize("rate", [5e-324, 1e-310, 1e300, 1.7e308])
def test_rates_at_the_ends_of_what_a_number_holds(rate: float) -> None:
    """`request_percentage` and `controller_mutation_rate` are any numbers above 0."""
    meter, bucket = Meter(Windows(), 0), TokenBucket(Windows(), 0)
    for now in range(0, 50_000, 700):
        meter.add(1, now)
        bucket.take(20, rate, now)
        waits = meter.wait_ms(rate, now), bucket.wait_ms(rate, now)
        assert all(type(each) is int and 0 <= each <= LONGEST_MS for each in waits)
        assert waits == ((LONGEST_MS, LONGEST_MS) if rate < 1 else (0, 0))
        assert not bucket.unused(now) or rate > 1


def test_a_debt_is_paid_before_more_is_taken() -> None:
    bucket = TokenBucket(Windows(), 0)
    bucket.take(11, 1.0, 0)
    assert bucket.wait_ms(1.0, 0) == 0
    bucket.take(5, 1.0, 0)
    assert bucket.wait_ms(1.0, 0) == 5_000
    assert bucket.wait_ms(1.0, 3_000) == 2_000
    assert not bucket.unused(15_999) and bucket.unused(16_000)


# --- their number -----------------------------------------------------------------------------------------------------


def meters(most: int = 50, most_names: int = 5) -> Meters[Meter]:
    return Meters(Meter, Windows(), most, most_names)


def test_client_ids_that_a_user_makes_up_share_a_meter_beyond_the_limit() -> None:
    made = meters()
    own = [made.of(Owner("k", "alice", f"c{n}"), 0, "alice") for n in range(5)]
    shared = made.of(Owner("k", "alice", "c5"), 0, "alice")
    assert len({id(each) for each in (*own, shared)}) == 6
    assert all(made.of(Owner("k", "alice", f"x{n}"), 0, "alice") is shared for n in range(10_000))
    assert len(made) == 6
    assert made.of(Owner("k", "alice", "c0"), 0, "alice") is own[0]
    assert made.of(Owner("k", "bob", "x"), 0, "bob") is not shared, "another user has names of its own"
    assert made.of(Owner("k", None, "billing"), 0) is not shared, "and so has a client id that a quota names"


def test_names_that_are_no_longer_used_make_room() -> None:
    made = meters()
    first = [made.of(Owner("k", None, f"c{n}"), 0, "alice") for n in range(6)]
    later = made.of(Owner("k", None, "d"), 12_000, "alice")
    assert not any(each.live for each in first) and later.live
    assert len(made) == 1


def test_beyond_the_bound_those_used_least_recently_are_given_up() -> None:
    made = meters(most=16)
    for n in range(16):
        made.of(Owner("k", f"u{n}", None), n).add(1, n)
    extra = made.of(Owner("k", "more", None), 16)
    assert len(made) <= 16 and made.given_up and extra.live
    assert made.of(Owner("k", "u15", None), 17).wait_ms(0.01, 17) > 0, "the one used last is kept"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 3_000)), max_size=200))
def test_the_number_is_bounded_whatever_comes(asked: list[tuple[str, int, int]]) -> None:
    made, now = meters(most=20, most_names=4), 0
    for user, number, later in asked:
        now += later
        meter = made.of(Owner("k", None, f"c{number}"), now, user)
        meter.add(1, now)
        assert meter.live and len(made) <= 20
    made.clear()
    assert len(made) == 0 and not made._names and not made._made_by

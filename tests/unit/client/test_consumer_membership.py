"""A member of the consumer protocol: what it confirms to its coordinator."""

from __future__ import annotations

from collections.abc import Iterable

from hapax.client.consumer_membership import ConsumerMembership
from hapax.client.membership import Change, ConsumerBeat, ConsumerBeaten, MemberOptions, Owned
from hapax.core.errors import ErrorCode

TOPIC_ID = b"t" * 16
BEAT_MS, SESSION_MS, POLL_MS = 1_000, 10_000, 30_000
RETRY_MS = 100


class Driver:
    """A membership whose coordinator is played by the test."""

    def __init__(self) -> None:
        self.now = 1_000
        options = MemberOptions(SESSION_MS, BEAT_MS, POLL_MS, None, RETRY_MS, 1_000)
        self.membership = ConsumerMembership(options, ["t"], None, None, lambda: "m", self.now)
        self.membership.due(self.now)

    def beat(self) -> tuple[int, ConsumerBeat]:
        ((number, call),) = self.membership.take_calls()
        assert isinstance(call, ConsumerBeat)
        return number, call

    def answer(self, number: int, epoch: int, partitions: Iterable[int] | None = None) -> None:
        given = None if partitions is None else frozenset((TOPIC_ID, each) for each in partitions)
        self.membership.answered(number, ConsumerBeaten(0, None, epoch, BEAT_MS, given), self.now)
        self.membership.named({TOPIC_ID: "t"}, self.now)

    def lose_the_answer(self, number: int) -> None:
        self.membership.unanswered(number, self.now)
        self.wait(RETRY_MS)

    def poll(self) -> list[tuple[Change, list[int]]]:
        told = []
        self.membership.begin_poll(self.now)
        while (callback := self.membership.begin_callback(self.now)) is not None:
            told.append((callback.change, [each.partition for each in callback.partitions]))
            self.membership.end_callback(self.now)
        self.membership.end_poll(self.now)
        return told

    def wait(self, ms: int) -> None:
        self.now += ms
        self.membership.due(self.now)


def listed(call: ConsumerBeat) -> list[int] | None:
    return None if call.owned is None else [partition for _, partition in call.owned]


def with_two_partitions() -> Driver:
    driver = Driver()
    driver.answer(driver.beat()[0], 1, [0, 1])
    assert driver.poll() == [(Change.ASSIGNED, [0, 1])]
    number, call = driver.beat()
    assert listed(call) == [0, 1]
    driver.answer(number, 1)
    return driver


def test_what_was_given_and_taken_back_before_the_program_knew_is_confirmed_at_once() -> None:
    """The coordinator waits until the member lists what it owns, and removes it after the rebalance timeout."""
    driver = with_two_partitions()
    driver.wait(BEAT_MS)
    driver.answer(driver.beat()[0], 2, [0, 1, 2])
    number, call = driver.beat()
    assert listed(call) == [0, 1, 2]
    driver.answer(number, 2)
    driver.wait(BEAT_MS)
    driver.answer(driver.beat()[0], 2, [0, 1])
    number, call = driver.beat()
    assert listed(call) == [0, 1]
    driver.answer(number, 3)
    assert driver.membership.take_calls() == []  # once is enough
    assert driver.poll() == []


def test_what_the_program_may_still_take_is_listed_as_its_own() -> None:
    """The answer that takes it back may be lost. If a list without it confirmed that, it would go to another member."""
    driver = with_two_partitions()
    driver.wait(BEAT_MS)
    driver.answer(driver.beat()[0], 2, [0, 1, 2])
    number, call = driver.beat()
    assert listed(call) == [0, 1, 2]
    driver.lose_the_answer(number)
    number, call = driver.beat()
    assert listed(call) == [0, 1, 2]  # now the coordinator, which wants it back, waits
    assert driver.poll() == [(Change.ASSIGNED, [2])]
    driver.answer(number, 2, [0, 1])
    assert driver.membership.take_calls() == []
    assert driver.poll() == [(Change.REVOKED, [2])]
    number, call = driver.beat()
    assert listed(call) == [0, 1]
    driver.answer(number, 3)
    assert driver.membership.take_calls() == []


def test_a_newer_target_takes_the_place_of_one_that_was_never_taken() -> None:
    driver = with_two_partitions()
    driver.wait(BEAT_MS)
    driver.answer(driver.beat()[0], 2, [0, 1, 2])
    driver.answer(driver.beat()[0], 2, [0, 1])  # takes it back while the list is on its way
    number, call = driver.beat()
    assert listed(call) == [0, 1]
    driver.answer(number, 3, [0, 1, 3])
    number, call = driver.beat()
    assert listed(call) == [0, 1, 3]
    driver.answer(number, 3)
    assert driver.poll() == [(Change.ASSIGNED, [3])]
    assert driver.membership.take_calls() == []  # the coordinator knows


def test_what_has_no_name_yet_is_listed_too() -> None:
    driver = with_two_partitions()
    driver.wait(BEAT_MS)
    other = b"u" * 16
    given = frozenset({(TOPIC_ID, 0), (TOPIC_ID, 1), (other, 0)})
    driver.membership.answered(driver.beat()[0], ConsumerBeaten(0, None, 2, BEAT_MS, given), driver.now)
    number, call = driver.beat()
    assert call.owned == ((TOPIC_ID, 0), (TOPIC_ID, 1), (other, 0))
    driver.answer(number, 2)
    driver.membership.named({other: "u"}, driver.now)
    assert driver.membership.take_calls() == []
    assert driver.poll() == [(Change.ASSIGNED, [0])]
    assert driver.membership.take_calls() == []


def test_what_comes_back_during_its_revocation_is_not_listed_as_given_up() -> None:
    driver = with_two_partitions()
    driver.wait(BEAT_MS)
    driver.answer(driver.beat()[0], 1, [0])
    driver.membership.begin_poll(driver.now)
    assert driver.membership.begin_callback(driver.now) is not None  # REVOKED begins
    driver.wait(BEAT_MS)
    driver.answer(driver.beat()[0], 1, [0, 1])
    driver.membership.end_callback(driver.now)
    assert driver.poll() == [(Change.ASSIGNED, [1])]
    driver.wait(BEAT_MS)
    assert listed(driver.beat()[1]) in (None, [0, 1])


def test_who_joins_again_lists_nothing_of_what_it_never_took() -> None:
    driver = with_two_partitions()
    driver.wait(BEAT_MS)
    driver.answer(driver.beat()[0], 2, [0, 1, 2])
    number, _ = driver.beat()
    driver.membership.answered(number, ConsumerBeaten(ErrorCode.FENCED_MEMBER_EPOCH), driver.now)
    assert driver.poll() == [(Change.LOST, [0, 1])]
    driver.wait(RETRY_MS)
    _, call = driver.beat()
    assert (call.epoch, call.owned) == (0, ())
    assert driver.poll() == []


def test_what_the_program_owns_is_confirmed_when_it_has_given_it_up() -> None:
    driver = with_two_partitions()
    driver.wait(BEAT_MS)
    driver.answer(driver.beat()[0], 1, [0])
    assert driver.membership.take_calls() == []
    assert driver.poll() == [(Change.REVOKED, [1])]
    number, call = driver.beat()
    assert listed(call) == [0]
    driver.answer(number, 2)
    assert driver.membership.take_calls() == []
    assert Owned("t", 1, TOPIC_ID) not in driver.membership.owned


def test_a_session_counts_from_when_the_heartbeat_was_sent() -> None:
    """The coordinator may have seen it right then, however late its answer is."""
    driver = with_two_partitions()
    driver.wait(BEAT_MS)
    sent = driver.now
    number, _ = driver.beat()
    driver.wait(SESSION_MS // 2)
    driver.answer(number, 1)
    driver.wait(sent + SESSION_MS - driver.now - 1)
    assert driver.poll() == []
    driver.wait(1)
    assert driver.poll() == [(Change.LOST, [0, 1])]

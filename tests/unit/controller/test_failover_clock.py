"""From the loss of a node until everything that it led is led by others."""

from __future__ import annotations

from hapax.controller.failover_clock import FailoverClock
from hapax.core.types import PartitionIndex, TopicId, TopicIdPartition

ONE, TWO = (TopicIdPartition(TopicId(bytes(16)), PartitionIndex(index)) for index in range(2))


class Watched:
    def __init__(self) -> None:
        self.now = 10.0
        self.seconds: list[float] = []
        self.clock = FailoverClock(lambda: self.now, self.seconds.append)
        self.settled: set[TopicIdPartition] = set()

    def planned(self, *elected: TopicIdPartition) -> None:
        self.clock.planned(elected, self.settled.__contains__)


def test_the_last_acceptance_ends_it() -> None:
    watched = Watched()
    watched.clock.lost()
    watched.now = 10.5
    watched.clock.lost()  # another node, in the same failover
    watched.planned(ONE, TWO)
    watched.now = 11
    watched.clock.changed(ONE, True)
    watched.clock.changed(TWO, False)
    assert watched.seconds == []
    watched.now = 12
    watched.clock.changed(TWO, True)
    watched.clock.changed(TWO, True)
    assert watched.seconds == [2]


def test_a_node_that_led_nothing_takes_no_failover() -> None:
    watched = Watched()
    watched.clock.lost()
    watched.planned()
    watched.now = 50
    watched.planned(ONE)
    watched.now = 51
    watched.clock.changed(ONE, True)
    assert watched.seconds == [1], "counted from the plan: the node was lost before this controller acted"


def test_whoever_acts_no_more_forgets_it() -> None:
    watched = Watched()
    watched.clock.lost()
    watched.planned(ONE)
    watched.clock.forget()
    watched.clock.changed(ONE, True)
    assert watched.seconds == []


def test_an_election_that_was_not_written_and_is_not_wanted_any_more_is_forgotten() -> None:
    """The store was away, and the node answered again before it was back: the next failover is not this one."""
    watched = Watched()
    watched.clock.lost()
    watched.planned(ONE, TWO)
    watched.settled = {ONE}
    watched.planned(TWO)
    watched.settled = {ONE, TWO}
    watched.planned()
    watched.now = 5000
    watched.clock.lost()
    watched.settled = {TWO}
    watched.planned(ONE)
    watched.planned()  # written, and not accepted yet
    watched.now = 5001
    watched.clock.changed(ONE, True)
    assert watched.seconds == [1]

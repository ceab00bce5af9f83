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


def test_the_last_acceptance_ends_it() -> None:
    watched = Watched()
    watched.clock.lost()
    watched.now = 10.5
    watched.clock.lost()  # another node, in the same failover
    watched.clock.planned([ONE, TWO])
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
    watched.clock.planned([])
    watched.now = 50
    watched.clock.planned([ONE])
    watched.now = 51
    watched.clock.changed(ONE, True)
    assert watched.seconds == [1], "counted from the plan: the node was lost before this controller acted"


def test_whoever_acts_no_more_forgets_it() -> None:
    watched = Watched()
    watched.clock.lost()
    watched.clock.planned([ONE])
    watched.clock.forget()
    watched.clock.changed(ONE, True)
    assert watched.seconds == []

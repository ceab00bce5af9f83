"""Rounds of questions: which of a follower's fetches were sent after which questions."""

from __future__ import annotations

import random

from hapax.core.partition.barrier import ENDLESS, Conversation, Rounds
from hapax.core.partition.replication import Proposal, Replication
from hapax.core.types import NodeId


def replication(*isr: int, replicas: tuple[int, ...] = (0, 1, 2)) -> Replication:
    return Replication(
        NodeId(0), [NodeId(n) for n in replicas], [NodeId(n) for n in isr], 10, log_end=0, min_insync=1, now_ms=0)


def test_a_question_joins_the_round_that_no_answer_has_carried_yet() -> None:
    rounds = Rounds()
    assert [rounds.ask(), rounds.ask()] == [1, 1]
    assert rounds.leave() == 1
    assert [rounds.ask(), rounds.ask(), rounds.leave(), rounds.ask()] == [2, 2, 2, 3]


def test_a_fetch_that_was_on_its_way_says_nothing() -> None:
    follower = Conversation()
    follower.asked(5, 4)
    follower.answered(5, 1)
    follower.asked(6, 4)
    assert follower.heard == 0, "sent before it had read answer 5"
    follower.answered(6, 1)
    follower.asked(7, 5)
    assert follower.heard == 1


def test_a_follower_that_does_not_say_what_it_read_has_read_all_but_two() -> None:
    follower = Conversation()
    follower.asked(5, None)
    follower.answered(5, 1)
    follower.asked(6, None)
    assert follower.heard == 0
    follower.answered(6, 1)
    follower.asked(7, None)
    assert follower.heard == 1


def test_a_follower_cannot_have_read_what_was_not_answered() -> None:
    follower = Conversation()
    follower.answered(5, 3)
    follower.asked(5, 1000)
    assert follower.heard == 0


def test_no_fetch_counts_that_was_sent_before_its_question() -> None:
    """Two fetches at once over a connection that delays each way: `heard` against when each fetch was sent."""
    draw = random.Random(11)
    for _ in range(200):
        rounds, leader = Rounds(), Conversation()
        asked_at: dict[int, int] = {}
        to_leader: list[tuple[int, int | None, int]] = []
        to_follower: list[int] = []
        held: list[int] = []
        says = draw.random() < 0.5
        sent = 0
        read = -1
        for now in range(200):
            step = draw.randrange(4)
            if step == 0 and sent - 1 - read < 2:
                to_leader.append((sent, read if says else None, now))
                sent += 1
            elif step == 1:
                asked_at[rounds.ask()] = now
            elif step == 2 and to_leader:
                number, said, sent_at = to_leader.pop(0)
                leader.asked(number, said)
                held.append(number)
                assert leader.heard == 0 or asked_at[leader.heard] < sent_at
            elif step == 3 and held:
                leader.answered(held[0], rounds.leave())
                to_follower.append(held.pop(0))
            if to_follower and draw.random() < 0.5:
                read = to_follower.pop(0)


def test_everybody_who_could_be_elected_has_to_answer() -> None:
    known = replication(0, 1, 2)
    assert known.confirmed() == 0
    known.heard(NodeId(1), 3)
    assert known.confirmed() == 0
    known.heard(NodeId(2), 2)
    known.heard(NodeId(2), 1)
    assert known.confirmed() == 2
    assert replication(0).confirmed() == ENDLESS, "nobody else may lead"


def test_a_member_counts_from_its_proposal_and_until_its_removal_is_stored() -> None:
    known = replication(0, 1)
    known.heard(NodeId(1), 5)
    assert known.confirmed() == 5
    known.sent(Proposal((NodeId(0), NodeId(2)), (NodeId(2),), (NodeId(1),), 10))
    assert known.confirmed() == 0, "2 may have been stored"
    known.heard(NodeId(2), 7)
    assert known.confirmed() == 5, "1 may still be there"
    known.stored([NodeId(n) for n in (0, 1, 2)], [NodeId(0), NodeId(2)], 11, log_end=0, now_ms=0)
    assert known.confirmed() == 7

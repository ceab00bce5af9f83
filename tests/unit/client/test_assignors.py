"""The leader's assignors, and the bytes in which members tell each other what they read and own."""

from __future__ import annotations

import random

import pytest

from hapax.client.assignors import ASSIGNORS, Assignment, Candidate, cooperative_sticky
from hapax.client.subscription import (
    BadSubscription,
    Pairs,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)


def member(name: str, *topics: str, owned: Pairs = frozenset(), generation: int = 1) -> Candidate:
    return Candidate(name, None, Subscription(topics, owned, generation))


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("seed", range(20))
def test_each_partition_is_given_once_to_a_member_that_subscribes(name: str, seed: int) -> None:
    rng = random.Random(seed)
    topics = {f"t{n}": rng.randrange(1, 9) for n in range(rng.randrange(1, 4))}
    members = [member(f"m{n}", *rng.sample(sorted(topics), rng.randrange(1, len(topics) + 1))) for n in range(4)]
    given = ASSIGNORS[name](members, topics)
    assert set(given) == {each.member_id for each in members}
    wanted = {(topic, p) for topic, count in topics.items() for p in range(count)
              if any(topic in each.subscription.topics for each in members)}
    found = [each for partitions in given.values() for each in partitions]
    assert len(found) == len(set(found)) and set(found) == wanted
    for each in members:
        assert all(topic in each.subscription.topics for topic, _ in given[each.member_id])


def test_a_partition_that_moves_is_given_to_nobody_until_its_owner_has_let_go() -> None:
    all_four = frozenset(("t", p) for p in range(4))
    given = cooperative_sticky([member("a", "t", owned=all_four), member("b", "t")], {"t": 4})
    assert len(given["a"]) == 2 and given["b"] == frozenset()
    following: Assignment = cooperative_sticky([member("a", "t", owned=given["a"]), member("b", "t")], {"t": 4})
    assert following["a"] == given["a"] and following["b"] == all_four - given["a"]


def test_the_claim_of_a_later_generation_counts() -> None:
    both = frozenset({("t", 0)})
    given = cooperative_sticky(
        [member("a", "t", owned=both, generation=3), member("b", "t", owned=both, generation=4)], {"t": 2})
    assert given["b"] == both and given["a"] == frozenset({("t", 1)})


def test_subscriptions_and_assignments_keep_their_content() -> None:
    owned = frozenset({("a", 0), ("a", 5), ("ü", 1)})
    subscription = Subscription(("a", "ü"), owned, 7)
    data = encode_subscription(subscription)
    assert decode_subscription(data) == subscription
    assert decode_subscription(data + b"of a later version") == subscription
    assert decode_assignment(encode_assignment(owned)) == owned
    assert decode_assignment(b"") == frozenset()
    # Version 0, of an old member, and version 1 with the generation where sticky assignors put it.
    assert decode_subscription(b"\0\0\0\0\0\1\0\1a\xff\xff\xff\xff") == Subscription(("a",))
    assert decode_subscription(b"\0\1\0\0\0\1\0\1a\0\0\0\4\0\0\0\x09\0\0\0\0") == Subscription(("a",), frozenset(), 9)


def test_damaged_bytes_are_refused() -> None:
    data = encode_subscription(Subscription(("abc",), frozenset({("abc", 1)}), 1))
    for end in range(len(data) - 8):
        with pytest.raises(BadSubscription):
            decode_subscription(data[:end])
    for data in (b"\0\1\x7f\xff\xff\xff", b"\0\1\xff\xff\xff\xff", b"\0\1\0\0\0\1\0\1\xff\0\0\0\0"):
        with pytest.raises(BadSubscription):
            decode_assignment(data)

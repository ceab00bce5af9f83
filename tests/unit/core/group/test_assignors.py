"""Each assignor against its definition, for any members, topics and former target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hapax.core.group.assignors import ASSIGNORS, Subscriber, range_assignor, uniform
from hapax.core.group.values import Partitions
from hapax.core.types import TopicId

IDS = tuple(TopicId(name.encode().ljust(16, b".")) for name in "abcd")
NAMES = tuple(f"m{number}" for number in range(7))
Target = Mapping[str, Partitions]

ordinary = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is slow."""

counts = st.dictionaries(st.sampled_from(IDS), st.integers(0, 9)).map(lambda found: dict(sorted(found.items())))
partitions = st.frozensets(st.tuples(st.sampled_from(IDS), st.integers(0, 10)), max_size=12)


@st.composite
def groups(draw: st.DrawFn, mixed: bool = True) -> tuple[list[Subscriber], dict[TopicId, int], dict[str, Partitions]]:
    topics = draw(counts)
    subscriptions = st.frozensets(st.sampled_from(tuple(topics) or IDS[:1])).map(lambda ids: ids.intersection(topics))
    same = draw(subscriptions)
    members = [
        Subscriber(
            name, draw(st.sampled_from((None, f"i{name}", f"a{name}"))), draw(subscriptions) if mixed else same)
        for name in draw(st.permutations(NAMES[:draw(st.integers(1, len(NAMES)))]))
    ]
    former: dict[str, Partitions] = {}
    for name in NAMES:  # also of members that have left; no partition twice
        taken = frozenset().union(*former.values()) if former else frozenset()
        former[name] = draw(partitions) - taken
    return members, topics, former


def check_covers(members: Sequence[Subscriber], topics: Mapping[TopicId, int], target: Target) -> None:
    """Each partition of each subscribed topic is given to one member, which subscribes to the topic."""
    assert target.keys() == {member.member_id for member in members}
    for member in members:
        assert all(topic_id in member.topic_ids for topic_id, _ in target[member.member_id])
    given_out = sorted(partition for mine in target.values() for partition in mine)
    subscribed = frozenset().union(*(member.topic_ids for member in members))
    assert given_out == sorted(
        (topic_id, index) for topic_id, count in topics.items() if topic_id in subscribed for index in range(count))


@pytest.mark.parametrize("name", ASSIGNORS)
@ordinary
@given(group=groups())
def test_every_partition_has_one_owner(name: str, group: tuple[list[Subscriber], dict[TopicId, int], Target]) -> None:
    members, topics, former = group
    check_covers(members, topics, ASSIGNORS[name](members, topics, former))


@pytest.mark.parametrize("name", ASSIGNORS)
@ordinary
@given(group=groups(), data=st.data())
def test_the_order_of_members_does_not_matter(
    name: str, group: tuple[list[Subscriber], dict[TopicId, int], Target], data: st.DataObject
) -> None:
    members, topics, former = group
    other = data.draw(st.permutations(members))
    assert ASSIGNORS[name](members, topics, former) == ASSIGNORS[name](other, topics, former)


@ordinary
@given(group=groups(mixed=False))
def test_uniform_is_balanced_and_moves_as_few_as_can_be(
    group: tuple[list[Subscriber], dict[TopicId, int], Target]
) -> None:
    members, topics, former = group
    target = uniform(members, topics, former)
    total = sum(topics[topic_id] for topic_id in members[0].topic_ids)
    share, larger = divmod(total, len(members))
    sizes = sorted((len(mine) for mine in target.values()), reverse=True)
    assert sizes == [share + 1] * larger + [share] * (len(members) - larger)
    # A member can keep its share, and as many as get a larger share can keep one more.
    had = [
        sum(topic_id in member.topic_ids and index < topics[topic_id] for topic_id, index in former[member.member_id])
        for member in members
    ]
    can_stay = sum(min(each, share) for each in had) + min(larger, sum(each > share for each in had))
    stays = sum(len(mine & former[member_id]) for member_id, mine in target.items())
    assert stays == can_stay
    assert uniform(members, topics, target) == target


@ordinary
@given(group=groups())
def test_uniform_of_mixed_subscriptions_cannot_be_improved_by_a_move(
    group: tuple[list[Subscriber], dict[TopicId, int], Target]
) -> None:
    members, topics, former = group
    target = uniform(members, topics, former)
    load = {member_id: len(mine) for member_id, mine in target.items()}
    for topic_id in topics:
        subscribers = [member.member_id for member in members if topic_id in member.topic_ids]
        least = min((load[each] for each in subscribers), default=0)
        for member_id, mine in target.items():
            if any(topic_id == each for each, _ in mine):
                assert load[member_id] - least <= 1
    assert uniform(members, topics, target) == target, "where nothing has changed, nothing moves"


@ordinary
@given(group=groups())
def test_range_deals_consecutive_ranges_in_order(group: tuple[list[Subscriber], dict[TopicId, int], Target]) -> None:
    members, topics, former = group
    target = range_assignor(members, topics, former)
    in_order = sorted(
        members, key=lambda member: (0, member.instance_id) if member.instance_id else (1, member.member_id))
    for topic_id, count in topics.items():
        subscribers = [member.member_id for member in in_order if topic_id in member.topic_ids]
        dealt = [sorted(index for each, index in target[member_id] if each == topic_id) for member_id in subscribers]
        assert [index for mine in dealt for index in mine] == list(range(count if subscribers else 0))
        sizes = [len(mine) for mine in dealt]
        assert sizes == sorted(sizes, reverse=True)
        assert not sizes or max(sizes) - min(sizes) <= 1


def test_range_splits_topics_alike() -> None:
    ids = frozenset(IDS[:2])
    members = [Subscriber("m1", None, ids), Subscriber("m2", "i2", ids)]
    target = range_assignor(members, {IDS[0]: 3, IDS[1]: 3}, {})
    assert target["m2"] == {(IDS[0], 0), (IDS[0], 1), (IDS[1], 0), (IDS[1], 1)}


def test_uniform_spreads_each_topic() -> None:
    ids = frozenset(IDS[:2])
    members = [Subscriber(name, None, ids) for name in NAMES[:2]]
    topics = {IDS[0]: 2, IDS[1]: 2}
    everything = frozenset((topic_id, index) for topic_id in ids for index in range(2))
    for former in ({}, {NAMES[0]: everything}):
        for mine in uniform(members, topics, former).values():
            assert {topic_id for topic_id, _ in mine} == ids

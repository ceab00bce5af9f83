"""How the leader of a group of the classic protocol divides the partitions among the members.

`range` and `roundrobin` are eager: every member gives up everything before each round. `cooperative-sticky` lets
members keep their partitions and moves as few as possible. A partition that moves has no owner after the round in which
its former owner learns that it has to give it up (KIP-429); that member then begins the next round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from hapax.client.subscription import Pairs, Subscription
from hapax.core.group.assignors import Subscriber, range_assignor, uniform
from hapax.core.types import TopicId


class Candidate(NamedTuple):
    member_id: str
    instance_id: str | None
    subscription: Subscription


Assignment = dict[str, Pairs]
"""Member id -> its partitions, with an entry for every member."""
Assignor = Callable[[list[Candidate], Mapping[str, int]], Assignment]
"""Arguments: the members; existing topic -> number of partitions."""


def by_range(members: list[Candidate], topics: Mapping[str, int]) -> Assignment:
    return _named(range_assignor(_subscribers(members), _counts(topics), {}))


def roundrobin(members: list[Candidate], topics: Mapping[str, int]) -> Assignment:
    """Assigns the partitions in order, one to each member in turn that subscribes to the topic."""
    given: dict[str, set[tuple[str, int]]] = {each.member_id: set() for each in members}
    turns = sorted(members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id))
    for topic in sorted(topics):
        if not any(topic in each.subscription.topics for each in turns):
            continue
        for partition in range(topics[topic]):
            while topic not in turns[0].subscription.topics:
                turns.append(turns.pop(0))
            given[turns[0].member_id].add((topic, partition))
            turns.append(turns.pop(0))
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def cooperative_sticky(members: list[Candidate], topics: Mapping[str, int]) -> Assignment:
    former = {
        member_id: frozenset((_id(topic), partition) for topic, partition in partitions)
        for member_id, partitions in _owners(members).items()
    }
    target = _named(uniform(_subscribers(members), _counts(topics), former))
    claims = Counter(each for member in members for each in member.subscription.owned)
    for member in members:
        own = member.subscription.owned
        target[member.member_id] = frozenset(
            each for each in target[member.member_id] if each in own or not claims[each])
    return target


COOPERATIVE_STICKY: Final = "cooperative-sticky"
ASSIGNORS: Final[Mapping[str, Assignor]] = {
    COOPERATIVE_STICKY: cooperative_sticky, "range": by_range, "roundrobin": roundrobin}


def _owners(members: list[Candidate]) -> Assignment:
    """The partitions that each member keeps of those it claims. If two claim one, the later generation counts."""
    claims: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for member in members:
        for each in member.subscription.owned:
            claims.setdefault(each, []).append((member.subscription.generation, member.member_id))
    kept: dict[str, set[tuple[str, int]]] = {}
    for each, claimed in claims.items():
        latest = max(generation for generation, _ in claimed)
        owners = [member_id for generation, member_id in claimed if generation == latest]
        if len(owners) == 1:
            kept.setdefault(owners[0], set()).add(each)
    return {member_id: frozenset(partitions) for member_id, partitions in kept.items()}


def _subscribers(members: list[Candidate]) -> list[Subscriber]:
    return [
        Subscriber(each.member_id, each.instance_id, frozenset(map(_id, each.subscription.topics))) for each in members]


def _counts(topics: Mapping[str, int]) -> dict[TopicId, int]:
    return {_id(topic): topics[topic] for topic in sorted(topics)}


def _id(topic: str) -> TopicId:
    """The server's assignors identify topics by ids, of which they only need an order."""
    return TopicId(topic.encode())


def _named(target: Mapping[str, frozenset[tuple[TopicId, int]]]) -> Assignment:
    return {
        member_id: frozenset((topic_id.decode(), partition) for topic_id, partition in partitions)
        for member_id, partitions in target.items()
    }

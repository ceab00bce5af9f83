"""The server's assignors: they decide which member of a consumer group gets which partition (KIP-848).

`uniform` gives all members the same number of partitions, give or take one, and moves as few partitions as possible.
Where members subscribe to different topics, it moves a partition only to a member that has at least two fewer, until no
such move is left.

`range` splits each topic into consecutive ranges. Members are ordered by instance id, or by member id where they have
none. Topics with the same subscribers and the same number of partitions are split alike.

Both are pure functions: the same members, topics and former target give the same target, whatever the order of sets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from hapax.core.group.values import NO_PARTITIONS, Partitions
from hapax.core.types import TopicId

Partition = tuple[TopicId, int]


class Subscriber(NamedTuple):
    member_id: str
    instance_id: str | None
    topic_ids: frozenset[TopicId]
    """Ids of the existing topics that the member subscribes to."""


Assignor = Callable[[Sequence[Subscriber], Mapping[TopicId, int], Mapping[str, Partitions]], dict[str, Partitions]]
"""Arguments: the members; topic id -> number of partitions, in the order in which the assignor goes through the topics;
member id -> former target. Returns member id -> target, with an entry for every member."""


def uniform(
    members: Sequence[Subscriber], topics: Mapping[TopicId, int], former: Mapping[str, Partitions]
) -> dict[str, Partitions]:
    target = {member.member_id: NO_PARTITIONS for member in members}
    subscribers = _in_order(member for member in members if member.topic_ids)
    if not subscribers:
        return target
    if len({member.topic_ids for member in subscribers}) == 1:
        (subscribed,) = {member.topic_ids for member in subscribers}
        names = [member.member_id for member in subscribers]
        wanted = [
            (topic_id, index) for topic_id, count in topics.items() if topic_id in subscribed for index in range(count)
        ]
        return target | _same_topics(names, wanted, former)
    return target | _Mixed(subscribers, topics, former).target()


def range_assignor(
    members: Sequence[Subscriber], topics: Mapping[TopicId, int], former: Mapping[str, Partitions]
) -> dict[str, Partitions]:
    given: dict[str, list[Partition]] = {member.member_id: [] for member in members}
    in_order = _in_order(members)
    for topic_id, count in topics.items():
        subscribers = [given[member.member_id] for member in in_order if topic_id in member.topic_ids]
        if not subscribers:
            continue
        share, longer = divmod(count, len(subscribers))
        start = 0
        for position, partitions in enumerate(subscribers):
            end = start + share + (position < longer)
            partitions.extend((topic_id, index) for index in range(start, end))
            start = end
            if start == count:
                break
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_assignor}


def _in_order(members: Iterable[Subscriber]) -> list[Subscriber]:
    """Static members come first, by instance id, so that a restarted one takes the same place as before."""
    return sorted(members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id))


def _same_topics(
    members: Sequence[str], wanted: Sequence[Partition], former: Mapping[str, Partitions]
) -> dict[str, Partitions]:
    """Assigns the partitions of topics to which all members subscribe."""
    share, larger = divmod(len(wanted), len(members))
    everything = frozenset(wanted)
    taken: set[Partition] = set()
    kept: dict[str, Partitions] = {}
    for member in members:
        mine = former.get(member, NO_PARTITIONS)
        if not mine <= everything:
            mine &= everything
        if not taken.isdisjoint(mine):
            mine -= taken
        limit = share + 1 if larger else share
        if len(mine) > limit:
            # Sorted by index first, so that the member keeps a part of each topic.
            mine = frozenset(sorted(mine, key=lambda each: (each[1], each[0]))[:limit])
        if len(mine) > share:
            larger -= 1
        kept[member] = mine
        taken |= mine
    if len(taken) == len(wanted):
        return kept
    short: deque[tuple[str, list[Partition], int]] = deque()
    for member in members:
        missing = share - len(kept[member])
        if larger and missing >= 0:
            larger -= 1
            missing += 1
        if missing > 0:
            short.append((member, [], missing))
    for partition in wanted:  # one to each member in turn, which spreads a topic over many members
        if partition in taken:
            continue
        member, given, missing = short.popleft()
        given.append(partition)
        if len(given) < missing:
            short.append((member, given, missing))
        else:
            kept[member] |= frozenset(given)
    return kept


class _Mixed:
    """An assignment for members that subscribe to different topics."""

    def __init__(
        self, subscribers: Sequence[Subscriber], topics: Mapping[TopicId, int], former: Mapping[str, Partitions]
    ) -> None:
        self._members = subscribers
        self._load = [0] * len(subscribers)
        self._held: dict[TopicId, dict[int, list[int]]] = {}
        """Topic id -> position of a member -> the partitions of the topic that it holds."""
        self._subscribers: dict[TopicId, list[int]] = {topic_id: [] for topic_id in topics}
        for position, member in enumerate(subscribers):
            for topic_id in member.topic_ids:
                if topic_id in self._subscribers:
                    self._subscribers[topic_id].append(position)
        self._subscribers = {topic_id: who for topic_id, who in self._subscribers.items() if who}
        free = self._keep(topics, former)
        # Topics with fewer subscribers come first, because their partitions have the least choice.
        by_choice = sorted(self._subscribers, key=lambda topic_id: len(self._subscribers[topic_id]))
        for topic_id in by_choice:
            self._deal(topic_id, free[topic_id])
        while any([self._level(topic_id) for topic_id in by_choice]):
            pass  # each move lowers the sum of the squared loads, so the loop ends

    def target(self) -> dict[str, Partitions]:
        given: list[list[Partition]] = [[] for _ in self._members]
        for topic_id, holders in self._held.items():
            for position, partitions in holders.items():
                given[position].extend((topic_id, index) for index in partitions)
        return {member.member_id: frozenset(given[position]) for position, member in enumerate(self._members)}

    def _keep(self, topics: Mapping[TopicId, int], former: Mapping[str, Partitions]) -> dict[TopicId, list[int]]:
        """Lets members keep what they had and still subscribe to. Returns the partitions that are left."""
        left = {topic_id: dict.fromkeys(range(topics[topic_id])) for topic_id in self._subscribers}
        for position, member in enumerate(self._members):
            for topic_id, index in sorted(former.get(member.member_id, NO_PARTITIONS)):
                if topic_id in member.topic_ids and topic_id in left and index in left[topic_id]:
                    del left[topic_id][index]
                    self._held.setdefault(topic_id, {}).setdefault(position, []).append(index)
                    self._load[position] += 1
        return {topic_id: list(indexes) for topic_id, indexes in left.items()}

    def _deal(self, topic_id: TopicId, free: Sequence[int]) -> None:
        if not free:
            return
        load = self._load
        holders = self._held.setdefault(topic_id, {})
        queue = [(load[position], position) for position in self._subscribers[topic_id]]
        heapify(queue)
        for index in free:
            _, position = heappop(queue)
            holders.setdefault(position, []).append(index)
            load[position] += 1
            heappush(queue, (load[position], position))

    def _level(self, topic_id: TopicId) -> bool:
        """Moves partitions of the topic from members with more to members with at least two fewer."""
        load, holders, subscribers = self._load, self._held.get(topic_id, {}), self._subscribers[topic_id]
        most = max((load[position] for position in holders), default=0)
        if most - min(load[position] for position in subscribers) < 2:
            return False
        givers = [(-load[position], position) for position in holders]
        takers = [(load[position], position) for position in subscribers]
        heapify(givers)
        heapify(takers)
        moved = False
        while givers:
            giver, taker = givers[0][1], takers[0][1]
            if giver not in holders or -givers[0][0] != load[giver]:
                heappop(givers)
            elif takers[0][0] != load[taker]:
                heappop(takers)
            elif load[giver] - load[taker] < 2:
                break
            else:
                moved = True
                holders.setdefault(taker, []).append(holders[giver].pop())
                if not holders[giver]:
                    del holders[giver]
                load[giver] -= 1
                load[taker] += 1
                for position in (giver, taker):
                    heappush(givers, (-load[position], position))
                    heappush(takers, (load[position], position))
        return moved

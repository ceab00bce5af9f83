"""Regular expressions of subscriptions match only topics that their member may describe: an assignment would tell that
others exist."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hapax.coordinator.groups import OffsetsShard
from hapax.core.access.index import AccessIndex, Policy
from hapax.core.access.principals import Principal
from hapax.core.errors import ErrorCode
from hapax.core.group.values import ConsumerGroupHeartbeat, ConsumerHeartbeatAnswer, OwnedTopic
from hapax.runtime.access import Access
from unit.coordinator.coordinator_world import CoordinatorWorld, run
from unit.core.access.test_decisions import rules

GROUP = "readers"
ONE = "allow alice describe topic open"
BOTH = f"{ONE}; allow alice describe topic hidden"


class Member:
    """Tells its shard what it owns when that has changed."""

    def __init__(self, world: CoordinatorWorld, shard: OffsetsShard, name: str, principal: str) -> None:
        self.world, self.shard, self.name, self.principal = world, shard, name, principal
        self.epoch = 0
        self.topics: set[str] = set()
        self.told: set[str] | None = None

    async def beat(self) -> None:
        view, joins = self.shard.resources.view, not self.epoch
        owned = tuple(
            OwnedTopic(topic.topic_id, (0,)) for topic in map(view.topic, sorted(self.topics)) if topic is not None)
        tells, self.told = self.topics != self.told, set(self.topics)
        answer = await self.shard.ask(ConsumerGroupHeartbeat(
            1, GROUP, self.name, self.epoch, None, None, 60_000 if joins else -1, None, ".*n" if joins else None,
            None, owned if tells else None, "c", "/10.0.0.1", "", principal=Principal(self.principal)))
        assert isinstance(answer, ConsumerHeartbeatAnswer) and answer.error is ErrorCode.NONE
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            named = (view.topic_by_id(topic_id) for topic_id, _ in answer.assignment)
            self.topics = {topic.name for topic in named if topic is not None}

    async def live(self, seconds: float) -> None:
        for _ in range(int(seconds / 2)):
            await self.beat()
            await asyncio.sleep(2)


async def authorised(world: CoordinatorWorld, bindings: str) -> tuple[OffsetsShard, Access]:
    await world.start(("open", 1), ("hidden", 1))
    name = world.owner_of_group(GROUP)
    shard = world.coordinator(name).shards.group_shard(GROUP)
    access = Access(world.view(name), Policy(), frozenset())
    shard.resources = replace(shard.resources, access=access)
    permit(access, bindings)
    return shard, access


def permit(access: Access, bindings: str) -> None:
    access.image.index = AccessIndex({str(at): each for at, each in enumerate(rules(bindings))})


def test_a_topic_that_a_member_may_not_describe_is_not_assigned_to_it() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        shard, _ = await authorised(world, ONE)
        member = Member(world, shard, "m", "User:alice")
        await member.live(30)
        assert member.topics == {"open"}

    run(scenario)


def test_a_right_that_ends_takes_the_topic_away_and_one_that_begins_brings_it_back() -> None:
    """At the next resolution, `group.consumer.regex.refresh.interval.ms` later at the latest."""

    async def scenario(world: CoordinatorWorld) -> None:
        shard, access = await authorised(world, BOTH)
        member = Member(world, shard, "m", "User:alice")
        await member.live(30)
        assert member.topics == {"open", "hidden"}
        permit(access, ONE)
        await member.live(630)
        assert member.topics == {"open"}
        permit(access, BOTH)
        await member.live(630)
        assert member.topics == {"open", "hidden"}

    run(scenario, limit_s=3_000)


def test_the_member_that_was_heard_last_decides() -> None:
    """The rights of a member's last heartbeat count, not those with which it joined."""

    async def scenario(world: CoordinatorWorld) -> None:
        shard, _ = await authorised(world, BOTH)
        member = Member(world, shard, "m", "User:alice")
        await member.live(30)
        member.principal = "User:bob"
        await member.live(630)
        assert member.topics == set()

    run(scenario, limit_s=3_000)


def test_without_an_authoriser_every_topic_is_assigned() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        shard, _ = await authorised(world, "")
        shard.resources = replace(shard.resources, access=None)
        member = Member(world, shard, "m", "User:ANONYMOUS")
        await member.live(30)
        assert member.topics == {"open", "hidden"}

    run(scenario)

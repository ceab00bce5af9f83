"""How a copier begins to read the partitions that its group has assigned to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from hapax.client.coordination import OffsetAndMetadata
from hapax.client.errors import FatalError, RetriableError
from hapax.client.metadata import Leader
from hapax.client.offsets import PartitionOffsets
from hapax.copy import shares as module
from hapax.copy.metrics import CopyCounts
from hapax.copy.own_topic import HiddenError
from hapax.copy.report import topic_reports
from hapax.copy.saved import Saved
from hapax.copy.settings import CopySettings
from hapax.copy.shares import Shares
from hapax.core.copy.position import Kind, Position, Trouble
from hapax.core.copy.topics import Wanted
from hapax.core.types import PartitionIndex, TopicPartition

SHARE, OTHER = TopicPartition("t", PartitionIndex(0)), TopicPartition("t", PartitionIndex(1))


class World:
    """What the shares ask. Answers about the source wait for `answers`, of OTHER for `of_other` too."""

    def __init__(self, groups: Any = None, *, by_key: bool = False) -> None:
        self.positions: dict[TopicPartition, OffsetAndMetadata] | None = None
        self.committed_offset: int | None = 100
        self.committed_of = ""
        self.refusal: Exception | None = None
        self.source_refusal: Exception | None = None
        self.saved: dict[TopicPartition, OffsetAndMetadata] = {}
        self.now_ms = 0
        self.shown = True
        self.answers = asyncio.Event()
        self.asked = asyncio.Event()
        self.of_other = asyncio.Event()
        self.other_fails = False
        self.asked_about: list[TopicPartition] = []
        self.leaders = {0: Leader(0, 0), 1: Leader(1, 0)}
        self.first_begins = asyncio.Event()
        self.began: list[int] = []
        self.readings: dict[TopicPartition, Any] = {}
        group = SimpleNamespace(committed=self._committed, pause=lambda *_: None, seek=lambda *_: None)
        reading = SimpleNamespace(
            existing=self._existing, follow=lambda _: None, cluster_id="", now=lambda: self.now_ms,
            options={"default.api.timeout.ms": 1000})
        target = SimpleNamespace(list_topics=self._list_topics, listed_offsets=self._listed_offsets)
        clients: Any = SimpleNamespace(group=group, reading=reading, target=target, source=SimpleNamespace(
            listed_offsets=self._listed_offsets))
        reader: Any = SimpleNamespace(add=self._add, drop=lambda _: None, readings=self.readings, bytes=0)
        topics: Any = SimpleNamespace(
            share_topic=lambda wanted: wanted.target, data_topic=lambda topic: topic)
        settings = CopySettings(source={}, target={}, topics="t", by_key=by_key)
        counts = CopyCounts(lambda: (), lambda: self.shares.state())
        saved: Any = SimpleNamespace(topic="positions", read=self._read_saved)
        self.hidden: HiddenError | None = None
        self.shares = Shares(settings, clients, topics, reader, saved, groups, counts, lambda: None)
        self.shares.map([Wanted("t", "t", "", 2)])

    async def _committed(self, shares: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        if self.refusal is not None:
            raise self.refusal
        if self.positions is not None:
            return {each: self.positions[each] for each in shares if each in self.positions}
        if self.committed_offset is None:
            return {}
        return {each: position_at(self.committed_offset, self.committed_of) for each in shares}

    async def _read_saved(self) -> Saved:
        return Saved(self.saved, self.hidden)

    async def _existing(self, names: Iterable[str]) -> dict[str, Any]:
        if self.source_refusal is not None:
            raise self.source_refusal
        return {name: SimpleNamespace(partitions=self.leaders, topic_id=UUID(int=0)) for name in names}

    async def _list_topics(self, names: Iterable[str]) -> list[Any]:
        return [SimpleNamespace(name=name, topic_id=str(UUID(int=9)), partitions=[SimpleNamespace(partition=0)])
                for name in names if self.shown]

    async def _listed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionOffsets]:
        self.asked_about += partitions
        self.asked.set()
        await self.answers.wait()
        if OTHER in set(partitions):
            await self.of_other.wait()
            if self.other_fails:
                raise RetriableError("its leader is away")
        return {each: PartitionOffsets(0, 1000, 1000) for each in partitions}

    def _add(self, partition: TopicPartition, offset: int, topic_id: UUID, epoch: int) -> Any:
        self.began.append(offset)
        self.first_begins.set()
        return SimpleNamespace()

    async def several_turns(self) -> None:
        """Of the copier's loop."""
        for _ in range(20):
            self.shares.admit_soon()
            await asyncio.sleep(0)

    async def admitted(self) -> None:
        while not self.shares.settled:
            self.shares.admit_soon()
            await asyncio.sleep(0)


async def test_a_share_that_was_given_away_meanwhile_begins_where_it_came_back() -> None:
    world = World()
    world.shares.assigned([SHARE])
    world.shares.admit_soon()
    await world.asked.wait()
    world.shares.revoked([SHARE])
    world.committed_offset = 200  # by another process
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.admitted()
    assert world.began == [200]


async def test_a_share_goes_on_though_its_group_has_lost_the_position() -> None:
    world = World()
    world.committed_offset = None
    world.saved[SHARE] = position_at(300, str(UUID(int=9)))
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.admitted()
    assert world.began == [300]
    assert world.shares.unclaimed == {SHARE: False}, "the group is given it again"


@pytest.mark.parametrize(("group", "saved", "begins", "unclaimed"), [
    (100, 100, 100, {}), (100, None, 100, {SHARE: False}), (100, 90, 100, {SHARE: False}),
    (90, 100, 100, {SHARE: False}), (None, None, None, {}),
])
async def test_the_later_position_counts_and_whoever_lacks_it_is_given_it(
    group: int | None, saved: int | None, begins: int | None, unclaimed: dict[TopicPartition, bool]
) -> None:
    """Otherwise the share would be copied twice once the group's offsets have expired, which nobody writes to."""
    world = World()
    world.committed_offset, world.committed_of = group, str(UUID(int=9))
    if saved is not None:
        world.saved[SHARE] = position_at(saved, world.committed_of)
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.admitted()
    assert world.began == ([] if begins is None else [begins])
    assert world.shares.unclaimed == unclaimed


async def test_positions_of_partitions_in_trouble_are_saved_too() -> None:
    world = World()
    world.committed_offset, world.committed_of = 1001, str(UUID(int=9))
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.admitted()
    assert "ends at offset 1000" in world.shares.troubles[SHARE][0].message
    assert world.shares.unread == {SHARE: position_at(1001, world.committed_of)} and not world.shares.unclaimed
    world.shares.revoked([SHARE])
    assert not world.shares.unread, "it is another process's now"


async def test_a_later_saved_position_counts_until_the_group_has_it() -> None:
    """A partition in trouble may be tried again before the next transaction, and one that is read may get into trouble
    before it. At the group's earlier position there may be no trouble, but records that were copied."""
    world = World()
    world.committed_offset, world.committed_of = 90, str(UUID(int=9))
    world.saved[SHARE] = position_at(1001, world.committed_of)
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.admitted()
    world.shares.pending.add(SHARE)
    await world.admitted()
    assert world.began == [] and world.shares.unread == {SHARE: world.saved[SHARE]}
    world.saved[SHARE] = position_at(100, world.committed_of)
    world.shares.pending.add(SHARE)
    await world.admitted()
    world.shares.put_in_trouble(SHARE, Trouble(Kind.DAMAGED, "t-0"))
    world.shares.pending.add(SHARE)
    await world.admitted()
    assert world.began == [100, 100]


async def test_a_later_saved_position_counts_though_the_source_was_not_to_be_read_at_first() -> None:
    world = World()
    world.answers.set()
    world.of_other.set()
    world.shares.assigned([OTHER])
    await world.admitted()
    world.committed_offset, world.committed_of = 90, str(UUID(int=9))
    world.saved[SHARE] = position_at(100, world.committed_of)
    world.source_refusal = FatalError("no")
    world.shares.assigned([SHARE])
    await world.admitted()
    world.source_refusal = None
    world.shares.pending.add(SHARE)
    await world.admitted()
    assert world.began == [100, 100]


async def test_positions_are_saved_again_though_the_topic_is_made_again_while_they_are_read() -> None:
    world = World()
    world.committed_offset, world.committed_of = 100, str(UUID(int=9))
    world.saved[SHARE] = position_at(100, world.committed_of)
    world.shares.assigned([SHARE])
    world.shares.admit_soon()
    await world.asked.wait()
    world.saved.clear()
    world.shares.save_again()
    world.answers.set()
    await world.admitted()
    assert world.began == [100] and world.shares.unclaimed == {SHARE: False}


@pytest.mark.parametrize("lost", [True, False])
async def test_a_new_partition_does_not_hide_that_the_target_was_restored(*, lost: bool) -> None:
    """By key, a position for the present topic says that what is there was copied since it was made: then the others
    begin again. `lost`: the group's positions are."""
    world = World(by_key=True)
    former = position_at(100, str(UUID(int=8)))
    world.saved[SHARE] = former
    world.positions = {} if lost else {SHARE: former}
    world.answers.set()
    world.of_other.set()
    world.shares.assigned([OTHER])
    await world.admitted()
    assert world.began == []
    assert "are of a former topic of that name" in world.shares.troubles[OTHER][0].message


async def test_a_topic_that_a_node_has_not_heard_of_is_not_an_empty_one() -> None:
    """By key, after a restore: an empty topic is filled from the beginning."""
    world = World(by_key=True)
    world.answers.set()
    world.shown = False
    with pytest.raises(RetriableError, match="does not show"):
        await world.shares._unused(SHARE, "t-0", former=True)


async def test_all_positions_are_saved_again_where_the_topic_was_made_again() -> None:
    world = World()
    world.committed_offset, world.committed_of = 100, str(UUID(int=9))
    world.saved[SHARE] = position_at(100, world.committed_of)
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.admitted()
    world.readings[SHARE] = SimpleNamespace(partition=SHARE)
    assert not world.shares.unclaimed
    world.shares.save_again()
    assert world.shares.unclaimed == {SHARE: False}


async def test_an_open_transaction_hides_saved_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share whose group has lost its position waits for them. Others do not, or a process that was frozen would hold
    them."""
    monkeypatch.setattr(module, "_PAUSE_S", 0)
    world = World()
    world.hidden = HiddenError("open")
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.admitted()
    assert world.began == [100] and world.shares.unclaimed == {SHARE: False}
    world.committed_offset = None
    world.saved[SHARE] = position_at(300, str(UUID(int=9)))
    world.shares.revoked([SHARE])
    world.shares.assigned([SHARE])
    await world.several_turns()
    assert world.began == [100]
    world.hidden = None
    await world.admitted()
    assert world.began == [100, 300]


async def test_a_right_that_is_missing_is_told_and_not_waited_for() -> None:
    """A copy that does not follow would try for ever."""
    world = World()
    world.refusal = FatalError("topic 'positions' cannot be used")
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.admitted()
    assert world.shares.troubles[SHARE][0] == Trouble(Kind.TARGET_REFUSES, "t-0: topic 'positions' cannot be used")
    world.refusal, world.source_refusal = None, FatalError("no")
    world.shares.pending.add(SHARE)
    await world.admitted()
    assert world.shares.troubles[SHARE][0] == Trouble(Kind.SOURCE_REFUSES, "t-0: no")


async def test_a_saved_position_that_cannot_be_read_is_told_where_it_is() -> None:
    world = World()
    world.committed_offset = None
    world.saved[SHARE] = OffsetAndMetadata(0, "later")
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.admitted()
    assert "t-0: topic 'positions' on the target has a position for it" in world.shares.troubles[SHARE][0].message
    assert not world.shares.unread, "it stays for the version that can read it"


async def test_a_saved_position_of_a_former_topic_counts_no_more() -> None:
    world = World()
    world.committed_offset = None
    world.saved[SHARE] = position_at(300, str(UUID(int=8)))
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.admitted()
    assert "already holds offsets up to 1000" in world.shares.troubles[SHARE][0].message


async def test_a_topic_that_the_target_does_not_show_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its id, nothing would tell it from one that is made in its place."""
    monkeypatch.setattr(module, "_PAUSE_S", 0)
    world = World()
    world.shown = False
    world.shares.assigned([SHARE])
    world.answers.set()
    await world.several_turns()
    assert world.began == []
    world.shown = True
    await world.admitted()
    assert world.began == [100]
    assert world.shares.target_ids[SHARE].share == str(UUID(int=9))


async def test_a_position_is_read_again_after_a_transaction_without_an_outcome() -> None:
    world = World()
    world.shares.assigned([SHARE])
    world.shares.admit_soon()
    await world.asked.wait()
    world.shares.read_positions_again()
    world.committed_offset = 200
    world.answers.set()
    await world.admitted()
    assert world.began == [200]


async def test_all_shares_begin_together() -> None:
    """A cut knows nothing of a partition that is not read yet, and would divide transactions."""
    world = World()
    world.shares.assigned([SHARE, OTHER])
    world.answers.set()
    await world.several_turns()
    assert world.began == []
    world.of_other.set()
    await world.first_begins.wait()
    assert world.began == [100, 100]


async def test_where_records_were_copied_to_is_read_once_for_all_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose runs are not known yet makes the others wait, too."""
    monkeypatch.setattr(module, "_PAUSE_S", 0)
    asked: list[set[TopicPartition]] = []

    async def load(shares: Iterable[TopicPartition]) -> set[TopicPartition]:
        asked.append(set(shares))
        return asked[-1] - {OTHER} if len(asked) == 1 else asked[-1]

    world = World(SimpleNamespace(load=load))
    world.shares.assigned([SHARE, OTHER])
    world.answers.set()
    world.of_other.set()
    await world.admitted()
    assert asked == [{SHARE, OTHER}] * 2
    assert world.began == [100, 100]


async def test_a_share_whose_position_cannot_be_read_holds_the_others_for_a_while(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0)
    world = World()
    world.other_fails = True
    world.shares.assigned([SHARE, OTHER])
    world.answers.set()
    world.of_other.set()
    await world.several_turns()
    world.now_ms = 29_999
    await world.several_turns()
    assert world.began == []
    world.now_ms = 30_000
    await world.several_turns()
    assert world.began == [100] and world.shares.pending == {OTHER}
    world.other_fails = False
    await world.admitted()
    assert world.began == [100, 100]


async def test_leaders_that_do_not_answer_cost_one_wait_and_not_one_after_another(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred partitions of a broker that is down would hold all the others for an hour and a half."""
    monkeypatch.setattr(module, "_LOOK_UP_S", 0.01)
    world = World()
    world.shares.assigned([SHARE, OTHER])
    world.shares.admit_soon()
    await world.asked.wait()
    assert sorted(world.asked_about) == [SHARE, OTHER]
    world.now_ms = 30_000
    world.answers.set()
    async with asyncio.timeout(5):
        await world.first_begins.wait()
    assert world.began == [100] and world.shares.pending == {OTHER}
    await world.shares.close()


async def test_a_partition_that_has_no_leader_costs_no_wait() -> None:
    world = World()
    world.leaders[1] = Leader(-1, 0)
    world.answers.set()
    world.shares.assigned([SHARE, OTHER])
    world.shares.admit_soon()
    await world.asked.wait()
    assert world.asked_about == [SHARE]
    await world.shares.close()


async def test_a_share_whose_position_is_not_known_for_long_is_told_of() -> None:
    """A copy that copies nothing must not look like one that has nothing to copy."""
    world = World()
    world.shares.assigned([SHARE])
    world.shares.admit_soon()
    await world.asked.wait()
    assert told(world) == [("", "")]
    world.now_ms = 10_000
    assert told(world) == [("waiting", "t-0: its position is not known yet; the copier's log says why")]
    world.answers.set()
    await world.admitted()
    assert told(world) == [("", "")]


def position_at(offset: int, target_id: str = "") -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, Position(offset, "", "t", "", target_id=target_id).metadata())


def told(world: World) -> list[tuple[str, str]]:
    topics: Any = SimpleNamespace(troubles={})
    settings = CopySettings(source={}, target={}, topics="t")
    return [(each["kind"], each["error"]) for each in topic_reports(settings, world.shares, topics)]

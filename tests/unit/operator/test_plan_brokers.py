"""Plans for the number of brokers: from a pool, its StatefulSet and what brokers hold to actions, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hapax.core.cluster.moves import Held
from hapax.core.types import NodeId, PartitionIndex, TopicPartition
from hapax_operator.plan_brokers import (
    BrokersSeen,
    Drain,
    Follow,
    Move,
    PoolPlan,
    SetReplicas,
    StatefulSetSeen,
    Undrain,
    plan,
)
from hapax_operator.resources import POOLS, Meta, PoolResource, Ref


def pool(replicas: int, *, paused: bool = False, **fields: Any) -> PoolResource:
    meta = Meta(ref=Ref(POOLS, "prod", "hapax-broker"), uid="pool", generation=1, created="", paused=paused)
    return PoolResource(meta=meta, replicas=replicas, chart_replicas=fields.pop("chart", 3), **fields)


def workload(replicas: int, chart: int | None = 3) -> StatefulSetSeen:
    return StatefulSetSeen(uid="set", replicas=replicas, chart_replicas=chart, selector="a=b")


class World:
    """Brokers with replicas, on which a plan is carried out."""

    def __init__(self, brokers: int, partitions: dict[str, list[tuple[int, ...]]], racks: int = 0) -> None:
        self.replicas = brokers
        self.live = set(range(brokers))
        self.racks = racks
        self.draining: set[int] = set()
        self.held = {
            TopicPartition(topic, PartitionIndex(index)): tuple(map(NodeId, replicas))
            for topic, all_ in partitions.items() for index, replicas in enumerate(all_)}
        self.moving: dict[TopicPartition, tuple[NodeId, ...]] = {}
        self.status: dict[str, Any] = {}
        self.wanted = brokers
        self.lowest = brokers

    def seen(self) -> BrokersSeen:
        held: dict[int, int] = {}
        for name, replicas in self.held.items():
            for broker in {*replicas, *self.moving.get(name, ())}:
                held[broker] = held.get(broker, 0) + 1
        return BrokersSeen(
            partitions={name: Held(self.moving.get(name, replicas), replicas) for name, replicas in self.held.items()},
            held=held, live=frozenset(self.live), draining=frozenset(self.draining),
            removing={name: tuple(set(self.held[name]) - set(target)) for name, target in self.moving.items()},
            fit={broker: f"rack-{broker % self.racks}" if self.racks else "" for broker in self.live})

    def look(self, *, apply: bool = True) -> PoolPlan:
        planned = plan(pool(self.wanted, status=dict(self.status)), workload(self.replicas), self.seen())
        self.status |= planned.status
        self.status["conditions"] = [{"message": each.message} for each in planned.conditions]
        for action in planned.actions if apply else ():
            match action:
                case SetReplicas(replicas):
                    for broker in range(replicas, self.replicas):
                        assert not any(broker in each for each in self.held.values()), "a broker with data was deleted"
                        assert broker in self.draining, "it could have got something new"
                    self.replicas = replicas
                    self.live = set(range(replicas))
                case Drain(brokers):
                    self.draining |= set(brokers)
                case Undrain(brokers, cancel):
                    self.draining -= set(brokers)
                    for name in cancel:
                        self.moving.pop(name)
                case Move(targets):
                    self.moving |= targets
        self.lowest = min(self.lowest, self.replicas)
        return planned

    def copied(self, count: int = 1_000) -> None:
        """Moves end."""
        for name in list(self.moving)[:count]:
            self.held[name] = self.moving.pop(name)

    def settled(self) -> PoolPlan:
        for _ in range(20):
            planned = self.look()
            if not planned.actions and not self.moving:
                return planned
            self.copied()
        raise AssertionError("the plan does not come to an end")


def ready(planned: PoolPlan) -> tuple[str, str]:
    (found,) = (each for each in planned.conditions if each.type == "Ready")
    return found.status, found.reason


def test_what_serves_as_wanted_is_left_alone() -> None:
    planned = World(3, {"orders": [(0, 1), (1, 2), (2, 0)]}).look()
    assert (planned.actions, ready(planned)) == ((), ("True", "AsDescribed"))
    assert (planned.status["replicas"], planned.status["serving"], planned.status["selector"]) == (3, 3, "a=b")


def test_the_chart_s_values_count_when_they_change_and_kubectl_scale_until_then() -> None:
    assert plan(pool(5, chart=3), workload(3, chart=4), BrokersSeen()).actions == (Follow(4),)
    assert plan(pool(5, chart=3), workload(3, chart=3), BrokersSeen()).actions == (SetReplicas(5),)


def test_new_brokers_start_and_get_their_share_once_they_serve() -> None:
    world = World(2, {"orders": [(0,), (1,), (0,), (1,), (0,), (1,)]})
    world.look()
    world.wanted = 3
    world.look()
    assert world.replicas == 3
    world.live = {0, 1}
    waiting = world.look()
    assert (waiting.actions, ready(waiting)) == ((), ("False", "BrokersMissing"))
    world.live = {0, 1, 2}
    begun = world.look()
    assert ready(begun) == ("False", "Rebalancing") and len(world.moving) == 2  # no more than that takes
    assert ready(world.look()) == ("False", "Rebalancing")  # it is not begun a second time
    assert ready(world.settled()) == ("True", "AsDescribed")
    assert sorted(broker for replicas in world.held.values() for broker in replicas) == [0, 0, 1, 1, 2, 2]


def test_a_pool_may_say_that_new_brokers_get_nothing_by_themselves() -> None:
    seen = World(3, {"orders": [(0,)] * 6}).seen()
    planned = plan(pool(3, rebalance="Never", status={"balancedFor": 1}), workload(3), seen)
    assert (planned.actions, planned.status["balancedFor"]) == ((), 3)


def test_brokers_leave_when_they_hold_nothing_and_not_before() -> None:
    world = World(4, {"orders": [(3, 0), (1, 3), (2, 1)]})
    world.wanted = 3
    first = world.look()
    assert [type(action) for action in first.actions] == [Drain, Move] and ready(first) == ("False", "Draining")
    assert (world.draining, world.replicas, world.status["leaving"]) == ({3}, 4, [3])
    world.copied(1)
    assert (world.look().actions, world.replicas) == ((), 4)
    world.copied()
    assert world.look().actions == (SetReplicas(3),)
    last = world.settled()
    assert (world.replicas, world.draining, ready(last)) == (3, set(), ("True", "AsDescribed"))
    assert world.status["leaving"] == [] and world.status["balancedFor"] == 3


def test_a_scale_down_that_leaves_too_few_brokers_is_refused_with_the_reason() -> None:
    world = World(3, {"orders": [(0, 1, 2)], "other": [(2,)]})
    world.wanted = 2
    planned = world.look()
    assert (planned.actions, ready(planned)) == ((), ("False", "Refused"))
    assert "orders-0 has 3 replicas and only 2 brokers would be left" in planned.conditions[0].message
    assert [note.reason for note in planned.notes] == ["Refused"]
    assert world.look().notes == ()  # told once
    assert world.status["leaving"] == [] and not world.draining


def test_a_dead_broker_with_the_only_copy_keeps_its_place_and_the_condition_names_it() -> None:
    world = World(3, {"orders": [(2,), (0,)]})
    world.wanted = 2
    world.live = {0, 1}
    world.look()
    name = TopicPartition("orders", PartitionIndex(0))
    seen = world.seen()
    lost = BrokersSeen(
        partitions={**seen.partitions, name: Held((NodeId(0),), ())}, held=seen.held, removing=seen.removing,
        fit=seen.fit, live=seen.live, draining=seen.draining)
    planned = plan(pool(2, status=world.status), workload(3), lost)
    assert (planned.actions, ready(planned)) == ((), ("False", "Draining"))
    assert "1 partitions have no other replica in sync yet: orders-0" in planned.conditions[0].message


def test_a_broker_that_holds_something_gets_its_place_back_to_hand_it_over() -> None:
    """A smaller value was installed over the volumes of a larger cluster; or something was placed there at the last."""
    world = World(4, {"orders": [(3,), (0,)]})
    world.replicas = world.wanted = 2
    world.live = {0, 1}
    planned = world.look()
    assert planned.actions == (SetReplicas(4),)
    assert "the replicas of broker 3 must move first" in planned.notes[0].message
    assert ready(world.settled()) == ("True", "AsDescribed") and (world.replicas, world.draining) == (2, set())
    assert not any(3 in replicas for replicas in world.held.values())


def test_a_scale_down_can_be_taken_back_half_way() -> None:
    world = World(4, {"orders": [(3, 0), (1, 3), (2, 3), (3, 1), (0, 3), (3, 2)]})
    world.wanted = 3
    world.look()
    world.copied(4)
    world.wanted = 4
    back = world.look()
    assert [type(action) for action in back.actions] == [Undrain] and not world.moving and not world.draining
    assert ready(world.settled()) == ("True", "AsDescribed") and world.lowest == 4
    assert world.status["leaving"] == []
    assert sum(3 in replicas for replicas in world.held.values()) == 3  # and it has its share again


def test_a_drain_that_a_person_began_is_not_taken_back_and_nothing_moves_there() -> None:
    world = World(4, {"orders": [(0,), (3,), (3,), (3,)]})
    world.draining = {1}
    world.wanted = 3
    world.settled()
    assert (world.draining, world.replicas) == ({1}, 3)
    assert not any(1 in replicas for replicas in world.held.values())


def test_a_paused_pool_is_only_looked_at() -> None:
    world = World(3, {"orders": [(0,)]})
    planned = plan(pool(1, paused=True), workload(3), world.seen())
    assert planned.actions == () and {each.type for each in planned.conditions} == {"Ready", "Paused"}


def test_volumes_are_kept_as_long_as_their_brokers_are_wanted_or_hold_something() -> None:
    world = World(3, {"orders": [(3,), (0,)]})
    assert world.look(apply=False).status["volumesKeptOf"] == [0, 1, 2, 3]
    assert World(3, {"orders": [(0,)]}).look().status["volumesKeptOf"] == [0, 1, 2]  # that of an ordinal 3 may go


def test_a_volume_is_replaced_only_while_nothing_on_it_is_the_last_copy_in_sync() -> None:
    seen = World(3, {"orders": [(0, 1), (1, 2)], "single": [(2,)]}).seen()

    def planned(broker: int, seen: BrokersSeen = seen) -> tuple[Any, str, str]:
        made = plan(pool(3, replace_volume_of=broker), workload(3), seen)
        (told,) = (each for each in made.conditions if each.type == "VolumeReplaceable")
        return made.status["volumesKeptOf"], told.status, told.message

    assert planned(1)[:2] == ([0, 2], "True")
    kept, status, message = planned(2)
    assert (kept, status) == ([0, 1, 2], "False")
    assert message.endswith("1 partitions of broker 2 have no other replica in sync: single-0")
    name = TopicPartition("orders", PartitionIndex(0))
    behind = {**seen.partitions, name: Held((NodeId(0), NodeId(1)), (NodeId(1),))}
    assert planned(1, replace(seen, partitions=behind))[:2] == ([0, 1, 2], "False")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=12), st.integers(1, 6), st.lists(st.integers(1, 6), max_size=4),
    st.integers(0, 3), st.lists(st.booleans(), min_size=60, max_size=60))
def test_however_it_is_scaled_and_killed_no_broker_with_data_is_ever_deleted(
    factors: list[int], brokers: int, wishes: list[int], racks: int, killed: list[bool]
) -> None:
    """`killed`: at that look the operator ends after it has written the status, or before it has done all."""
    world = World(brokers, {
        "orders": [tuple((first + k) % brokers for k in range(min(factor, brokers)))
                   for first, factor in enumerate(factors)]}, racks)
    ends = iter(killed)
    for wish in wishes:
        world.wanted = wish
        for _ in range(6):
            world.look(apply=not next(ends, False))
            if next(ends, False):
                world.copied(2)
    planned = world.settled()
    wide = max(len(replicas) for replicas in world.held.values())
    if world.wanted >= wide:
        assert ready(planned)[0] == "True" and world.replicas == world.wanted
        assert not world.draining and world.status["leaving"] == []
    else:
        assert ready(planned) == ("False", "Refused")
    assert all(len(set(replicas)) == len(replicas) for replicas in world.held.values())


def test_a_drain_of_a_former_pool_is_ended_and_the_event_says_so() -> None:
    """Its status is gone with it; the mark of draining says that a BrokerPool made it."""
    world = World(3, {"t": [(0, 1), (1, 2), (2, 0)]})
    world.draining = {2}
    seen = replace(world.seen(), drained_by_pool=frozenset({2}))
    made = plan(pool(3), workload(3), seen)
    assert made.actions == (Undrain((2,), ()),)
    assert made.conditions[0].message == "brokers 2 are no longer drained"
    assert made.status["leaving"] == [2]
    assert [each.reason for each in made.notes] == ["Released"]


def test_a_drain_of_a_former_pool_goes_on_where_this_one_is_smaller_too() -> None:
    world = World(3, {"t": [(0, 1), (1, 2), (2, 0)]})
    world.draining = {2}
    seen = replace(world.seen(), drained_by_pool=frozenset({2}))
    made = plan(pool(2), workload(3), seen)
    assert [type(each) for each in made.actions] == [Move] and made.status["leaving"] == [2]
    back = plan(pool(3, status=made.status), workload(3), seen)
    assert back.actions == (Undrain((2,), ()),)


def test_a_drain_that_a_person_started_is_shown_and_stays() -> None:
    world = World(3, {"t": [(0, 1), (1, 0)]})
    world.draining = {2}
    made = plan(pool(3, status={"balancedFor": 3}), workload(3), world.seen())
    assert not made.actions and made.status["leaving"] == []
    assert [(each.type, each.message) for each in made.conditions[1:]] == [
        ("DrainedByOthers", "brokers 2 are drained by a person; `hapax drain --cancel` ends that")]


def test_a_drain_that_a_person_started_stays_when_a_scale_down_around_it_is_taken_back() -> None:
    world = World(4, {"t": [(0, 1), (1, 2), (2, 3), (3, 0)]})
    world.draining = {3}
    world.wanted = 2
    down = world.look()
    assert Drain((2,)) in down.actions and world.draining == {2, 3}
    world.wanted = 4
    back = world.look()
    assert [each.brokers for each in back.actions if isinstance(each, Undrain)] == [(2,)]
    world.settled()
    assert world.draining == {3}


def test_a_drain_of_a_former_release_is_ended_by_its_pool() -> None:
    """Its mark does not say who drains; the pool's status does."""
    world = World(3, {"t": [(0, 1), (1, 2), (2, 0)]})
    world.draining = {2}
    made = plan(pool(3, status={"leaving": [2], "balancedFor": 3}), workload(3), world.seen())
    assert made.actions == (Undrain((2,), ()),)

"""Before a run starts its predecessor has ended and is fenced, however often the operator dies in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax_operator.plan_producer import ProducerSeen
from hapax_operator.plan_start import EndFormer, FenceAll, FormerRun, Intent, Start, Step, Wait, WriteDown, plan_start

NOW = 1_800_000_000_000


def seen(name: str = "job", instance: str = "one", **fields: Any) -> ProducerSeen:
    return ProducerSeen(name, 7, 3, "Empty", instance=instance, **{"holder": "driver from h:1", **fields})


def step(former: FormerRun | None = None, intent: Intent | None = None, *ids: ProducerSeen) -> Step:
    return plan_start(2, former, ids, intent, NOW, give_up_after_s=60)


def test_the_former_run_ends_first_and_is_given_up_in_the_end() -> None:
    assert step(FormerRun()) == EndFormer()
    assert isinstance(step(FormerRun(NOW - 59_000)), Wait)
    assert step(FormerRun(NOW - 60_000), None, seen()) == WriteDown(Intent(2, {"job": "one"}))


def test_whom_to_fence_is_written_down_and_then_only_they_are_fenced() -> None:
    assert step(None, Intent(1, {"job": "zero"}), seen()) == WriteDown(Intent(2, {"job": "one"}))
    fencing = step(None, Intent(2, {"job": "one"}), seen())
    assert isinstance(fencing, FenceAll)
    assert [(each.instance, each.reason) for each in fencing.fences] == [("one", "run 2 is about to start")]
    assert step(None, Intent(2, {"job": "one"}), seen(instance="two", holder="")) == Start(2)
    assert step(None, Intent(2, {"job": "one"}), seen(holder="")) == Start(2)  # nobody held it
    aborting = seen(instance="two", holder="", opened_ms=NOW - 5)
    assert isinstance(step(None, Intent(2, {"job": "one"}), aborting), Wait)


def test_a_transaction_under_two_phase_commit_is_neither_aborted_nor_waited_for() -> None:
    """It may be prepared: the new run keeps it, and ends it as the other system has decided."""
    prepared = seen("dual", opened_ms=NOW - 5, two_phase=True)
    intent = Intent(2, {"dual": "one", "job": "one"})
    fencing = step(None, intent, prepared, seen())
    assert isinstance(fencing, FenceAll) and [each.transactional_id for each in fencing.fences] == ["job"]
    assert step(None, intent, prepared, seen(instance="two", holder="")) == Start(2)


def test_an_intent_is_read_as_it_was_written() -> None:
    intent = Intent(3, {"b": "2", "a": "1"})
    assert Intent.decode(intent.encode()) == intent
    assert intent.encode()["instances"][0] == {"transactionalId": "a", "instance": "1"}
    assert Intent.decode(None) is None


@dataclass
class World:
    """A workload whose runs hold one id each; the operator may die after every step, which leaves what is stored."""

    former: FormerRun | None = field(default_factory=FormerRun)
    instance: int = 1
    holder: str = "run 1"
    stored: dict[str, Any] | None = None
    started: int = 1
    now: int = NOW

    def look(self) -> Step:
        return plan_start(
            2, self.former, [seen(instance=str(self.instance), holder=self.holder)], Intent.decode(self.stored),
            self.now, give_up_after_s=60)

    def do(self, todo: Step) -> None:
        if isinstance(todo, EndFormer):
            self.former = FormerRun(self.now)
        elif isinstance(todo, WriteDown):
            self.stored = todo.intent.encode()
        elif isinstance(todo, FenceAll):
            for fence in todo.fences:
                assert self.started == 1, "the run that has started is never fenced"
                if fence.instance == str(self.instance):
                    self.instance, self.holder = self.instance + 1, ""
        elif isinstance(todo, Start):
            assert self.holder == "", "nobody else can write"
            assert self.former is None or self.now - self.former.since_ms >= 60_000
            self.started = todo.run


@given(st.lists(st.sampled_from(["act", "repeat", "former ends", "time passes"]), max_size=30))
def test_it_gets_there_in_any_order_of_events(events: list[str]) -> None:
    world = World()
    for event in [*events, "act", "former ends", *["act"] * 6]:
        if event == "former ends" and world.former is not None and world.former.since_ms >= 0:
            world.former = None
        elif event == "time passes":
            world.now += 30_000
        elif world.started == 1:
            todo = world.look()
            for _ in range(2 if event == "repeat" and not isinstance(todo, Start) else 1):  # died before it knew
                world.do(todo)
    assert world.started == 2


@pytest.mark.parametrize("holder", ["", "run 1"])
def test_an_id_that_appears_later_is_the_next_run_s(holder: str) -> None:
    assert step(None, Intent(2, {}), seen(holder=holder)) == Start(2)

"""Breadth-first search through every interleaving of a composition's steps.

A state of the composition is a row of small numbers: one for the messages in flight, one for the remaining faults, and
one for each component. The states of a component are stored once, under their canonical value, and the effect of an
event on each is computed once, because compositions have far more states than their parts. Of a visited row, a flat
table holds 64 bits of hash. At 10^7 states the chance that two rows share a hash is below one in 300,000.

Because the search is breadth-first, a counterexample is one of the shortest.
"""

from __future__ import annotations

import pickle
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hapax.codec.batch import read_header
from hapax.core.control import Marker
from hapax.core.group.offsets import OffsetRecord
from hapax.core.transaction.record import Transaction, TransactionPartition
from hapax_explore.canonical import freeze
from hapax_explore.component import Choice, Close, Component, Drop, Effect, Send
from hapax_explore.replicated import Copied
from hapax_explore.symmetry import Mirror
from scenarios.partition_log import Entry

STALE: Final = "~"
"""Prefix of the names of channels that their senders have abandoned."""
_SHIFT: Final = 24
_MASK64: Final = (1 << 64) - 1
_CLOSE: Final = -1
_TELL: Final = -2
_ACT: Final = 1 << 23
"""Marks an event that is a choice, not a message."""
_LOST: Final = 1 << 22
"""Marks a message that does not arrive."""
_MAY_BE_LOST: Final = ("marker", "marked")
"""Messages between services, which their senders repeat. Messages of clients are lost with their connections."""

Row = tuple[int, ...]
Views = Mapping[str, Any]


class Scope(NamedTuple):
    """A composition, its faults and its invariants."""

    name: str
    about: str
    components: Sequence[Component]
    budget: Mapping[str, int]
    safe: Callable[[Views], str | None]
    """The invariant of every state. Returns the violation, if any."""
    settled: Callable[[Views], str | None]
    """The invariant of states in which no step is left: every transaction has ended with the outcome that its client
    got."""
    begin: Sequence[Effect] = ()
    """The messages in flight at the start."""
    warm: Callable[[Views], bool] | None = None
    """The exploration begins at the first state of a fair run in which this holds."""
    alike: tuple[str, str] | None = None
    """Two components that differ only in their names. Of states that differ only by exchanging the two, one is
    explored."""


class Step(NamedTuple):
    text: str
    row: Row
    fault: bool
    """Whether it is not part of a fair run: it uses up a budget, or is a message on an abandoned connection."""


@dataclass(slots=True)
class Result:
    scope: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    quiescent: int = 0
    """Number of states in which no step was left."""
    seconds: float = 0.0
    complete: bool = False
    """Whether the whole scope was explored, not only its first states."""
    violation: str = ""
    history: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        how = "explored completely" if self.complete else "explored in part"
        return (
            f"{self.scope}: {self.states:,} states, {self.transitions:,} transitions, depth {self.depth}, "
            f"{self.quiescent:,} quiescent; {how}; {self.seconds:.0f} s"
        )


class Seen:
    """A set of 64-bit hashes in a flat open-addressing table: 8 bytes each, at most two thirds full."""

    def __init__(self, bits: int = 16) -> None:
        self._table = array("Q", bytes(8 << bits))
        self._mask = (1 << bits) - 1
        self.count = 0

    def add(self, value: int) -> bool:
        """Adds a hash. Returns False if it was in the set before."""
        value = value or 1
        table, mask = self._table, self._mask
        at = value & mask
        while found := table[at]:
            if found == value:
                return False
            at = (at + 1) & mask
        table[at] = value
        self.count += 1
        if self.count * 3 > len(table) * 2:
            self._grow()
        return True

    def _grow(self) -> None:
        old = self._table
        self._table = table = array("Q", bytes(16 * len(old)))
        self._mask = mask = len(table) - 1
        for value in old:
            if value:
                at = value & mask
                while table[at]:
                    at = (at + 1) & mask
                table[at] = value


class Explorer:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._slots = {component.name: slot for slot, component in enumerate(scope.components)}
        width = len(scope.components)
        self._ids: list[dict[Any, int]] = [{} for _ in range(width)]
        self._blobs: list[list[bytes]] = [[] for _ in range(width)]
        self._choices: list[list[tuple[tuple[int, Choice], ...]]] = [[] for _ in range(width)]
        self._views: list[list[int]] = [[] for _ in range(width)]
        self._view_ids: list[dict[Any, int]] = [{} for _ in range(width)]
        self._view_values: list[list[Any]] = [[] for _ in range(width)]
        self._runs: list[dict[int, tuple[int, int]]] = [{} for _ in range(width)]
        self._ignored: dict[tuple[int, int, int], bool] = {}
        self._messages: dict[Any, int] = {}
        self._bodies: list[tuple[Any, ...]] = []
        self._names: list[dict[str, int]] = [{} for _ in range(width)]
        self._acts: list[list[str]] = [[] for _ in range(width)]
        self._effects: dict[Any, int] = {}
        self._effect_values: list[tuple[Any, ...]] = []
        self._nets: dict[Any, int] = {}
        self._net_values: list[tuple[tuple[str, int, tuple[int, ...]], ...]] = []
        self._deliverable: list[list[tuple[int, int, int, bool]] | None] = []
        self._sent: dict[int, int] = {}
        self._budgets: dict[Any, int] = {}
        self._budget_values: list[tuple[tuple[str, int], ...]] = []
        self._spent: dict[tuple[int, str], int] = {}
        self._safe: dict[Row, str | None] = {}
        names = [component.name for component in scope.components]
        self._mirror = Mirror(*scope.alike, names) if scope.alike is not None else None
        self._images: list[list[tuple[int, int]]] = [[] for _ in range(width)]
        self._message_images: list[tuple[int, int]] = []
        self._net_images: list[tuple[int, int]] = []
        self._filters = [type(component).ignores is not Component.ignores for component in scope.components]

    # --- tables -------------------------------------------------------------------------------------------------------

    def first(self) -> Row:
        ids = [self._intern(slot, component) for slot, component in enumerate(self.scope.components)]
        net = self._after(self._net(()), self._effect(self.scope.begin), ids)
        row: Row = (net, self._budget(tuple(sorted(self.scope.budget.items()))), *ids)
        while self.scope.warm is not None and not self.scope.warm(self.views(row)):
            row = next(step.row for step in self.steps(row) if not step.fault)
        return row

    def _intern(self, slot: int, component: Component) -> int:
        key = freeze(component)
        found = self._ids[slot].get(key)
        if found is None:
            found = self._ids[slot][key] = len(self._blobs[slot])
            if self._mirror is not None:
                self._images[slot].append(self._mirror.both(key))
            self._blobs[slot].append(pickle.dumps(component, -1))
            self._choices[slot].append(tuple((self._name(slot, each.name), each) for each in component.choices()))
            view = component.view()
            known = self._view_ids[slot].setdefault(view, len(self._view_values[slot]))
            if known == len(self._view_values[slot]):
                self._view_values[slot].append(view)
            self._views[slot].append(known)
        return found

    def _name(self, slot: int, name: str) -> int:
        found = self._names[slot].setdefault(name, len(self._acts[slot]))
        if found == len(self._acts[slot]):
            self._acts[slot].append(name)
        return found | _ACT

    def _message(self, body: tuple[Any, ...]) -> int:
        found = self._messages.setdefault(body, len(self._bodies))
        if found == len(self._bodies):
            self._bodies.append(body)
            if self._mirror is not None:
                self._message_images.append(self._mirror.both_of_message(body))
        return found

    def _effect(self, effects: Sequence[Effect]) -> int:
        return self._known(tuple(self._encoded(each) for each in effects))

    def _known(self, value: tuple[Any, ...]) -> int:
        found = self._effects.setdefault(value, len(self._effect_values))
        if found == len(self._effect_values):
            self._effect_values.append(value)
        return found

    def _encoded(self, effect: Effect) -> tuple[int, Any, Any]:
        if isinstance(effect, Send):
            return self._slots[effect.to], effect.channel, self._message(effect.body)
        if isinstance(effect, Close):
            return _CLOSE, effect.requests, effect.answers
        if isinstance(effect, Drop):
            return _CLOSE, effect.requests, STALE + effect.requests
        return _TELL, self._slots[effect.to], self._message(effect.body)

    def _net(self, value: tuple[tuple[str, int, tuple[int, ...]], ...]) -> int:
        found = self._nets.setdefault(value, len(self._net_values))
        if found == len(self._net_values):
            self._net_values.append(value)
            self._deliverable.append(None)
            if self._mirror is not None:
                self._net_images.append(self._mirror.net(value, self._message_images))
        return found

    def _budget(self, value: tuple[tuple[str, int], ...]) -> int:
        found = self._budgets.setdefault(value, len(self._budget_values))
        if found == len(self._budget_values):
            self._budget_values.append(value)
        return found

    def _spend(self, budget: int, cost: str) -> int:
        """The budget after spending one of `cost`; -1 if none is left."""
        found = self._spent.get((budget, cost))
        if found is None:
            value = dict(self._budget_values[budget])
            left = value.get(cost, 0)
            found = -1
            if left:
                value[cost] = left - 1
                found = self._budget(tuple(sorted(value.items())))
            self._spent[budget, cost] = found
        return found

    # --- steps --------------------------------------------------------------------------------------------------------

    def _run(self, slot: int, state: int, event: int) -> tuple[int, int]:
        """The effect of an event on a component's state. Returns (the state after it, its effects)."""
        key = state << _SHIFT | event
        found = self._runs[slot].get(key)
        if found is None:
            component: Component = pickle.loads(self._blobs[slot][state])
            if event & _ACT:
                effects = component.act(self._acts[slot][event ^ _ACT])
            else:
                effects = component.receive(self._bodies[event])
            found = self._runs[slot][key] = self._intern(slot, component), self._effect(effects)
        return found

    def _deliveries(self, net: int) -> list[tuple[int, int, int, bool]]:
        """(slot, message, the net without it, whether its sender had abandoned the connection) of each message that may
        arrive next."""
        found = self._deliverable[net]
        if found is None:
            found = []
            value = self._net_values[net]
            for place, (channel, slot, messages) in enumerate(value):
                heads = range(len(messages)) if not channel else (0,)
                for at in heads:
                    if not channel and at and messages[at] == messages[at - 1]:
                        continue
                    rest = messages[:at] + messages[at + 1 :]
                    left = value[:place] + (((channel, slot, rest),) if rest else ()) + value[place + 1 :]
                    found.append((slot, messages[at], self._net(left), channel.startswith(STALE)))
            self._deliverable[net] = found
        return found

    def _after(self, net: int, effects: int, ids: list[int]) -> int:
        """The messages in flight after these effects. `ids` changes if a component gets a message at once."""
        value = self._effect_values[effects]
        if not value:
            return net
        if any(each[0] == _TELL for each in value):
            rest = tuple(each for each in value if each[0] != _TELL)
            net = self._after(net, self._known(rest), ids)
            for kind, slot, what in value:
                if kind == _TELL:
                    ids[slot], more = self._run(slot, ids[slot], what)
                    net = self._after(net, more, ids)
            return net
        if any(slot >= 0 and self._filters[slot] for slot, _, _ in value):
            kept = tuple(each for each in value if each[0] < 0 or not self._is_ignored(ids, each[0], each[2]))
            if kept != value:
                value, effects = kept, self._known(kept)
        key = net << 32 | effects
        found = self._sent.get(key)
        if found is None:
            channels = {(channel, slot): messages for channel, slot, messages in self._net_values[net]}
            for slot, channel, what in value:
                if slot >= 0:
                    messages = (*channels.get((channel, slot), ()), what)
                    channels[channel, slot] = messages if channel else tuple(sorted(messages))
                    continue
                for name, to in list(channels):
                    if name == what:
                        del channels[name, to]
                    elif name == channel:
                        channels[STALE + name, to] = channels.pop((name, to))
            found = self._sent[key] = self._net(
                tuple(sorted((channel, slot, messages) for (channel, slot), messages in channels.items()))
            )
        return found

    def _is_ignored(self, ids: Sequence[int], slot: int, message: int) -> bool:
        if not self._filters[slot]:
            return False
        key = (slot, ids[slot], message)
        found = self._ignored.get(key)
        if found is None:
            component: Component = pickle.loads(self._blobs[slot][ids[slot]])
            found = self._ignored[key] = component.ignores(self._bodies[message])
        return found

    def _successors(self, row: Row, steps: list[tuple[int, int, Row]]) -> bool:
        """Adds (slot, event, row after it) to `steps`. Returns whether the state is quiescent: only faults are left."""
        net, budget, *ids = row
        quiescent = True
        late: list[tuple[int, int]] = []
        runs = self._runs
        for slot, message, left, stale in self._deliveries(net):
            state, effects = runs[slot].get(ids[slot] << _SHIFT | message) or self._run(slot, ids[slot], message)
            after = ids.copy()
            after[slot] = state
            steps.append((slot, message, (self._after(left, effects, after), budget, *after)))
            if not stale:
                quiescent = False
            if self._bodies[message][0] in _MAY_BE_LOST and (fewer := self._spend(budget, "loss")) >= 0:
                steps.append((slot, message | _LOST, (left, fewer, *ids)))
        for slot, state in enumerate(ids):
            for event, choice in self._choices[slot][state]:
                left_budget = budget
                if choice.late:
                    late.append((slot, event))
                if choice.cost:
                    left_budget = self._spend(budget, choice.cost)
                    if left_budget < 0:
                        continue
                elif choice.late:
                    continue
                else:
                    quiescent = False
                steps.append((slot, event, self._acted(net, left_budget, ids, slot, event)))
        if quiescent:
            steps += [(slot, event, self._acted(net, budget, ids, slot, event)) for slot, event in late]
        return quiescent and not late

    def _acted(self, net: int, budget: int, ids: list[int], slot: int, event: int) -> Row:
        state, effects = self._runs[slot].get(ids[slot] << _SHIFT | event) or self._run(slot, ids[slot], event)
        after = ids.copy()
        after[slot] = state
        return (self._after(net, effects, after), budget, *after)

    def hash_of(self, row: Row) -> int:
        """The hash of the state. With two interchangeable components, the smaller of the hashes of the state and its
        mirror image."""
        mirror = self._mirror
        if mirror is None:
            return hash(row) & _MASK64
        net, budget, *ids = row
        both = [self._images[slot][state] for slot, state in enumerate(ids)]
        plain, image = self._net_images[net]
        return min(
            hash((plain, budget, *[each[0] for each in both])),
            hash((image, budget, *[both[place][1] for place in mirror.places])),
        ) & _MASK64

    # --- search -------------------------------------------------------------------------------------------------------

    def explore(self, limit: int, say: Callable[[str], None] = lambda line: None) -> Result:
        """Explores at most `limit` states, the nearest first. Stops at the first state that violates an invariant."""
        result = Result(self.scope.name)
        began = time.process_time()
        seen = Seen()
        first = self.first()
        frontier = [first]
        seen.add(self.hash_of(first))
        parents, slots, events = array("I", (0,)), array("B", (0,)), array("I", (0,))
        number = 0
        result.violation = self._broken(first) or ""
        while frontier and not result.violation:
            following: list[Row] = []
            for row in frontier:
                steps: list[tuple[int, int, Row]] = []
                if self._successors(row, steps):
                    result.quiescent += 1
                    unsettled = self.scope.settled(self.views(row))
                    if unsettled:
                        result.violation = unsettled
                        result.history = self._history(number, parents, slots, events)
                        break
                result.transitions += len(steps)
                for slot, event, after in steps:
                    if not seen.add(self.hash_of(after)):
                        continue
                    parents.append(number)
                    slots.append(slot)
                    events.append(event)
                    following.append(after)
                    broken = self._broken(after)
                    if broken:
                        result.violation = broken
                        result.history = self._history(len(parents) - 1, parents, slots, events)
                        break
                if result.violation or len(parents) >= limit:
                    break
                number += 1
            result.depth += bool(following)
            if len(parents) >= limit:
                break
            frontier = following
            if say and following:
                say(f"depth {result.depth}: {len(parents):,} states, {len(following):,} at the edge, "
                    f"{result.transitions:,} transitions, {time.process_time() - began:.0f} s")
        result.states = len(parents)
        result.complete = not result.violation and len(parents) < limit
        result.seconds = time.process_time() - began
        return result

    def _broken(self, row: Row) -> str | None:
        key = tuple([self._views[slot][state] for slot, state in enumerate(row[2:])])
        if key not in self._safe:
            self._safe[key] = self.scope.safe(self.views(row))
        return self._safe[key]

    def views(self, row: Row) -> dict[str, Any]:
        return {
            name: self._view_values[slot][self._views[slot][row[slot + 2]]] for name, slot in self._slots.items()
        }

    def _history(self, number: int, parents: array[int], slots: array[int], events: array[int]) -> list[str]:
        path = []
        while number:
            path.append((slots[number], events[number]))
            number = parents[number]
        return [self._text(slot, event) for slot, event in reversed(path)]

    def _text(self, slot: int, event: int) -> str:
        name = self.scope.components[slot].name
        if event & _ACT:
            return f"{name} does {self._acts[slot][event ^ _ACT]}"
        gets = "does not get" if event & _LOST else "gets"
        return f"{name} {gets} {' '.join(_word(each) for each in self._bodies[event & ~_LOST])}"

    # --- one history --------------------------------------------------------------------------------------------------

    def steps(self, row: Row) -> Iterator[Step]:
        """The possible next steps in words. Equal words mean the same step."""
        found: list[tuple[int, int, Row]] = []
        self._successors(row, found)
        free = self._free(row)
        for slot, event, after in found:
            yield Step(self._text(slot, event), after, (slot, event) not in free)

    def _free(self, row: Row) -> set[tuple[int, int]]:
        net, _, *ids = row
        free = {(slot, message) for slot, message, _, stale in self._deliveries(net) if not stale}
        for slot, state in enumerate(ids):
            free.update((slot, event) for event, choice in self._choices[slot][state] if choice.late or not choice.cost)
        return free

    def quiescent(self, row: Row) -> bool:
        return self._successors(row, [])


def script(scope: str, history: Sequence[str]) -> str:
    """A history as a scenario script without its output (tests/scenarios/explore)."""
    steps = "".join(f'> step "{text}"\n' for text in history)
    return f"> machine explore scope={scope}\n\n{steps}\n> rest\n"


def _word(value: Any) -> str:
    if isinstance(value, Transaction):
        return f"{value.transactional_id}:{value.serial}:{value.state.name}"
    if isinstance(value, Marker):
        return f"{'commit' if value.commit else 'abort'}:{value.producer_id}:{value.producer_epoch}:{value.serial}"
    if isinstance(value, OffsetRecord):
        return "none" if value.value is None else f"position:{value.value.offset}"
    if isinstance(value, Entry):
        return f"at:{value.header.base_offset}"
    if isinstance(value, TransactionPartition):
        return _word(value.topic_id)
    if isinstance(value, Copied):
        header = read_header(value.batch)
        return f"at:{header.base_offset}/{header.leader_epoch}"
    if isinstance(value, tuple):
        return "(" + ",".join(_word(each) for each in value) + ")"
    if isinstance(value, bytes):
        return value.rstrip(b"\0").decode("latin-1")
    return str(value).replace(" ", "").replace('"', "").replace("=", ":")

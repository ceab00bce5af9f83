"""The explored compositions, and the invariants of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Final

from hapax_explore.broker import Broker, partition_of
from hapax_explore.clients import ABORTED, COMMITTED, UNKNOWN, NativeProducer, OldProducer, Planned
from hapax_explore.coordinator import Coordinator, ShardLog
from hapax_explore.dual_writer import DualWriter
from hapax_explore.group import GroupOwner
from hapax_explore.internal_log import LogReplica
from hapax_explore.replicated import Copy, Store
from hapax_explore.search import Scope, Views
from hapax_explore.tasks import Tasks


def leaders(views: Views) -> dict[str, str]:
    """Partition -> its leader. If two copies believe that they lead, the later one."""
    found: dict[str, tuple[int, str]] = {}
    for name, view in views.items():
        if name.startswith("p"):
            epoch = view[3] if len(view) > 3 else 0
            found[partition_of(name)] = max(found.get(partition_of(name), (-2, "")), (epoch, name))
    return {partition: name for partition, (_, name) in found.items()}


def readable(views: Views) -> dict[str, tuple[str, ...]]:
    """Partition -> the values that a read_committed reader sees."""
    return {partition: views[name][0] for partition, name in leaders(views).items()}


def safe(views: Views) -> str | None:
    """The invariant of every state, for every copy that may be read."""
    copies = [name for name, view in views.items() if name.startswith("p") and len(view) > 3]
    for name, other in combinations(copies, 2):
        one, two = views[name][4], views[other][4]
        if partition_of(name) == partition_of(other) and any(a != b for a, b in zip(one, two, strict=False)):
            return f"{name} and {other} have committed different records: {one}, {two}"
    serving = [name for name in copies if views[name][3] >= 0]
    return _safe(views, readable(views)) or next(
        filter(None, (_safe(views, {**readable(views), partition_of(name): views[name][0]}) for name in serving)), None)


def _safe(views: Views, seen: dict[str, tuple[str, ...]]) -> str | None:
    for partition, values in seen.items():
        if len(set(values)) < len(values):
            return f"{partition} shows a record twice: {values}"
    for name, view in views.items():
        if name[0] not in "at":
            continue
        order = [value for outcome in view[0] for _, value in outcome.records]
        for partition, values in seen.items() if name.startswith("a") else ():  # tasks have no order among them
            own = [order.index(value) for value in values if value in order]
            if own != sorted(own):
                return f"{partition} shows the records of {name} out of order: {values}"
        for outcome in view[0]:
            shown = [value for partition, value in outcome.records if value in seen[partition]]
            if outcome.end == ABORTED and shown:
                return f"{name} got the answer that its transaction aborted, but {shown} are readable"
        for begun, position in view[2]:
            known = [outcome.offset for outcome in view[0][:begun] if outcome.end == COMMITTED]
            if position < max(known, default=-1):
                return f"{name} had committed position {max(known)}, but reads {position}"
    return None


def settled(views: Views) -> str | None:
    """The invariant of states in which no step is left."""
    seen = readable(views)
    serving = [name for name, view in views.items() if name[0] in "cg" and view[0]]
    replaced = {name for name in serving if any(other > name and other[0] == name[0] for other in serving)}
    for name, view in views.items():
        if name in replaced:  # it is cut off and has not noticed
            continue
        if name.startswith("p") and view[1]:
            return f"a transaction stays open in {name}"
        if name.startswith("p") and view[2]:
            return f"a write stays parked in {name}"
        if name.startswith("c") and view[0] and view[1]:
            return f"{name} has a transaction that never ends"
        if name.startswith("c") and view[0] and view[2]:
            return f"a call waits for ever at {name}"
        if name.startswith("g") and view[0] and view[2]:
            return f"offsets of a transaction stay pending at {name}"
        if name.startswith("g") and view[0] and view[3]:
            return f"a call waits for ever at {name}"
        if name[0] not in "at":
            continue
        if view[1]:
            return f"{name} waits for ever"
        if view[3]:
            return f"{name} has failed finally, but no other producer has fenced it"
        expected = [-1] + [outcome.offset for outcome in view[0] if outcome.end == COMMITTED and outcome.offset >= 0]
        allowed = expected[-1:] + [outcome.offset for outcome in view[0] if outcome.end == UNKNOWN]
        for owner in (each for each in serving if each.startswith("g") and each not in replaced):
            if views[owner][1] not in allowed:
                return f"the group's position is {views[owner][1]}; {name} knows of {view[0]}"
        for outcome in view[0]:
            shown = [value for partition, value in outcome.records if value in seen[partition]]
            if outcome.end == COMMITTED and len(shown) < len(outcome.records):
                return f"{name} got the answer that its transaction committed; readable: {shown} of {outcome.records}"
            if shown and len(shown) < len(outcome.records):
                return f"a transaction of {name} is readable in part: {shown} of {outcome.records}"
    return None


def parked() -> Scope:
    """A version-1 client that numbers like librdkafka gives a write up and continues with the next transaction, while
    partitions verify and markers are late."""
    plan = (Planned((("p0", "a"),), "commit"), Planned((("p0", "b"),), "commit"))
    return Scope(
        "parked", parked.__doc__ or "",
        (OldProducer("a1", plan), Broker("p0"), Coordinator("c1", "", ("a1", "p0"))),
        {"reconnect": 2, "resend": 1, "complete": 1}, safe, settled,
    )


def owners() -> Scope:
    """A version-2 transaction, while its shard moves from one coordinator to another, which the first one does not
    notice, and the partition's leader dies."""
    told = ("a1", "p0")
    return Scope(
        "owners", owners.__doc__ or "",
        (
            NativeProducer("a1", (Planned((("p0", "a"),), "either"),), version=2), Broker("p0", clients=("a1",)),
            Coordinator("c1", "log", told, successor="c2"),
            Coordinator("c2", "log", told, serves=False, first_id=2000), ShardLog("log"),
        ),
        {"take-over": 1, "coordinator crash": 1, "broker crash": 1, "reconnect": 1}, safe, settled,
    )


def members() -> Scope:
    """Two members of a multi-writer transaction and its commit, while the shard moves and its log is compacted."""
    told = ("t1", "p0")
    return Scope(
        "members", members.__doc__ or "",
        (
            Tasks("t1", (("p0", "x"), ("p0", "y"))), Broker("p0"),
            Coordinator("c1", "log", told, successor="c2"),
            Coordinator("c2", "log", told, serves=False, first_id=2000), ShardLog("log", compacts=True),
        ),
        {"take-over": 1, "coordinator crash": 1, "reconnect": 1, "compact": 1}, safe, settled,
    )


def owners_large() -> Scope:
    """Like `owners`, with a budget that leads to more than ten million states."""
    more = {"reconnect": 2, "resend": 1, "lost append": 1, "time-out": 1}
    return owners()._replace(name="owners-large", about=owners_large.__doc__ or "", budget={**owners().budget, **more})


def zombie() -> Scope:
    """Two version-2 producers with one id. The second one may initialise at any time."""
    told = ("a1", "a2", "p0")
    return Scope(
        "zombie", zombie.__doc__ or "",
        (
            NativeProducer("a1", (Planned((("p0", "a"),), "commit"),), version=2),
            NativeProducer("a2", (Planned((("p0", "b"),), "commit"),), version=2),
            Broker("p0"), Coordinator("c1", "", told),
        ),
        {"reconnect": 1, "resend": 1, "time-out": 1}, safe, settled,
    )


def timers() -> Scope:
    """A version-1 producer that dies, timers that fire a millisecond early, and consecutive batches."""
    told = ("a1", "p0")
    return Scope(
        "timers", timers.__doc__ or "",
        (
            NativeProducer("a1", (Planned((("p0", "a"), ("p0", "b")), "either"),), version=1, may_die=True),
            Broker("p0"), Coordinator("c1", "", told),
        ),
        {"producer dies": 1, "early timer": 1, "reconnect": 1, "expire": 1, "time-out": 1}, safe, settled,
    )


def two_phase() -> Scope:
    """A program that commits a database and the log together (KIP-939). Its process dies at any moment. The next one
    keeps what is prepared, while calls of the former one are still under way and the shard moves."""
    told = ("a1", "p0")
    plan = (Planned((("p0", "a"),)), Planned((("p0", "b"),)))
    return Scope(
        "two-phase", two_phase.__doc__ or "",
        (
            DualWriter("a1", plan), Broker("p0"), Coordinator("c1", "log", told, successor="c2"),
            Coordinator("c2", "log", told, serves=False, first_id=2000), ShardLog("log"),
        ),
        {"producer dies": 2, "take-over": 1, "reconnect": 0, "time-out": 1}, safe, settled,
    )


def pipelined() -> Scope:
    """Seven version-2 batches to one partition in two transactions, over connections that break."""
    values = tuple(("p0", value) for value in "abcdef")
    return Scope(
        "pipelined", pipelined.__doc__ or "",
        (
            NativeProducer("a1", (Planned(values), Planned((("p0", "z"),))), version=2),
            Broker("p0", clients=("a1",)), Coordinator("c1", "", ("a1", "p0")),
        ),
        {"reconnect": 2, "broker crash": 1}, safe, settled,
    )


def cut_off() -> Scope:
    """Version-1 transactions, while a coordinator and the leader of its log are cut off from the store and replaced,
    and the client is sent to either of them."""
    told = ("a1", "p0")
    plan = (Planned((("p0", "a"),)), Planned((("p0", "b"),)))
    follower = LogReplica("l2", "l1", leads=False, shard_epoch=16, successor="c2")
    return Scope(
        "cut-off", cut_off.__doc__ or "",
        (
            NativeProducer("a1", plan, version=1), Broker("p0"), Coordinator("c1", "l1", told),
            Coordinator("c2", "l2", told, serves=False, first_id=2000),
            LogReplica("l1", "l2", leads=True, shard_epoch=16), follower,
        ),
        {"election": 1, "misled": 1, "reconnect": 0}, safe, settled, (follower.fetch,),
        lambda views: views["a1"][0][:1] != () and views["a1"][0][0].end == COMMITTED,
    )


def offsets() -> Scope:
    """Offsets in version-2 transactions, with a group shard that moves, and markers that are late or repeated."""
    told = ("a1", "c1")
    plan = (Planned((), "either", offset=1), Planned((), "commit", offset=2))
    return Scope(
        "offsets", offsets.__doc__ or "",
        (
            NativeProducer("a1", plan, version=2), Coordinator("c1", "", ("a1", "g1", "g2")),
            GroupOwner("g1", "log", told, successor="g2"), GroupOwner("g2", "log", told, serves=False),
            ShardLog("log"),
        ),
        {"take-over": 1, "coordinator crash": 1, "reconnect": 1, "resend": 1}, safe, settled,
    )


def offsets_v1() -> Scope:
    """Offsets in version-1 transactions, with a client that reconnects and gives up."""
    plan = (Planned((), "either", offset=1), Planned((), "commit", offset=2))
    return Scope(
        "offsets-v1", offsets_v1.__doc__ or "",
        (
            NativeProducer("a1", plan, version=1), Coordinator("c1", "", ("a1", "g1")),
            GroupOwner("g1", "log", ("a1", "c1")), ShardLog("log"),
        ),
        {"reconnect": 1, "resend": 1, "lost append": 1}, safe, settled,
    )


def cut_off_group() -> Scope:
    """A group's positions, while the owner of its shard and the leader of its log are cut off from the store and
    replaced, and the client is sent to either of them."""
    told = ("a1", "c1")
    follower = LogReplica("l2", "l1", leads=False, shard_epoch=16, successor="g2")
    plan = (Planned((), offset=1), Planned((), offset=2))
    return Scope(
        "cut-off-group", cut_off_group.__doc__ or "",
        (
            NativeProducer("a1", plan, version=2, reads=1), Coordinator("c1", "", ("a1", "g1", "g2")),
            GroupOwner("g1", "l1", told), GroupOwner("g2", "l2", told, serves=False),
            LogReplica("l1", "l2", leads=True, shard_epoch=16), follower,
        ),
        {"election": 1, "misled": 1}, safe, settled, (follower.fetch,),
        lambda views: views["a1"][0][:1] != () and views["a1"][0][0].end == COMMITTED,
    )


def elections() -> Scope:
    """A version-1 transaction in a partition with two copies. Its leader is replaced by an election or a move, learns
    it late, and truncates the records that only it has."""
    return _elections(elections, 1, {"election": 1, "reconnect": 1})


def elections_in_sync() -> Scope:
    """Like `elections`, with version 2, and an in-sync set that shrinks and grows."""
    return _elections(elections_in_sync, 2, {"election": 1, "lag": 1})


def elections_twice() -> Scope:
    """Version 2, with a second election, for example back to the first leader, which has not noticed the other one."""
    return _elections(elections_twice, 2, {"election": 2})


def elections_of_three() -> Scope:
    """Like `elections`, with three copies."""
    return _elections(elections_of_three, 1, {"election": 1}, ("p0", "p0.2", "p0.3"))


def _elections(
    scope: Callable[[], Scope], version: int, budget: Mapping[str, int], copies: tuple[str, ...] = ("p0", "p0.2")
) -> Scope:
    told = ("a1", "c1")
    first, *followers = [Copy(name, copies, told=told, lagging="lag" in budget) for name in copies]
    return Scope(
        scope.__name__.replace("_", "-"), scope.__doc__ or "",
        (
            NativeProducer("a1", (Planned((("p0", "a"),), "either"),), version=version),
            first, *followers, Store(copies), Coordinator("c1", "", ("a1", *copies)),
        ),
        budget, safe, settled, tuple(each.fetch() for each in followers), lambda views: views["a1"][0] != (),
    )


def two_partitions() -> Scope:
    """One version-2 transaction in two interchangeable partitions, whose leaders die, with markers that are lost."""
    records = (("p0", "a@p0"), ("p1", "a@p1"))
    return Scope(
        "two-partitions", two_partitions.__doc__ or "",
        (
            NativeProducer("a1", (Planned(records, "either"),), version=2, numbered_per_node=True),
            Broker("p0", clients=("a1",), alike=True), Broker("p1", clients=("a1",), alike=True),
            Coordinator("c1", "", ("a1", "p0", "p1")),
        ),
        {"broker crash": 1, "reconnect": 1, "loss": 1, "time-out": 1}, safe, settled, alike=("p0", "p1"),
    )


SCOPES: Final[dict[str, Callable[[], Scope]]] = {
    "parked": parked, "owners": owners, "owners-large": owners_large,
    "members": members, "zombie": zombie, "timers": timers,
    "pipelined": pipelined, "two-phase": two_phase,
    "two-partitions": two_partitions,
    "elections": elections, "elections-in-sync": elections_in_sync, "elections-twice": elections_twice,
    "elections-of-three": elections_of_three,
    "cut-off": cut_off, "cut-off-group": cut_off_group, "offsets": offsets, "offsets-v1": offsets_v1,
}

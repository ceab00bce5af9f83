"""All scenarios: a name, the fault, and the layout of the world in which it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from hapax.kafka.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    consumer_group_heartbeat,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    metadata,
    offset_fetch,
    produce,
    sync_group,
    txn_offset_commit,
)
from hapax_chaos.faults import (
    DAMAGES,
    SESSION_S,
    TARGETS,
    Fault,
    both,
    clock,
    damage,
    disk,
    disks,
    drop,
    fill,
    freeze,
    freeze_all,
    freeze_in_transaction,
    isolate,
    kill,
    kill_all,
    leave,
    lossy,
    requests,
    resets,
    rolling_stop,
    stop,
    then,
    zombie,
)
from hapax_chaos.proxy import ACTIONS
from hapax_chaos.secure_faults import (
    change_password,
    remove_user,
    revoke,
    rotate,
    rotate_authorities,
    rotate_late,
    short_tokens,
)
from hapax_chaos.world import Layout

CLIENTS: Final = ("native", "librdkafka")
DIRECT: Final = Layout()
PROXIED: Final = Layout(namespaces=False, proxied=True)
SMALL_DISKS: Final = Layout(namespaces=False, disk_mb=48)
SMALL_SEGMENTS: Final = Layout(
    settings=(
        ("log.segment.bytes", "2048"), ("log.index.interval.bytes", "256"), ("log.snapshot.interval.bytes", "1024"),
    )
)  # fmt: skip
"""Small enough that the records of a few seconds leave closed segments with all their files."""


_OF_GROUPS: Final = (
    ("group.initial.rebalance.delay.ms", "300"), ("group.consumer.session.timeout.ms", "6000"),
    ("group.consumer.heartbeat.interval.ms", "400"), ("group.consumer.assignment.interval.ms", "200"),
)  # fmt: skip
GROUP: Final = Layout(settings=_OF_GROUPS)
GROUP_PROXIED: Final = replace(PROXIED, settings=_OF_GROUPS)

SECURE: Final = Layout(secure=True)
SHORT_SESSIONS: Final = replace(SECURE, login="password", settings=(("connections.max.reauth.ms", "1500"),))
TOKENS: Final = replace(SECURE, login="token")
SECURE_GROUP: Final = replace(GROUP, secure=True)
SECURE_PREFIX: Final = "secure:"
YEAR_S: Final = 366 * 86_400
"""Longer than certificates are valid."""


class ApiKey(IntEnum):
    """The requests with which the proxy interferes."""

    PRODUCE = produce.ROW.key
    FETCH = fetch.ROW.key
    METADATA = metadata.ROW.key
    FIND_COORDINATOR = find_coordinator.ROW.key
    INIT_PRODUCER_ID = init_producer_id.ROW.key
    ADD_PARTITIONS_TO_TXN = add_partitions_to_txn.ROW.key
    ADD_OFFSETS_TO_TXN = add_offsets_to_txn.ROW.key
    END_TXN = end_txn.ROW.key
    TXN_OFFSET_COMMIT = txn_offset_commit.ROW.key


class GroupKey(IntEnum):
    """Requests of members."""

    JOIN_GROUP = join_group.ROW.key
    SYNC_GROUP = sync_group.ROW.key
    HEARTBEAT = heartbeat.ROW.key
    CONSUMER_GROUP_HEARTBEAT = consumer_group_heartbeat.ROW.key
    OFFSET_FETCH = offset_fetch.ROW.key
    TXN_OFFSET_COMMIT = txn_offset_commit.ROW.key


_OF_ONE_PROTOCOL: Final = {
    "classic": (GroupKey.JOIN_GROUP, GroupKey.SYNC_GROUP, GroupKey.HEARTBEAT),
    "consumer": (GroupKey.CONSUMER_GROUP_HEARTBEAT,),
}
_HARMLESS: Final = (ApiKey.FETCH, ApiKey.METADATA, ApiKey.FIND_COORDINATOR)
"""Requests that change nothing if they arrive late or twice."""
_AT_START: Final = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID)
"""Requests that a running client sends rarely."""
_NODES: Final = (
    "leader", "follower", "txn-log-leader", "coordinator", "other-coordinator", "controller", "pid", "etcd",
)  # fmt: skip
_MAIN: Final = ("leader", "follower", "coordinator", "controller", "etcd")
_PAIRS: Final = (
    ("clients", "leader"), ("clients", "coordinator"), ("leader", "etcd"), ("leader", "follower"),
    ("coordinator", "txn-log-leader"), ("coordinator", "etcd"), ("controller", "etcd"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    fault: Fault
    layout: Layout = DIRECT
    group: str = ""
    """The protocol by which the clients are members of one group: consumer or classic. Empty: they assign themselves.
    """


def scenarios() -> list[Scenario]:
    """In a fixed order. Names are unique."""
    found = [scenario for group in GROUPS.values() for scenario in group()]
    assert len({scenario.name for scenario in found}) == len(found)
    return found


def secure_scenarios() -> list[Scenario]:
    """In secure worlds: those about certificates, users and permissions, then all others."""
    found = [scenario for group in SECURE_GROUPS.values() for scenario in group()]
    assert len({scenario.name for scenario in found}) == len(found)
    return found


def secured(scenario: Scenario) -> Scenario:
    """The same in a secure world."""
    return replace(scenario, name=SECURE_PREFIX + scenario.name, layout=replace(scenario.layout, secure=True))


def without_namespaces(scenario: Scenario) -> Scenario | None:
    """The same scenario on loopback. None if its fault is about packets."""
    if not scenario.layout.namespaces:
        return scenario
    if any(fault.startswith("net-") for fault in scenario.name.rpartition(":")[2].split("+")):
        return None
    return replace(scenario, layout=replace(scenario.layout, namespaces=False))


def _processes() -> Iterator[Scenario]:
    for name in _NODES:
        yield Scenario(f"kill@{name}", kill(TARGETS[name]))
    for name in _MAIN:
        target = TARGETS[name]
        yield Scenario(f"freeze@{name}", freeze(target, 1.5))
        yield Scenario(f"freeze-past-session@{name}", freeze(target, SESSION_S + 2))
        if name != "follower":
            yield Scenario(f"kill-long@{name}", kill(target, down_s=2.5))
        if name != "etcd":
            yield Scenario(f"stop@{name}", stop(target))
    for name in ("leader", "coordinator", "etcd"):
        yield Scenario(f"kill-thrice@{name}", kill(TARGETS[name], down_s=0.2, times=3))
    yield Scenario("kill@brokers", kill_all("broker"))
    yield Scenario("kill@coordinators", kill_all("coordinator"))
    yield Scenario("kill@controllers", kill_all("controller"))
    yield Scenario("kill@brokers-and-coordinators", kill_all("broker", "coordinator"))
    yield Scenario("power-cut", kill_all("etcd", "pid", "controller", "broker", "coordinator"))
    yield Scenario("freeze@brokers", freeze_all("broker", 2.0))
    yield Scenario("freeze@coordinators", freeze_all("coordinator", 2.0))
    yield Scenario("freeze-past-session@brokers", freeze_all("broker", SESSION_S + 1.5))
    yield Scenario("freeze-past-session@coordinators", freeze_all("coordinator", SESSION_S + 1.5))
    yield Scenario("rolling-stop@brokers", rolling_stop("broker"))
    yield Scenario("rolling-stop@coordinators", rolling_stop("coordinator"))


def _disks() -> Iterator[Scenario]:
    for name in ("leader", "follower", "txn-log-leader"):
        target = TARGETS[name]
        part = "__transaction_state" if name == "txn-log-leader" else "topic"
        yield Scenario(f"sync-fails@{name}", disk("sync", "EIO", target, part))
        yield Scenario(f"write-fails@{name}", disk("write", "EIO", target, part))
        yield Scenario(f"no-space@{name}", disk("write", "ENOSPC", target, part))
        if name != "txn-log-leader":
            yield Scenario(f"slow-sync@{name}", disk("sync", "250", target))
            yield Scenario(f"full-disk@{name}", fill(target), SMALL_DISKS)
    yield Scenario("no-space-anywhere@leader", disk("write", "ENOSPC", TARGETS["leader"]))
    yield Scenario("slow-sync@brokers", disks("sync", "150"))
    yield Scenario("no-space@brokers", disks("write", "ENOSPC"))
    yield Scenario("full-disk@brokers", fill(None), SMALL_DISKS)


def _damages() -> Iterator[Scenario]:
    for name, how in DAMAGES.items():
        beside = name.endswith(("index", "snapshot"))
        layout = SMALL_SEGMENTS if beside else DIRECT
        yield Scenario(f"{name}@leader", damage(how, TARGETS["leader"]), layout)
    for name in ("torn-tail", "bit-flip-early", "lost-tail"):
        yield Scenario(f"{name}@follower", damage(DAMAGES[name], TARGETS["follower"]))


def _network() -> Iterator[Scenario]:
    for a, b in _PAIRS:
        yield Scenario(f"net-drop@{a}>{b}", drop(TARGETS[a], TARGETS[b]))
        yield Scenario(f"net-drop@{b}>{a}", drop(TARGETS[b], TARGETS[a]))
    for name in _MAIN:
        yield Scenario(f"net-isolate@{name}", isolate(TARGETS[name]))
    for name in ("leader", "coordinator"):
        yield Scenario(f"net-isolate-past-session@{name}", isolate(TARGETS[name], SESSION_S + 2))
    for name in ("leader", "coordinator", "etcd", "clients"):
        yield Scenario(f"net-loss-25@{name}", lossy(TARGETS[name], 25))
    for a, b in (("clients", "leader"), ("clients", "coordinator"), ("follower", "leader"), ("coordinator", "etcd")):
        yield Scenario(f"net-resets@{a}>{b}", resets(TARGETS[a], TARGETS[b]))


def _single_requests() -> Iterator[Scenario]:
    for key in ApiKey:
        for action in ACTIONS:
            if action in ("reset", "unanswered") or (key not in _HARMLESS and action != "slow"):
                fault = requests(action, [key])
                if key in _AT_START:
                    fault = both(requests(action, [key], share=0.5), kill(TARGETS["client"], down_s=0.1, times=3))
                yield Scenario(f"{action}@{key.name}", fault, PROXIED)
    everything = [key for key in ApiKey if key is not ApiKey.FETCH]
    for action in ACTIONS:
        yield Scenario(f"{action}@anything", requests(action, everything, share=0.05), PROXIED)


def _clocks() -> Iterator[Scenario]:
    hour, month = 3600, 30 * 86_400
    for name in ("leader", "coordinator", "client"):
        target = TARGETS[name]
        yield Scenario(f"clock-ahead@{name}", clock((hour,), target, every_s=3.0))
        yield Scenario(f"clock-behind@{name}", clock((-hour,), target, every_s=3.0))
    yield Scenario("clock-jumps@nodes", clock((month, -month)))
    yield Scenario("clock-flaps@nodes", clock((60, -60, 5, -5, 0, 600), every_s=0.5))


def _clients() -> Iterator[Scenario]:
    client = TARGETS["client"]
    yield Scenario("kill@client", kill(client))
    yield Scenario("kill-thrice@client", kill(client, down_s=0.1, times=3))
    yield Scenario("freeze@client", freeze(client, 2.0))
    yield Scenario("freeze-past-time-out@client", freeze(client, 7.5))
    yield Scenario("zombie@client", zombie)


def _groups() -> Iterator[Scenario]:
    """Each fault with a group of each protocol."""
    for protocol, keys in _OF_ONE_PROTOCOL.items():
        for name, fault in _of_groups():
            yield Scenario(f"{protocol}:{name}", fault, GROUP, protocol)
        for key in (*keys, GroupKey.TXN_OFFSET_COMMIT):
            for action in ACTIONS:
                if action != "slow":  # some are sent only when members come and go
                    fault = both(requests(action, [key]), leave(TARGETS["client"]))
                    yield Scenario(f"{protocol}:{action}@{key.name}", fault, GROUP_PROXIED, protocol)
        late = requests("late", [*keys, GroupKey.TXN_OFFSET_COMMIT], 0.2)
        yield Scenario(
            f"{protocol}:late@members+kill@group-coordinator", both(late, kill(TARGETS["group-coordinator"], 0.5)),
            GROUP_PROXIED, protocol)


def _of_groups() -> Iterator[tuple[str, Fault]]:
    t = TARGETS
    for name in ("group-coordinator", "group-log-leader", "leader"):
        yield f"kill@{name}", kill(t[name])
        yield f"kill-thrice@{name}", kill(t[name], down_s=0.2, times=3)
        yield f"freeze@{name}", freeze(t[name], 1.5)
        yield f"freeze-past-session@{name}", freeze(t[name], SESSION_S + 2)
        yield f"stop@{name}", stop(t[name])
        yield f"net-isolate@{name}", isolate(t[name])
    yield "kill@coordinators", kill_all("coordinator")
    yield "kill@brokers", kill_all("broker")
    yield "kill@brokers-and-coordinators", kill_all("broker", "coordinator")
    yield "net-isolate-past-session@group-coordinator", isolate(t["group-coordinator"], SESSION_S + 2)
    yield "net-drop@clients>group-coordinator", drop(t["clients"], t["group-coordinator"])
    yield "net-drop@group-coordinator>clients", drop(t["group-coordinator"], t["clients"])
    yield "net-drop@group-coordinator>group-log-leader", drop(t["group-coordinator"], t["group-log-leader"])
    yield "net-resets@clients>group-coordinator", resets(t["clients"], t["group-coordinator"])
    yield "net-loss-25@group-coordinator", lossy(t["group-coordinator"], 25)
    yield "kill@member", kill(t["client"])
    yield "kill-thrice@member", kill(t["client"], down_s=0.1, times=3)
    yield "kill-past-session@member", kill(t["client"], down_s=8.0)
    yield "freeze@member", freeze(t["client"], 2.0)
    yield "freeze-past-session@member", freeze_in_transaction(t["client"], 8.0)
    yield "leave@member", leave(t["client"])
    yield "kill@static-member", kill(t["last-client"])
    yield "freeze-past-session@static-member", freeze(t["last-client"], 8.0)
    yield "zombie@member", zombie
    yield "kill@member+kill@group-coordinator", both(kill(t["client"]), kill(t["group-coordinator"]))
    yield "zombie@member+kill@group-coordinator", both(zombie, kill(t["group-coordinator"]))
    yield "freeze-past-session@member+kill@group-coordinator", both(
        freeze_in_transaction(t["client"], 8.0),
        then(kill(t["group-coordinator"], 0.3), kill(t["group-log-leader"], 0.3)))
    yield "leave@member+freeze@leader", both(leave(t["client"]), freeze(t["leader"], 2.0))


def _compositions() -> Iterator[Scenario]:
    t = TARGETS
    yield Scenario("kill@leader+kill@coordinator", both(kill(t["leader"]), kill(t["coordinator"])))
    yield Scenario("kill@leader+kill@controller", both(kill(t["leader"], 1.0), kill(t["controller"], 1.0)))
    yield Scenario("kill@leader+freeze@etcd", both(kill(t["leader"], 1.0), freeze(t["etcd"], 2.5)))
    yield Scenario("kill@coordinator+freeze@leader", both(kill(t["coordinator"]), freeze(t["leader"], 2.0)))
    yield Scenario("kill@client+kill@coordinator", both(kill(t["client"]), kill(t["coordinator"])))
    yield Scenario("zombie@client+kill@leader", both(zombie, kill(t["leader"])))
    yield Scenario("zombie@client+kill@coordinator", both(zombie, kill(t["coordinator"])))
    yield Scenario("kill@leader-then-follower", then(kill(t["leader"]), kill(t["follower"])))
    yield Scenario("freeze@leader-then-kill", then(freeze(t["leader"], SESSION_S + 1.5), kill(t["leader"])))
    yield Scenario("sync-fails@leader+kill@coordinator",
                   both(disk("sync", "EIO", t["leader"], "topic"), kill(t["coordinator"])))
    yield Scenario("no-space@leader+kill@client",
                   both(disk("write", "ENOSPC", t["leader"], "topic"), kill(t["client"])))
    yield Scenario("slow-sync@brokers+kill@leader", both(disks("sync", "100"), kill(t["leader"])))
    yield Scenario("slow-sync@brokers+kill@coordinator", both(disks("sync", "100"), kill(t["coordinator"])))
    yield Scenario("clock-jumps@nodes+kill@leader", both(clock((3600, -3600)), kill(t["leader"])))
    yield Scenario("clock-jumps@nodes+kill@coordinator", both(clock((3600, -3600)), kill(t["coordinator"])))
    yield Scenario("kill@leader+net-drop@leader>etcd",
                   then(drop(t["leader"], t["etcd"], 1.5), kill(t["leader"])))
    yield Scenario("kill@coordinator+net-loss-25@leader", both(lossy(t["leader"], 25), kill(t["coordinator"])))
    yield Scenario("kill@leader+net-loss-5@etcd", both(lossy(t["etcd"], 5), kill(t["leader"])))
    yield Scenario("zombie@client+net-drop@clients>leader", both(zombie, drop(t["clients"], t["leader"], 2.0)))
    ends = [ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT]
    yield Scenario("late@END_TXN+kill@coordinator",
                   both(requests("late", ends, 0.3), kill(t["coordinator"], 0.5)), PROXIED)
    yield Scenario("late@PRODUCE+kill@leader",
                   both(requests("late", [ApiKey.PRODUCE], 0.1), kill(t["leader"])), PROXIED)
    yield Scenario("unanswered@END_TXN+kill@client",
                   both(requests("unanswered", ends, 0.3), kill(t["client"], times=2)), PROXIED)
    yield Scenario("late@anything+rolling-stop@coordinators",
                   both(requests("late", list(ApiKey)[3:], 0.1), rolling_stop("coordinator")), PROXIED)


GROUPS: Final[dict[str, Callable[[], Iterator[Scenario]]]] = {
    "processes killed, frozen and stopped": _processes,
    "disks that fail, fill up or slow down": _disks,
    "files torn, flipped, cut or removed": _damages,
    "packets dropped, lost or reset": _network,
    "single requests late, unanswered, doubled or slow": _single_requests,
    "wall clocks that jump": _clocks,
    "clients killed, frozen and replaced": _clients,
    "several faults at once": _compositions,
    "members of consumer groups": _groups,
}
"""The groups of docs/chaos-results.md, in the order in which their scenarios run."""


def _trust() -> Iterator[Scenario]:
    t = TARGETS
    everybody = [name for name in t if name in _NODES and name != "pid"]

    def named(name: str, fault: Fault, layout: Layout = SECURE, group: str = "") -> Scenario:
        return Scenario(SECURE_PREFIX + (f"{group}:" if group else "") + name, fault, layout, group)

    yield named("rotate", rotate(4))
    for name in everybody:
        yield named(f"rotate+kill@{name}", both(rotate(3, wait=False), then(kill(t[name]), kill(t[name]))))
    for name in _MAIN:
        yield named(f"rotate+freeze@{name}", rotate_late(freeze(t[name], 3.0)))
        yield named(f"rotate+net-isolate@{name}", rotate_late(isolate(t[name])))
    yield named("rotate+kill@brokers", both(rotate(2, wait=False), kill_all("broker")))
    yield named("rotate+power-cut", both(
        rotate(2, wait=False), kill_all("etcd", "pid", "controller", "broker", "coordinator")))
    yield named("rotate+rolling-stop@brokers", both(rotate(3, wait=False), rolling_stop("broker")))
    yield named("rotate+kill-thrice@client", both(rotate(3, wait=False), kill(t["client"], down_s=0.1, times=3)))
    yield named("rotate+zombie@client", both(rotate(2, wait=False), zombie))
    yield named("rotate+net-loss-25@leader", rotate_late(lossy(t["leader"], 25)))
    yield named("rotate+clock-ahead@nodes", rotate_late(clock((YEAR_S, YEAR_S))))
    yield named("rotate+clock-behind@nodes", rotate_late(clock((-86_400, -86_400))))
    yield named("authorities", rotate_authorities())
    for name in ("leader", "coordinator", "controller", "client"):
        yield named(f"authorities+kill@{name}", rotate_authorities(kill(t[name])))
    for name in ("leader", "coordinator", "client"):
        yield named(f"clock-past-certificates@{name}", clock((YEAR_S,), t[name], every_s=4.0))
    yield named("clock-past-certificates@nodes", clock((YEAR_S,), every_s=3.0))
    yield named("clock-past-certificates+kill@leader", both(clock((YEAR_S,), every_s=3.0), kill(t["leader"])))
    yield named("password@client", change_password(t["client"], 4))
    yield named("password@client+kill@leader", both(change_password(t["client"]), kill(t["leader"])))
    yield named("password@client+kill@coordinator", both(change_password(t["client"]), kill(t["coordinator"])))
    yield named("password@client+kill@client", both(change_password(t["client"]), kill(t["client"], 0.1, 3)))
    yield named("user@client", remove_user(t["client"]))
    yield named("user@client+kill@leader", both(remove_user(t["client"]), then(kill(t["leader"]), kill(t["leader"]))))
    for what in ("topic", "id", "group"):
        for name in ("client", "last-client"):
            yield named(f"revoke-{what}@{name}", revoke(t[name], what))
    yield named("revoke-topic@client+kill@leader", both(revoke(t["client"], "topic"), kill(t["leader"])))
    yield named("revoke-id@client+kill@coordinator", both(revoke(t["client"], "id"), kill(t["coordinator"])))
    yield named("revoke-topic@client+rotate", both(revoke(t["client"], "topic"), rotate(2)))
    yield named("sessions", rotate(2, pause_s=2.0), SHORT_SESSIONS)
    for name in ("leader", "coordinator", "client", "etcd"):
        yield named(f"sessions+kill@{name}", kill(t[name], 0.2, 3), SHORT_SESSIONS)
    yield named("sessions+freeze@leader", freeze(t["leader"], 2.5), SHORT_SESSIONS)
    yield named("sessions+freeze@client", freeze(t["client"], 2.5), SHORT_SESSIONS)
    yield named("sessions+password@client", change_password(t["client"], 4), SHORT_SESSIONS)
    yield named("tokens", short_tokens(), TOKENS)
    for name in ("leader", "coordinator", "client"):
        yield named(f"tokens+kill@{name}", both(short_tokens(), kill(t[name], 0.2, 3)), TOKENS)
    yield named("clock-past-tokens@nodes", clock((7200,), every_s=4.0), TOKENS)
    yield named("clock-past-tokens@client", clock((7200,), t["client"], every_s=4.0), TOKENS)
    for group in _OF_ONE_PROTOCOL:
        yield named("rotate+kill@group-coordinator",
                    both(rotate(3, wait=False), kill(t["group-coordinator"], 0.3, 2)), SECURE_GROUP, group)
        yield named("revoke-group@member", revoke(t["client"], "group"), SECURE_GROUP, group)
        yield named("password@member", change_password(t["client"], 4), SECURE_GROUP, group)


def _in_secure_worlds(group: Callable[[], Iterator[Scenario]]) -> Callable[[], Iterator[Scenario]]:
    return lambda: map(secured, group())


SECURE_GROUPS: Final[dict[str, Callable[[], Iterator[Scenario]]]] = {
    "certificates, users and permissions": _trust,
    **{f"with TLS, logins and permissions: {title}": _in_secure_worlds(group) for title, group in GROUPS.items()},
}

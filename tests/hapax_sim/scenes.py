"""Scenes by name: `make sim SCENE=lively`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hapax_sim.parts.groups import SETTINGS as OF_GROUPS
from hapax_sim.parts.prepared import SETTINGS as OF_PREPARED
from hapax_sim.simulation import Scene

_CLUSTER: Final = {"brokers": 3, "coordinators": 2, "controllers": 2, "replication": 3}

SCENES: Final[Mapping[str, Scene]] = {
    "plain": Scene(**_CLUSTER),
    "lively": Scene(**_CLUSTER, spreaders=60, rate=60.0, pause_s=(0.0, 0.3), faults_every_s=3.0),
    "light": Scene(**_CLUSTER, appenders=1, pause_s=(0.0, 2.0), faults_every_s=8.0),
    "single": Scene(brokers=2, coordinators=2, controllers=1, replication=1),
    "copying": Scene(
        **_CLUSTER, programs=False, parts=("copying",), pause_s=(0.0, 0.4), faults_every_s=4.0,
        # All but jumps of clocks: where those of brokers disagree, a copy may divide transactions.
        faults=(
            "kill", "power cut", "long absence", "restart all brokers", "freeze", "client crash", "client freeze",
            "second instance", "cut connections", "connections reset", "reset one way", "swallow one way", "isolate",
            "verification waits", "slow link", "store away", "store away for all", "store away for long", "store slow",
            "store restarts", "store compacted", "lease ends", "lease ends at the worst time", "sync fails",
            "write fails", "disk full", "slow disk", "bit rot",
        ),
        settings=OF_GROUPS,
    ),
    "cut-off": Scene(
        **_CLUSTER, programs=False, parts=("positions",), pause_s=(0.0, 2.0), faults_every_s=40.0,
        faults=("store away for long",),
    ),
    "days": Scene(
        **_CLUSTER, programs=False, parts=("days",), pause_s=(0.0, 200.0), faults_every_s=60.0,
        faults=("hours pass",),
    ),
    "groups": Scene(
        **_CLUSTER, programs=False, parts=("groups",), pause_s=(0.0, 0.3), faults_every_s=4.0, settings=OF_GROUPS,
    ),
    "late": Scene(
        **_CLUSTER, programs=False, parts=("late",), pause_s=(0.0, 0.2), faults_every_s=2.0,
        faults=("cut connections", "lease ends"), settings=OF_GROUPS,
    ),
    "logins": Scene(
        **_CLUSTER, appenders=2, with_logins=True, parts=("renewals",), pause_s=(0.0, 0.3), faults_every_s=3.0,
    ),
    "refused": Scene(
        **_CLUSTER, appenders=2, with_logins=True, parts=("renewals", "refusals"), pause_s=(0.0, 0.3),
        faults_every_s=3.0,
    ),
    "old": Scene(**_CLUSTER, programs=False, parts=("old",), pause_s=(0.0, 0.3), faults_every_s=4.0),
    "prepared": Scene(
        **_CLUSTER, programs=False, parts=("prepared",), pause_s=(0.0, 0.3), faults_every_s=4.0, settings=OF_PREPARED,
    ),
    "remade": Scene(**_CLUSTER, programs=False, parts=("remade",), pause_s=(0.0, 0.5), faults_every_s=3.0),
    "rest": Scene(
        **_CLUSTER, programs=False, parts=("rest",), pause_s=(0.0, 0.5), faults_every_s=3.0,
        faults=("kill", "lease ends", "service crash", "service freeze", "slow link", "store away", "store slow"),
    ),
    "tasks": Scene(**_CLUSTER, programs=False, parts=("tasks",), pause_s=(0.0, 0.3), faults_every_s=4.0),
    "unmade": Scene(
        **_CLUSTER, programs=False, parts=("remade",), pause_s=(0.0, 12.0), faults_every_s=7.0,
        faults=("slow to connect",), settings=("auto.create.topics.enable=false",),
    ),
    "weak": Scene(
        **_CLUSTER, programs=False, parts=("weak",), pause_s=(0.0, 0.2), faults_every_s=1.0,
        faults=("connections reset", "slow disk"),
    ),
    "hostile": Scene(
        **_CLUSTER, programs=False, parts=("hostile", "keys"), pause_s=(0.0, 0.6), faults_every_s=10.0,
        faults=("slow disk",),
    ),
    "packed": Scene(
        **_CLUSTER, appenders=1, parts=("old", "weak", "tasks"), pause_s=(0.0, 0.3), faults_every_s=3.0,
        settings=("compression.type=zstd",),
    ),
    "durability": Scene(
        **_CLUSTER, appenders=1, pause_s=(0.0, 0.3), faults_every_s=6.0,
        faults=("other settings",), settings=("durability=page-cache",),
    ),
    "alone": Scene(**_CLUSTER, appenders=1, pause_s=(0.0, 0.3), faults_every_s=4.0, faults=("back alone",)),
    "far": Scene(**_CLUSTER, far=True, appenders=1, parts=("keys",), pause_s=(0.0, 0.6), faults_every_s=6.0),
    "keys": Scene(**_CLUSTER, programs=False, parts=("keys",), pause_s=(0.0, 0.6), faults_every_s=10.0),
}
"""`plain`: a few programs, as fast as they can. `lively`: 50 transactions and more a logical second, over all programs,
and a fault every 3 s. `light`: a transaction or two a second and a fault every 8 s, for many simulated hours in little
time. `single`: without replicas. `packed`: brokers compress every batch again, off the loop, while all else goes on."""

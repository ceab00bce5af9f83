"""The health of a cluster, check by check. The command and the REST API use the same checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from hapax.client.admin import Admin
from hapax.client.errors import HapaxError
from hapax.codec.metadata import OFFSETS_TOPIC, TXN_STATE_TOPIC

Status = Literal["ok", "degraded", "down"]
ORDER: Final[tuple[Status, ...]] = ("ok", "degraded", "down")


class Counts(NamedTuple):
    """None: unknown."""

    controller: str | None
    """Node id of the active controller; None: there is none."""
    brokers: int
    unfit: Sequence[int]
    coordinators: int
    allocators: int | None
    silent: Sequence[int] | None
    leaderless: int
    short: int
    """Partitions with a replica that is not in sync."""
    below: int | None
    """Partitions with fewer replicas in sync than min.insync.replicas."""
    shards_off: int
    """Shards without an owner that serves them."""


class Check(NamedTuple):
    name: str
    status: Status
    detail: str


def health_checks(counts: Counts) -> list[Check]:
    """`down`: some clients cannot read, write or commit now."""
    unfit = f"; not fit: {', '.join(map(str, counts.unfit))}" if counts.unfit else ""
    checks = [
        Check("controller", "ok" if counts.controller else "degraded",
              f"{counts.controller} acts" if counts.controller else "none acts: nothing fails over"),
        Check("brokers", "down" if not counts.brokers else "degraded" if unfit else "ok",
              f"{counts.brokers} alive{unfit}"),
        Check("coordinators", "ok" if counts.coordinators else "down", f"{counts.coordinators} alive"),
        Check("leaders", "down" if counts.leaderless else "ok", f"{counts.leaderless} partitions have no leader"),
        Check("replicas", "degraded" if counts.short else "ok",
              f"{counts.short} partitions have replicas that are not in sync"),
        Check("shards", "down" if counts.shards_off else "ok", f"{counts.shards_off} shards have no coordinator"),
    ]
    if counts.allocators is not None:
        checks.append(Check("allocators", "ok" if counts.allocators else "degraded", f"{counts.allocators} alive"))
    if counts.silent is not None:
        checks.append(Check(
            "silent nodes", "degraded" if counts.silent else "ok", ", ".join(map(str, counts.silent)) or "none"))
    if counts.below is not None:
        checks.append(Check(
            "min.insync.replicas", "down" if counts.below else "ok",
            f"{counts.below} partitions take no acks=all writes"))
    return checks


def worst(checks: Sequence[Check]) -> Status:
    return max((each.status for each in checks), key=ORDER.index)


async def count(admin: Admin) -> Counts:
    """What a client can check. Raises HapaxError."""
    topics, brokers, cluster = await admin.list_topics(), await admin.list_brokers(), await admin.describe_cluster()
    partitions = [each for topic in topics for each in topic.partitions]
    try:
        controller = await admin.acting_controller()
    except HapaxError:
        controller = None
    # Coordinators list only the shards that they own. Shards without an owner, or whose owner is silent, are found by
    # comparison: a shard's log is the partition with its number.
    serving = {(each.kind, each.shard) for each in await admin.describe_shards(partial=True) if each.serving}
    shards = sum(len(topic.partitions) for topic in topics if topic.name in (TXN_STATE_TOPIC, OFFSETS_TOPIC))
    return Counts(
        controller, len(brokers), [each.node_id for each in brokers if each.standing],
        len([node for node in cluster.nodes if 100 <= node.node_id < 200]), None, None,
        sum(each.leader < 0 for each in partitions),
        sum(bool(set(each.replicas) - set(each.isr)) for each in partitions),
        None, shards - len(serving))

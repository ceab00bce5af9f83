"""Invariants inside the cluster, checked on data that was collected there: batches, replicas, leaders, ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

SEQUENCES = 1 << 31


class Batch(NamedTuple):
    """A batch header in a partition's log. Control batches are left out. `base_sequence` -1: exempt."""

    base_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int


class Replica(NamedTuple):
    """One broker's copy of a partition: its batches' bytes up to the high watermark, from a common offset on."""

    broker: int
    high_watermark: int
    batches: Sequence[tuple[int, bytes]]
    """(base offset, the whole batch)"""


def contiguous_sequences(partition: str, batches: Iterable[Batch], *, begin_anywhere: bool = False) -> list[str]:
    """For each (producer id, epoch), the sequences are consecutive and begin at 0. They wrap to 0 after 2^31 - 1.

    `begin_anywhere`: the log was cut at its start, or producers continue from a saved sequence.
    """
    following: dict[tuple[int, int], int] = {}
    epochs: dict[int, int] = {}
    found = []
    for b in batches:
        if b.producer_id < 0 or b.base_sequence < 0:
            continue
        who = b.producer_id, b.producer_epoch
        expected = following.get(who)
        if expected is None and not begin_anywhere:
            expected = 0
        name = f"{partition} offset {b.base_offset}: producer {b.producer_id} epoch {b.producer_epoch}"
        if expected is not None and b.base_sequence != expected:
            kind = "sequence-gap" if 0 < (b.base_sequence - expected) % SEQUENCES < SEQUENCES // 2 else "sequence-again"
            found.append(f"{kind}: {name} has sequence {b.base_sequence}, not {expected}")
        if b.producer_epoch < epochs.get(b.producer_id, -1):
            found.append(f"zombie-write: {name} after epoch {epochs[b.producer_id]}")
        epochs[b.producer_id] = max(b.producer_epoch, epochs.get(b.producer_id, -1))
        following[who] = (b.base_sequence + b.records) % SEQUENCES
    return found


def stable_offsets(ends: Mapping[str, tuple[int, int]]) -> list[str]:
    """To be checked once everything is healed and decided. `ends`: partition -> (last stable offset, high
    watermark)."""
    return [
        f"stuck-stable-offset: {partition} is stable to {stable}, and ends at {last}"
        for partition, (stable, last) in ends.items()
        if stable != last
    ]


def replicas_equal(partition: str, replicas: Sequence[Replica]) -> list[str]:
    """Compares byte by byte, up to the lowest high watermark of the copies."""
    if len(replicas) < 2:
        return []
    bound = min(replica.high_watermark for replica in replicas)
    start = max((r.batches[0][0] for r in replicas if r.batches), default=0)
    copies = [[(o, data) for o, data in r.batches if start <= o < bound] for r in replicas]
    found = []
    for replica, copy in zip(replicas[1:], copies[1:], strict=True):
        for mine, theirs in zip(copies[0], copy, strict=False):
            if mine != theirs:
                found.append(
                    f"replicas-differ: {partition}: brokers {replicas[0].broker} and {replica.broker} at offsets "
                    f"{mine[0]} and {theirs[0]}"
                )
                break
        else:
            if len(copy) != len(copies[0]):
                found.append(
                    f"replicas-differ: {partition}: below {bound} broker {replicas[0].broker} holds {len(copies[0])} "
                    f"batches, broker {replica.broker} {len(copy)}"
                )
    return found


def one_leader_per_epoch(seen: Iterable[tuple[str, int, object]]) -> list[str]:
    """`seen`: (partition or shard, its epoch, the process that served it), one for each observation."""
    leaders: dict[tuple[str, int], set[object]] = defaultdict(set)
    for what, epoch, who in seen:
        leaders[what, epoch].add(who)
    return [
        f"two-leaders: {what} epoch {epoch} was served by {sorted(map(str, who))}"
        for (what, epoch), who in leaders.items()
        if len(who) > 1
    ]


def one_owner_per_epoch(seen: Iterable[tuple[str, int, object]]) -> list[str]:
    """`seen`: (partition of a group, generation or member epoch, the member that owned it then)."""
    owners: dict[tuple[str, int], set[object]] = defaultdict(set)
    for what, epoch, who in seen:
        owners[what, epoch].add(who)
    return [
        f"two-owners: {what} at epoch {epoch} was owned by {sorted(map(str, who))}"
        for (what, epoch), who in owners.items()
        if len(who) > 1
    ]


def ids_never_reused(given: Iterable[tuple[int, int, object]]) -> list[str]:
    """`given`: (producer id, epoch, the holder) of every identity that was handed out. A repeated answer to the same
    holder is allowed."""
    holders: dict[tuple[int, int], set[object]] = defaultdict(set)
    for producer_id, epoch, who in given:
        holders[producer_id, epoch].add(who)
    return [
        f"identity-reused: producer {producer_id} epoch {epoch} was given to {sorted(map(str, who))}"
        for (producer_id, epoch), who in holders.items()
        if len(who) > 1
    ]

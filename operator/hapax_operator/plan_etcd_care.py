"""What etcd's members need besides being there: defragmentation, an end to alarms for space, snapshots. Pure.

1. One thing at a time, and only while every member is healthy and no member is to change (`plan_etcd`).
2. A member is defragmented when enough of its file is unused. It answers nothing meanwhile, so the leader comes last,
   and hands over first. A member that is alone stops the whole cluster for that time, so it is defragmented only when
   the store takes no more writes anyway. What the last attempt did not give back counts as used for an hour, so that
   a file that stays large does not take its member away again and again.
3. An alarm for space is ended once every member has space again, by the quota that it runs with: etcd raises it again
   at the next write without. An alarm for damage is shown, and never ended from here.
4. A snapshot is taken from a member that does not lead, where one has applied what the leader has. The oldest beyond
   the number to keep go. One of a time that is still to come, because a clock was ahead, says nothing about how old the
   last one is, and goes first. So do the oldest but the last one where the volume has no room for a new one, and has it
   without them. Where it has not, nothing is deleted: the snapshot fails either way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hapax_operator.conditions import Condition

NOSPACE: Final = "NOSPACE"
CORRUPT: Final = "CORRUPT"
FREE_AGAIN: Final = 0.9
"""The share of the quota below which a member has space again."""
WORTH_IT: Final = 0.02
"""The share of the quota that a full member must get back at least: below, the next writes fill it at once."""
_AGAIN_S: Final = 3600


class Care(NamedTuple):
    """Settings."""

    quota_bytes: int
    """Of etcd's database (--quota-backend-bytes)."""
    defragment_bytes: int
    """Size from which a database is worth it."""
    defragment_share: float
    """Share of it that must be unused."""
    snapshot_every_s: int
    """0: no snapshots."""
    snapshots_kept: int


class DatabaseSeen(NamedTuple):
    member: str
    leader: bool
    db_bytes: int
    used_bytes: int
    applied: int = 0
    """The last log entry that it has applied."""


class Attempt(NamedTuple):
    """At defragmenting a member."""

    at: int
    """Unix seconds."""
    left_bytes: int | None = None
    """Unused bytes of its file that it did not give back; None: not seen yet."""
    failed: bool = False
    """Whether it was not answered (in time)."""


class AlarmSeen(NamedTuple):
    member: str
    kind: str


class SnapshotSeen(NamedTuple):
    name: str
    at: int
    """Unix seconds."""
    size: int = 0
    """Bytes that its deletion frees."""


@dataclass(frozen=True, slots=True)
class CareSeen:
    settled: bool
    """Whether every member is there and healthy (`plan_etcd.Plan.settled`)."""
    databases: Sequence[DatabaseSeen] = ()
    alarms: Sequence[AlarmSeen] = ()
    snapshots: Sequence[SnapshotSeen] = ()
    failed_at: int = 0
    """When the last attempt at a snapshot failed, after the last one that did not; 0: none has."""
    started_at: int = 0
    """When this process began. Without any snapshot, one is late from then on."""
    free_bytes: int | None = None
    """Of the volume of snapshots; None: not known."""
    current: bool = True
    """Whether the pods are of the described revision, and thus have the described quota."""
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    """The last one of each member (`judged`)."""


class Defragment(NamedTuple):
    member: str


class HandOver(NamedTuple):
    """Lets another member lead before this one is defragmented."""

    leader: str
    to: str


class Disarm(NamedTuple):
    alarm: AlarmSeen


class TakeSnapshot(NamedTuple):
    member: str


class Prune(NamedTuple):
    names: tuple[str, ...]


CareStep = Defragment | HandOver | Disarm | TakeSnapshot | Prune


class CarePlan(NamedTuple):
    step: CareStep | None
    conditions: tuple[Condition, ...]
    wait_s: int = 3600
    """When to look again, if nothing changes."""


_RETRY_S: Final = 300
_BEHIND: Final = 1000
"""Log entries by which a member may lag behind, and a snapshot of it still counts as of now: members are asked within
seconds of each other."""


def plan_care(care: Care, seen: CareSeen, now: int) -> CarePlan:
    space, snapshot = _space(care, seen, now), _snapshot(care, seen, now)
    conditions = tuple(each for each in (space, snapshot) if each is not None)
    due = max(last_of(seen.snapshots, now) + care.snapshot_every_s,
              seen.failed_at + _RETRY_S if 0 < seen.failed_at <= now else 0)
    wait_s = max(1, due - now) if care.snapshot_every_s else 3600
    if not seen.settled or not seen.databases:
        return CarePlan(None, conditions, wait_s)
    step: CareStep | None = _disarm(care, seen) or _defragment(care, seen, now)
    if step is None and care.snapshot_every_s:
        oldest_first = sorted(seen.snapshots, key=lambda each: (each.at <= now, each.at))
        surplus = oldest_first[: -care.snapshots_kept]
        if due <= now:
            newest = max(each.applied for each in seen.databases)
            of = min(seen.databases, key=lambda each: (each.applied < newest - _BEHIND, each.leader, each.member))
            room = _makes_room(oldest_first, seen.free_bytes, of.db_bytes)
            step = Prune(room) if room else TakeSnapshot(of.member)
        elif surplus:
            step = Prune(tuple(each.name for each in surplus))
    return CarePlan(step, conditions, wait_s)


def _makes_room(oldest_first: Sequence[SnapshotSeen], free: int | None, needed: int) -> tuple[str, ...]:
    """Snapshots to delete before the next one; empty: it has room, or would have none even without all but the
    last."""
    if free is None or free >= needed:
        return ()
    going = []
    for each in oldest_first[:-1]:
        going.append(each.name)
        free += each.size
        if free >= needed:
            return tuple(going)
    return ()


def judged(attempts: Mapping[str, Attempt], databases: Sequence[DatabaseSeen]) -> dict[str, Attempt]:
    """With what each attempt has left, from the first look at its member after it."""
    left = {each.member: each.db_bytes - each.used_bytes for each in databases}
    return {member: each._replace(left_bytes=left.get(member)) if each.left_bytes is None else each
            for member, each in attempts.items()}


def last_of(snapshots: Sequence[SnapshotSeen], now: int) -> int:
    """Unix seconds; 0: there is none."""
    return max((each.at for each in snapshots if each.at <= now), default=0)


def _full(seen: CareSeen) -> list[AlarmSeen]:
    return [each for each in seen.alarms if each.kind == NOSPACE]


def _has_space(care: Care, database: DatabaseSeen) -> bool:
    return database.db_bytes < FREE_AGAIN * care.quota_bytes


def _disarm(care: Care, seen: CareSeen) -> Disarm | None:
    if seen.current and all(_has_space(care, each) for each in seen.databases):
        for alarm in _full(seen):
            return Disarm(alarm)
    return None


def _defragment(care: Care, seen: CareSeen, now: int) -> Defragment | HandOver | None:
    full = bool(_full(seen))
    due = [each for each in seen.databases if _worth_it(care, each, full, seen.attempts.get(each.member), now)]
    if not due or (len(seen.databases) == 1 and not full):
        return None
    first = min(due, key=lambda each: (each.leader, each.member))
    if first.leader and len(seen.databases) > 1:
        heir = next(each for each in seen.databases if not each.leader)
        return HandOver(first.member, heir.member)
    return Defragment(first.member)


def _worth_it(care: Care, database: DatabaseSeen, full: bool, last: Attempt | None, now: int) -> bool:
    unused = database.db_bytes - database.used_bytes
    if last is not None and last.at <= now < last.at + (_RETRY_S if last.failed else _AGAIN_S):
        unused -= unused if last.left_bytes is None else last.left_bytes
    if full and not _has_space(care, database):
        return database.used_bytes < FREE_AGAIN * care.quota_bytes and unused >= WORTH_IT * care.quota_bytes
    return database.db_bytes >= care.defragment_bytes and unused >= care.defragment_share * database.db_bytes


def _space(care: Care, seen: CareSeen, now: int) -> Condition:
    damaged = sorted(each.member for each in seen.alarms if each.kind == CORRUPT)
    if damaged:
        return Condition("SpaceLeft", "False", "Corrupt", f"members {', '.join(damaged)} report a damaged database; "
                         "replace their volumes one at a time")
    full = _full(seen)
    if full:
        if any(not _has_space(care, each) and not _worth_it(care, each, True, seen.attempts.get(each.member), now)
               for each in seen.databases):
            return Condition("SpaceLeft", "False", "QuotaReached", "the store takes no writes: what it holds fills its "
                             "quota; raise etcd.quotaBytes, or remove what fills it")
        return Condition("SpaceLeft", "False", "QuotaReached", "the store takes no writes until its members are "
                         "defragmented")
    most = max((each.db_bytes for each in seen.databases), default=0)
    share = 100 * most // care.quota_bytes
    return Condition("SpaceLeft", "True", "BelowQuota", f"at most {share} % of the quota is used")


def _snapshot(care: Care, seen: CareSeen, now: int) -> Condition | None:
    if not care.snapshot_every_s:
        return None
    last = last_of(seen.snapshots, now)
    if seen.failed_at > last:
        return Condition("SnapshotTaken", "False", "Failed", "the last attempt at a snapshot failed; the log says why")
    if (last or seen.started_at) + 2 * care.snapshot_every_s < now:
        return Condition("SnapshotTaken", "False", "Late", f"the last snapshot is {now - last} s old" if last
                         else "there is no snapshot yet")
    if not last:
        return Condition("SnapshotTaken", "False", "None", "there is no snapshot yet")
    return Condition("SnapshotTaken", "True", "OnSchedule", f"{len(seen.snapshots)} snapshots are kept")

"""A copy's position in a partition of the source, and whether the source is still the one to which it belongs.

The position is a committed offset of the copy's group on the target. Its metadata say of which source it is: the
cluster, the topic's id, and the leader epoch of the last batch that was copied. A source that was put back, truncated
or made again answers one of these questions otherwise.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import NamedTuple

NO_EPOCH = -1


class Position(NamedTuple):
    offset: int
    """Of the next record to copy."""
    cluster: str
    """Cluster id of the source. Empty: it has none."""
    topic: str
    """Name of the topic in the source."""
    topic_id: str
    """Empty: the source knows no topic ids."""
    epoch: int = NO_EPOCH
    """Leader epoch of the last batch before the offset; -1: unknown."""
    target_id: str = ""
    """Id of the share's topic on the target; empty: unknown."""
    data_id: str = ""
    """Id of the target's topic that holds the records before the offset, where that is another one; empty: unknown."""

    def metadata(self) -> str:
        """The metadata of the committed offset (at most 4,096 bytes)."""
        facts = {"v": 1, "cluster": self.cluster, "topic": self.topic, "id": self.topic_id, "epoch": self.epoch}
        if self.target_id:
            facts["target"] = self.target_id
        if self.data_id:
            facts["data"] = self.data_id
        return json.dumps(facts, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def read(cls, offset: int, metadata: str) -> Position:
        """Raises ValueError for an offset that no copy has committed."""
        try:
            facts = json.loads(metadata)
            if facts["v"] != 1:
                raise ValueError(f"a later version of hapax copy has committed it: {metadata!r}")
            return cls(
                offset, str(facts["cluster"]), str(facts["topic"]), str(facts["id"]), int(facts["epoch"]),
                str(facts.get("target", "")), str(facts.get("data", "")))
        except (KeyError, TypeError, json.JSONDecodeError):
            raise ValueError(f"it is not of hapax copy: {metadata!r}") from None


def is_of_a_copy(offset: int, metadata: str) -> bool:
    try:
        Position.read(offset, metadata)
    except ValueError:
        return False
    return True


def is_of_former(offset: int, metadata: str, target_id: str) -> bool:
    """Whether the position is of a topic of the target that was deleted and made again since. `target_id`: of the
    present one; empty: unknown."""
    try:
        former = Position.read(offset, metadata).target_id
    except ValueError:
        return False
    return _differ(former, target_id)


def is_known_to_be_of(offset: int, metadata: str, target_id: str) -> bool:
    """Whether the position is of the target's topic with this id, or it is unknown of what it is. False where the
    target has no topic ids: the topic may have been deleted since, together with the group's offsets."""
    try:
        return Position.read(offset, metadata).target_id == target_id != ""
    except ValueError:
        return True


def is_half_former(offset: int, metadata: str, target_id: str, data_id: str) -> bool:
    """Whether of a share's two topics on the target, exactly one was deleted and made again since. The ids are those of
    the present ones; empty: unknown."""
    try:
        position = Position.read(offset, metadata)
    except ValueError:
        return False
    known = all((position.target_id, target_id, position.data_id, data_id))
    return known and _differ(position.target_id, target_id) != _differ(position.data_id, data_id)


Committed = tuple[int, str]
"""Offset, and its metadata."""


class Chosen(Enum):
    """Which of the two places has the position that counts."""

    GROUP = "group"
    SAVED = "saved"
    """The copy's own topic."""
    NONE = "none"
    """Nothing was copied to the target's present topic."""
    HALF = "half"
    """Of the share's two topics on the target, one was made again."""


def choose(group: Committed | None, saved: Committed | None, target_id: str, data_id: str) -> Chosen:
    """Each transaction commits a position in both places, so they differ only where one of them has lost what it had:
    the group's offsets expire, and an unclean election takes the end of either. Then the later one counts. The ids are
    those of the share's present topics on the target, as of `is_half_former`."""
    if group is not None and not (saved is not None and _is_later(saved, group, target_id, data_id)):
        if is_half_former(*group, target_id, data_id):
            return Chosen.HALF
        return Chosen.NONE if is_of_former(*group, target_id) else Chosen.GROUP
    if saved is None:
        return Chosen.NONE
    if is_half_former(*saved, target_id, data_id):
        return Chosen.HALF
    return Chosen.SAVED if is_known_to_be_of(*saved, target_id) else Chosen.NONE


def _is_later(saved: Committed, group: Committed, target_id: str, data_id: str) -> bool:
    """Offsets can be compared within one topic of the source and one of the target: in none of both does a copy ever go
    back. So where the target has no topic ids, the group's counts."""
    try:
        one, other = Position.read(*saved), Position.read(*group)
    except ValueError:
        return False
    if not target_id or one.target_id != target_id or _differ(one.data_id, data_id):
        return False
    if _differ(other.target_id, target_id):
        return not other.data_id or other.data_id != data_id
    return (
        one.offset > other.offset and one.topic == other.topic and not _differ(one.cluster, other.cluster)
        and not _differ(one.topic_id, other.topic_id) and not _differ(one.data_id, other.data_id))


def _differ(former: str, now: str) -> bool:
    return bool(former and now) and former != now


class Kind(Enum):
    """Why a partition cannot be copied further."""

    OTHER_CLUSTER = "other-cluster"
    OTHER_TOPIC = "other-topic"
    MADE_AGAIN = "made-again"
    GONE = "gone"
    TRUNCATED = "truncated"
    LOST = "lost"
    DAMAGED = "damaged"
    OLD_FORMAT = "old-format"
    NOT_EMPTY = "not-empty"
    TARGET_MADE_AGAIN = "target-made-again"
    NOT_OURS = "not-ours"
    SOURCE_REFUSES = "source-refuses"
    TARGET_REFUSES = "target-refuses"


class Trouble(NamedTuple):
    kind: Kind
    message: str
    """What happened, and what to do."""
    lost: int = 0
    """Offsets of the source that can no longer be copied."""
    go_on_at: int = -1
    """With `--on-lost skip`, the offset at which the copy continues; -1: skipping does not help."""


class Source(NamedTuple):
    """The partition as the source describes it now."""

    cluster: str
    topic_id: str
    first: int
    """Offset at which the log begins."""
    end: int
    """High watermark."""
    epoch_end: int = -1
    """Where the records of the position's leader epoch end; -1: the source does not know that epoch."""


def judge(name: str, position: Position, topic: str, source: Source) -> Trouble | None:
    """`name`: of the partition, for the message. `topic`: the name of the topic that is to be copied. None: the copy
    continues at the position."""
    if position.cluster and source.cluster and position.cluster != source.cluster:
        return Trouble(
            Kind.OTHER_CLUSTER,
            f"{name}: the copy has read from cluster {position.cluster} so far, and this is cluster {source.cluster}."
            " Copy from that cluster, or give this copy another --name and target topics of its own")
    if position.topic != topic:
        return Trouble(
            Kind.OTHER_TOPIC,
            f"{name}: the copy has filled this partition of the target from topic {position.topic!r} so far. Choose"
            " another --prefix, or another --name and target topics of its own")
    if position.topic_id and source.topic_id and position.topic_id != source.topic_id:
        return Trouble(
            Kind.MADE_AGAIN,
            f"{name}: the topic was deleted and made again in the source (id {source.topic_id}, before"
            f" {position.topic_id}). Delete the topic in the target to copy the new one from its beginning, or copy it"
            " to another topic with --prefix")
    if position.offset > source.end:
        return Trouble(
            Kind.TRUNCATED,
            f"{name}: the source ends at offset {source.end}, and records up to {position.offset} were copied: it has"
            f" lost {position.offset - source.end} offsets that the target holds. {_TRUNCATED}")
    if position.epoch != NO_EPOCH and 0 <= source.epoch_end < position.offset:
        return Trouble(
            Kind.TRUNCATED,
            f"{name}: in the source, the records of leader epoch {position.epoch} end at offset {source.epoch_end}, and"
            f" records up to {position.offset} of it were copied: the source has lost them and written others."
            f" {_TRUNCATED}")
    if position.offset < source.first:
        return lost(name, position.offset, source.first)
    return None


_TRUNCATED = (
    "Compare the two topics. To continue with what the source holds now, delete the topic in the target, or copy to"
    " another topic with --prefix"
)


def lost(name: str, offset: int, first: int) -> Trouble:
    """The source has removed records before they were copied."""
    return Trouble(
        Kind.LOST,
        f"{name}: the source begins at offset {first}, and the copy has reached {offset}: {first - offset} offsets were"
        " removed before they were copied. Raise the retention of the source; to copy the rest without them, use"
        " --on-lost skip", first - offset, first)


def damaged(name: str, offset: int, following: int, reason: str) -> Trouble:
    """`following`: the offset after the damaged batch; -1: it is not known."""
    count = max(following - offset, 0)
    skipping = f", or leave {count} offsets out with --on-lost skip" if following >= 0 else ""
    return Trouble(
        Kind.DAMAGED,
        f"{name}: the source's batch at offset {offset} is damaged ({reason}). Everything before it was copied. Let the"
        f" source repair it from another replica{skipping}", count, following)

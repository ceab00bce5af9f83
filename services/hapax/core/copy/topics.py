"""Which topics of the source a copy has, and how the target's must look for that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import re2

COPIED_CONFIGS: Final = frozenset({
    "cleanup.policy", "compression.type", "delete.retention.ms", "file.delete.delay.ms", "max.compaction.lag.ms",
    "max.message.bytes", "message.timestamp.type", "message.timestamp.difference.max.ms",
    "message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms", "min.insync.replicas", "retention.bytes", "retention.ms", "segment.bytes",
    "segment.index.bytes", "segment.jitter.ms", "segment.ms",
})  # fmt: skip
"""What a topic's configuration says of its records. The rest, such as throttled replicas, says of its cluster."""


class Wanted(NamedTuple):
    """A topic of the source that is copied."""

    source: str
    target: str
    topic_id: str
    partitions: int


class Change(NamedTuple):
    """What has to be done on the target before the topic can be copied."""

    topic: Wanted
    create: bool
    """False: the topic exists and has too few partitions."""


def chosen(
    topics: Mapping[str, tuple[str, int]], pattern: str, exclude: str, prefix: str, own: str, *, one_cluster: bool
) -> list[Wanted]:
    """The topics that are copied, by name. `topics`: of the source, name -> (topic id, number of partitions). `own`:
    the prefix of names that copies use for themselves. Internal topics (`__...`) are never copied. `one_cluster`:
    source and target are the same, so the copies are among the topics; a copy is not copied again."""
    matches = re2.compile(pattern)
    excluded = re2.compile(exclude) if exclude else None
    found: dict[str, Wanted] = {}
    for name, (topic_id, partitions) in sorted(topics.items(), key=lambda each: (len(each[0]), each[0])):
        if (
            partitions and not name.startswith(("__", own)) and matches.fullmatch(name)
            and not (excluded is not None and excluded.fullmatch(name))
            and not (one_cluster and name.startswith(prefix) and name.removeprefix(prefix) in found)
        ):
            found[name] = Wanted(name, prefix + name, topic_id, partitions)
    return sorted(found.values())


def changes(wanted: Iterable[Wanted], existing: Mapping[str, int]) -> list[Change]:
    """`existing`: of the target, name -> number of partitions."""
    return [
        Change(each, each.target not in existing) for each in wanted
        if existing.get(each.target, 0) < each.partitions]


def configuration(of_source: Mapping[str, tuple[str | None, str]], known: Iterable[str]) -> dict[str, str]:
    """The configuration of a topic in the target. `of_source`: name -> (value, source of the value). `known`: the names
    that the target knows. Only what was set for the topic is copied; for all else, the target's defaults apply.

    A copy keeps the timestamps of the source. So a topic whose source writes append times has create times here."""
    there = frozenset(known)
    return {
        name: value for name, (value, origin) in sorted(of_source.items())
        if origin == "topic" and value is not None and name in COPIED_CONFIGS and name in there
        and name != "message.timestamp.type"}

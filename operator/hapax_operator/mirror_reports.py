"""What copiers report of themselves: read from each copier's pod, and put together for the Mirror."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hapax.runtime import telemetry
from hapax_operator.conditions import camel
from hapax_operator.mirror_pods import METRICS_PORT, PodSeen
from hapax_operator.pod_http import PodHttp

log = telemetry.logger("mirrors")

_MOST_BYTES: Final = 4 << 20


class TopicState(NamedTuple):
    """Of the partitions that a copier has, or of all."""

    name: str
    """On the source."""
    partitions: int
    lag_records: int = 0
    lag_ms: int = 0
    """The age of the oldest record that is not copied."""
    reason: str = ""
    """Of the error, in camel case."""
    error: str = ""
    blocked: bool = False
    """Whether a partition does not go on until somebody acts."""


class Report(NamedTuple):
    """Of one copier."""

    started_ms: int
    """When the process began."""
    records: int
    """Copied since then."""
    source_error: str = ""
    """Why the source cannot be reached; empty: it can, or is not known."""
    target_error: str = ""
    matching: int | None = None
    """Number of topics on the source that match, whichever copier has them. None: not known yet."""
    topics: tuple[TopicState, ...] = ()

    @property
    def partitions(self) -> int:
        return sum(each.partitions for each in self.topics)


def merged_topics(reports: Iterable[Report]) -> list[TopicState]:
    """One for each topic, by name. An error that blocks counts before others."""
    found: dict[str, TopicState] = {}
    for report in reports:
        for each in report.topics:
            known = found.get(each.name)
            found[each.name] = each if known is None else _both(known, each)
    return [found[name] for name in sorted(found)]


def _both(one: TopicState, other: TopicState) -> TopicState:
    worse = max(one, other, key=lambda each: (each.blocked, bool(each.error)))
    return TopicState(
        one.name, one.partitions + other.partitions, one.lag_records + other.lag_records,
        max(one.lag_ms, other.lag_ms), worse.reason, worse.error, worse.blocked)


def read_report(text: bytes) -> Report:
    """Raises ValueError."""
    try:
        body = json.loads(text)
        return Report(
            _whole(body["startedMs"]), _whole(body["records"]), str(body.get("sourceError") or "")[:1024],
            str(body.get("targetError") or "")[:1024],
            None if body.get("matching") is None else _whole(body["matching"]),
            tuple(_topic(each) for each in body["topics"]))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no report of a copier: {error!r}") from error


def _topic(body: Mapping[str, Any]) -> TopicState:
    kind = str(body.get("kind") or "")
    return TopicState(
        str(body["name"])[:249], _whole(body["partitions"]), _whole(body["lagRecords"]), _whole(body["lagMs"]),
        camel(kind.replace("-", "_")), str(body.get("error") or "")[:1024], bool(kind))


def _whole(value: Any) -> int:
    """Raises ValueError, TypeError, OverflowError."""
    number = int(value)
    if not 0 <= number < 2**63:
        raise ValueError(f"no report of a copier: {number} is out of range")
    return number


class ReportReader:
    def __init__(self) -> None:
        self._pods = PodHttp()

    async def close(self) -> None:
        await self._pods.close()

    async def read(self, pods: Sequence[PodSeen]) -> dict[str, Report]:
        """By uid, of the copiers that answer in time."""
        asked = [each for each in pods if each.address]
        found = await asyncio.gather(*(self._ask(each) for each in asked))
        return {pod.uid: report for pod, report in zip(asked, found, strict=True) if report is not None}

    async def _ask(self, pod: PodSeen) -> Report | None:
        try:
            text = await self._pods.get(pod.address, METRICS_PORT, "/status", _MOST_BYTES)
            return None if text is None else read_report(text)
        except ValueError as error:
            log.warning("a copier's report cannot be read", pod=pod.name, error=error)
            return None

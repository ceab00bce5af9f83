"""What a copier tells of itself as JSON, at /status of its port: how far each topic is, and what holds one up. Metrics
have the same in numbers; the operator of Mirrors shows people this."""

from __future__ import annotations

from typing import Any, Final

from hapax.copy.settings import CopySettings
from hapax.copy.shares import Shares, name_of
from hapax.copy.topics import Topics
from hapax.core.copy.position import Kind

_SILENT_MS: Final = 10_000
"""A source none of whose partitions could be read for this time does not answer."""


def topic_reports(settings: CopySettings, shares: Shares, topics: Topics) -> list[dict[str, Any]]:
    """For each topic of which this process has partitions: its name on the source, the number of its partitions here,
    `lagRecords` and `lagMs` (the largest), and of one that is not copied, `kind` and `error`."""
    lags = {partition: (records, seconds) for partition, records, seconds in shares.lags()}
    waiting = shares.waiting()
    found: dict[str, dict[str, Any]] = {}

    def topic(name: str) -> dict[str, Any]:
        return found.setdefault(
            name, {"name": name, "partitions": 0, "lagRecords": 0, "lagMs": 0, "kind": "", "error": ""})

    for share in sorted(shares.owned):
        source = shares.sources.get(share)
        if source is None:
            continue
        told, (records, seconds) = topic(source.topic), lags.get(source, (0, 0.0))
        told["partitions"] += 1
        told["lagRecords"] += records
        told["lagMs"] = max(told["lagMs"], int(seconds * 1000))
        if (trouble := shares.troubles.get(share)) is not None:
            told["kind"], told["error"] = trouble[0].kind.value, trouble[0].message
        elif share in waiting:
            told["kind"] = "waiting"
            told["error"] = f"{name_of(source)}: its position is not known yet; the copier's log says why"
    for name, why in topics.troubles.items():
        told = topic(name.removeprefix(f"{settings.group}." if settings.by_key else settings.prefix))
        told["kind"], told["error"] = Kind.TARGET_REFUSES.value, why
    return [found[name] for name in sorted(found)]


def silence(shares: Shares, now_ms: int) -> str:
    """Why the source does not count as reachable; empty: it does. `now_ms`: monotonic."""
    readings = list(shares.readings().values())
    silent = [each for each in readings if 0 <= each.failing_since <= now_ms - _SILENT_MS]
    if readings and len(silent) == len(readings):
        return f"the source does not answer: none of {len(silent)} partitions could be read for {_SILENT_MS // 1000} s"
    return ""

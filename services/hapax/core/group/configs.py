"""Configurations of groups: resources of type GROUP, as Kafka 4.3 has them for groups of the consumer protocol.

A group without its own value uses the coordinator's. A value must be within the cluster's bounds
(`group.consumer.min.*`, `group.consumer.max.*`) when it is set. If an operator narrows the bounds later, the nearest
value within them applies, and the group's other values can be changed all the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.values import GroupLimits

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"

GROUP_CONFIGS: Final[Mapping[str, str]] = {
    name: f"group.{name}" for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL)}
"""A group's configuration -> the setting whose value it overrides. Kafka also has configurations of share and streams
groups, which do not exist here."""

MAX_NAME_BYTES: Final = 4_096
"""The limit for the name of a configured group, because it is part of a key in the metadata store."""

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")
_LEAST: Final[Mapping[str, int]] = {SESSION_TIMEOUT: 1, HEARTBEAT_INTERVAL: 1, ASSIGNMENT_INTERVAL: 0}


class Bounds(NamedTuple):
    """Inclusive ranges in milliseconds."""

    session_timeout: tuple[int, int] = (45_000, 60_000)
    heartbeat_interval: tuple[int, int] = (5_000, 15_000)
    assignment_interval: tuple[int, int] = (0, 15_000)

    def of(self, name: str) -> tuple[int, int]:
        return {
            SESSION_TIMEOUT: self.session_timeout, HEARTBEAT_INTERVAL: self.heartbeat_interval,
            ASSIGNMENT_INTERVAL: self.assignment_interval,
        }[name]


def check_group_name(name: str) -> None:
    """Raises Refusal(INVALID_REQUEST)."""
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    if len(name.encode(errors="surrogatepass")) > MAX_NAME_BYTES:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"the name of a configured group has at most {MAX_NAME_BYTES} bytes")


def check_group_config(
    config: Mapping[str, str], bounds: Bounds, limits: GroupLimits, changed: Collection[str] | None = None
) -> None:
    """Checks a group's configuration after a change. `limits`: the coordinators'. `changed`: the names that were set or
    removed; None: all. Other values were valid when they were set. Raises Refusal(INVALID_CONFIG)."""
    for name, value in config.items():
        if changed is not None and name not in changed:
            continue
        if name not in GROUP_CONFIGS:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        if not _NUMBER.fullmatch(value):
            raise Refusal(ErrorCode.INVALID_CONFIG, f"{name}={value}: expected a number of milliseconds")
        least, most = bounds.of(name)
        if int(value) < max(least, _LEAST[name]):
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{name}={value}: must be greater than or equal to {_bound(name, 'min')}, {least}")
        if int(value) > most:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{name}={value}: must be less than or equal to {_bound(name, 'max')}, {most}")
    if _has_interval(config) and (changed is None or _has_interval(changed)):
        session, heartbeat = _session_and_heartbeat(limits, config, bounds)
        if session <= heartbeat:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{SESSION_TIMEOUT} ({session}) must be greater than {HEARTBEAT_INTERVAL} ({heartbeat})")


def configured(limits: GroupLimits, config: Mapping[str, str], bounds: Bounds) -> GroupLimits:
    """The limits of a group with this configuration. Names that this release does not know are ignored. Where settings
    were changed since so that members would beat less often than their sessions last, they beat three times a session.
    """
    session, heartbeat = _session_and_heartbeat(limits, config, bounds)
    if _has_interval(config) and heartbeat >= session:
        heartbeat = max(1, session // 3)
    return replace(
        limits, consumer_session_timeout_ms=session, consumer_heartbeat_interval_ms=heartbeat,
        consumer_longest_interval_ms=max(bounds.heartbeat_interval[1], limits.consumer_heartbeat_interval_ms),
        consumer_assignment_interval_ms=_value(
            config, bounds, ASSIGNMENT_INTERVAL, limits.consumer_assignment_interval_ms),
    )


def _has_interval(names: Collection[str]) -> bool:
    return SESSION_TIMEOUT in names or HEARTBEAT_INTERVAL in names


def _session_and_heartbeat(limits: GroupLimits, config: Mapping[str, str], bounds: Bounds) -> tuple[int, int]:
    return (
        _value(config, bounds, SESSION_TIMEOUT, limits.consumer_session_timeout_ms),
        _value(config, bounds, HEARTBEAT_INTERVAL, limits.consumer_heartbeat_interval_ms),
    )


def _value(config: Mapping[str, str], bounds: Bounds, name: str, default: int) -> int:
    if name not in config:
        return default
    least, most = bounds.of(name)
    return max(least, min(int(config[name]), most))


def _bound(name: str, which: str) -> str:
    """`group.consumer.min.session.timeout.ms` for `consumer.session.timeout.ms`."""
    protocol, _, rest = name.partition(".")
    return f"group.{protocol}.{which}.{rest}"

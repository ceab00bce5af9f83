"""What a group's own configuration makes of the coordinator's settings."""

from __future__ import annotations

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.configs import Bounds, check_group_config, configured
from hapax.core.group.values import GroupLimits

SESSION, HEARTBEAT, INTERVAL = (
    "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms")


def test_what_a_group_does_not_set_is_the_coordinators() -> None:
    limits = GroupLimits(consumer_session_timeout_ms=47_000, max_size=7)
    made = configured(limits, {HEARTBEAT: "9000", INTERVAL: "0", "of.a.later.release": "x"}, Bounds())
    assert made.consumer_session_timeout_ms == 47_000 and made.max_size == 7
    assert made.consumer_heartbeat_interval_ms == 9_000 and made.consumer_assignment_interval_ms == 0


def test_bounds_that_were_narrowed_later_hold() -> None:
    bounds = Bounds(session_timeout=(48_000, 50_000), heartbeat_interval=(6_000, 7_000))
    made = configured(GroupLimits(), {SESSION: "60000", HEARTBEAT: "5000"}, bounds)
    assert (made.consumer_session_timeout_ms, made.consumer_heartbeat_interval_ms) == (50_000, 6_000)
    # The bounds are those of what groups may set. The operator's own setting may be any.
    assert configured(GroupLimits(consumer_session_timeout_ms=1_000), {}, bounds).consumer_session_timeout_ms == 1_000


@pytest.mark.parametrize("config", [
    {SESSION: "5000", HEARTBEAT: "5000"}, {SESSION: "5000"}, {HEARTBEAT: "45000"}])
def test_a_session_is_longer_than_the_heartbeats_interval(config: dict[str, str]) -> None:
    wide = Bounds((1, 100_000), (1, 100_000))
    with pytest.raises(Refusal, match="must be greater than") as refused:
        check_group_config(config, wide, GroupLimits())
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    check_group_config({SESSION: "5001", HEARTBEAT: "5000"}, wide, GroupLimits())


def test_bounds_below_what_works_do_not_help() -> None:
    with pytest.raises(Refusal, match="greater than or equal"):
        check_group_config({SESSION: "0"}, Bounds((0, 60_000)), GroupLimits())

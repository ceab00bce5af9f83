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


def test_members_beat_within_their_session_whatever_an_operator_has_changed_since() -> None:
    """The group's session was longer than the coordinators' interval when it was set. Members that beat less often than
    their sessions last would lose their partitions again and again."""
    bounds = Bounds((1_000, 60_000), (100, 60_000))
    made = configured(GroupLimits(consumer_heartbeat_interval_ms=10_000), {SESSION: "6000"}, bounds)
    assert (made.consumer_session_timeout_ms, made.consumer_heartbeat_interval_ms) == (6_000, 2_000)
    made = configured(GroupLimits(), {HEARTBEAT: "50000", SESSION: "55000"}, Bounds((1_000, 9_000), (100, 60_000)))
    assert (made.consumer_session_timeout_ms, made.consumer_heartbeat_interval_ms) == (9_000, 3_000)


def test_a_value_outside_bounds_that_were_narrowed_later_does_not_forbid_other_changes() -> None:
    config = {SESSION: "60000", INTERVAL: "500", "of.a.later.release": "x"}
    narrow = Bounds(session_timeout=(45_000, 50_000))
    check_group_config(config, narrow, GroupLimits(), changed={INTERVAL})
    with pytest.raises(Refusal, match="less than or equal"):
        check_group_config(config, narrow, GroupLimits(), changed={SESSION})
    with pytest.raises(Refusal, match="Unknown group config name"):
        check_group_config(config, narrow, GroupLimits(), changed={"of.a.later.release"})


def test_the_session_that_applies_is_longer_than_a_new_interval() -> None:
    config = {SESSION: "60000", HEARTBEAT: "20000"}
    with pytest.raises(Refusal, match="must be greater than"):
        check_group_config(config, Bounds((1_000, 20_000), (1, 60_000)), GroupLimits(), changed={HEARTBEAT})
    with pytest.raises(Refusal, match="must be greater than"):
        check_group_config({HEARTBEAT: "20000"}, Bounds((1_000, 20_000), (1, 60_000)), GroupLimits(
            consumer_session_timeout_ms=20_000), changed={SESSION})  # its own session was removed


def test_a_configured_group_may_have_told_its_members_any_interval() -> None:
    assert configured(GroupLimits(), {SESSION: "50000"}, Bounds()).consumer_longest_interval_ms == 15_000
    assert GroupLimits().consumer_longest_interval_ms == 0

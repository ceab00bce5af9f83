"""Schedules: which times they name."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax_operator.cron import BadCron, read_cron


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def shown(moment: int | None) -> str:
    return "" if moment is None else datetime.fromtimestamp(moment / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


@pytest.mark.parametrize(("cron", "zone", "after", "found"), [
    ("*/15 * * * *", "UTC", "2026-01-01T00:00", "2026-01-01T00:15"),
    ("5/20 3 * * *", "UTC", "2026-01-01T00:00", "2026-01-01T03:05"),
    ("@daily", "UTC", "2026-01-01T00:00", "2026-01-02T00:00"),
    ("0 0 29 2 *", "UTC", "2096-03-01T00:00", "2104-02-29T00:00"),
    ("0 9 * * mon-fri", "UTC", "2026-01-02T10:00", "2026-01-05T09:00"),
    ("0 9 * * 7", "UTC", "2026-01-02T10:00", "2026-01-04T09:00"),
    ("0 0 13 * fri", "UTC", "2026-01-03T00:00", "2026-01-09T00:00"),
    ("0 0 */10 * fri", "UTC", "2026-01-03T00:00", "2026-05-01T00:00"),
    ("30 6 1 jan,JUL *", "UTC", "2026-01-03T00:00", "2026-07-01T06:30"),
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-30T00:30"),  # 02:30 does not exist on the 29th
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30", "2026-10-26T01:30"),  # it exists twice, and counts once
    ("30 * * * *", "Europe/Berlin", "2026-10-25T00:30", "2026-10-25T01:30"),
    ("0 0 31 2 *", "UTC", "2026-01-01T00:00", ""),
])
def test_the_next_time(cron: str, zone: str, after: str, found: str) -> None:
    assert shown(read_cron(cron, zone).next(ms(after))) == found


@pytest.mark.parametrize("bad", [
    "", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *",
    "a * * * *", "@sometimes", "* * * * * *", "1, * * * *"])
def test_what_is_no_schedule_is_refused(bad: str) -> None:
    with pytest.raises(BadCron):
        read_cron(bad)


def test_an_unknown_zone_is_refused() -> None:
    for zone in ("Mars/Olympus", "../etc/passwd", ""):
        with pytest.raises(BadCron, match="time zone"):
            read_cron("@daily", zone)


CRONS = st.sampled_from(["*/7 * * * *", "0 3 * * *", "@hourly", "30 2 1,15 * mon", "0 0 29 2 *", "59 23 31 12 *"])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"])


@given(CRONS, ZONES, st.integers(ms("2020-01-01T00:00"), ms("2032-01-01T00:00")))
def test_the_last_time_before_the_next_one_is_none_later(cron: str, zone: str, moment: int) -> None:
    schedule = read_cron(cron, zone)
    following = schedule.next(moment)
    assert following is not None and following > moment
    assert schedule.last(moment, following) == following
    assert schedule.last(moment, following - 1) is None
    assert schedule.next(following - 1) == following

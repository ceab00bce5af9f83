"""Schedules in the notation of cron: five fields (minute, hour, day of the month, month, day of the week), or @hourly,
@daily, @weekly, @monthly, @yearly. Pure.

As in Kubernetes' CronJob, a day matches by either of the two fields of days if both are given (neither begins with
`*`). A local time that does not exist, because clocks are put forward, is left out. One that exists twice counts once,
the first time, unless the hour is given by `*`: then both hours count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

_MACROS: Final = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *"}
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_DAY_MS: Final = 86_400_000
_LIMIT_DAYS: Final = 366 * 9
"""29 February is eight years away at most."""


class BadCron(ValueError):
    """The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Cron:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0: Sunday."""
    any_day: bool
    any_weekday: bool
    any_hour: bool
    zone: ZoneInfo

    def last(self, after_ms: int, until_ms: int) -> int | None:
        """The latest time in (`after_ms`, `until_ms`], in ms since 1970; None if there is none."""
        return next(self.back(after_ms, until_ms), None)

    def back(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """All times in (`after_ms`, `until_ms`], the latest first."""
        day = datetime.fromtimestamp(until_ms / 1000, self.zone).date() + timedelta(days=1)
        for _ in range(_LIMIT_DAYS):
            if self._midnight(day) + 2 * _DAY_MS < after_ms:
                return
            for moment in reversed(self._of_day(day)):
                if moment <= after_ms:
                    return
                if moment <= until_ms:
                    yield moment
            day -= timedelta(days=1)

    def next(self, after_ms: int) -> int | None:
        """The first time after `after_ms`; None if there is none within nine years."""
        day = datetime.fromtimestamp(after_ms / 1000, self.zone).date() - timedelta(days=1)
        for _ in range(_LIMIT_DAYS):
            for moment in self._of_day(day):
                if moment > after_ms:
                    return moment
            day += timedelta(days=1)
        return None

    def _of_day(self, day: date) -> list[int]:
        if day.month not in self.months or not self._takes(day):
            return []
        begins = self._midnight(day)
        if self._midnight(day + timedelta(days=1)) - begins == _DAY_MS:  # no clock is changed on it
            return [begins + (hour * 60 + minute) * 60_000 for hour in sorted(self.hours) for minute in
                    sorted(self.minutes)]
        found = set()
        for hour in self.hours:
            for minute in self.minutes:
                for fold in (0, 1) if self.any_hour else (0,):
                    moment = datetime(day.year, day.month, day.day, hour, minute, fold=fold, tzinfo=self.zone)
                    back = moment.astimezone(UTC).astimezone(self.zone)
                    if (back.hour, back.minute) == (hour, minute):
                        found.add(int(moment.timestamp() * 1000))
        return sorted(found)

    def _midnight(self, day: date) -> int:
        return int(datetime(day.year, day.month, day.day, tzinfo=self.zone).timestamp() * 1000)

    def _takes(self, day: date) -> bool:
        by_day = day.day in self.days
        by_weekday = (day.weekday() + 1) % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday


def read_cron(text: str, zone: str = "UTC") -> Cron:
    """Raises BadCron."""
    fields = _MACROS.get(text.strip().lower(), text).split()
    if len(fields) != 5:
        raise BadCron(
            "a schedule has five fields (minute, hour, day of the month, month, day of the week), or is @daily")
    minute, hour, day, month, weekday = fields
    try:
        place = ZoneInfo(zone)
    except (ValueError, OSError, KeyError):
        raise BadCron(f"there is no time zone {zone}") from None
    weekdays = _field(weekday, 0, 7, _DAYS)
    return Cron(
        minutes=_field(minute, 0, 59), hours=_field(hour, 0, 23), days=_field(day, 1, 31),
        months=_field(month, 1, 12, _MONTHS), weekdays=frozenset(each % 7 for each in weekdays),
        any_day=day.startswith(("*", "?")), any_weekday=weekday.startswith(("*", "?")),
        any_hour=hour.startswith("*"), zone=place)


def _field(text: str, first: int, last: int, names: list[str] | None = None) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        if slash and not (step.isdigit() and int(step) > 0):
            raise BadCron(f"{part} is no part of a schedule: a step is a number above 0")
        if span in ("*", "?"):
            low, high = first, last
        else:
            begin, dash, end = span.partition("-")
            low = _number(begin, first, last, names)
            high = _number(end, first, last, names) if dash else (last if slash else low)
        if low > high:
            raise BadCron(f"{part} is no part of a schedule: its end is before its beginning")
        found.update(range(low, high + 1, int(step) if slash else 1))
    return frozenset(found)


def _number(text: str, first: int, last: int, names: list[str] | None) -> int:
    name = text.lower()
    if names is not None and name in names:
        return names.index(name) + first
    if not (text.isascii() and text.isdigit()) or not first <= int(text) <= last:
        raise BadCron(f"{text or 'nothing'} is no part of a schedule: it must be within {first} and {last}")
    return int(text)

"""When a SparkJob with a schedule starts its next run. Pure.

The time that a run is started for is written to the record before the run exists. A time is due only if it is later
than that, so an operator that starts again, or a second one, starts no second run for it. Of several times that have
passed, for example while no operator ran, only the last one is due; the others are counted.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from hapax_operator.cron import BadCron, read_cron
from hapax_operator.spark_resource import Schedule

_COUNTED: Final = 100


class Due(NamedTuple):
    at_ms: int = -1
    """The time whose run is due; -1: none."""
    next_ms: int = -1
    """The next time after now; -1: none."""
    missed: int = 0
    """How many other times have passed since the last run's, up to a hundred."""
    wrong: str = ""
    """Why the schedule cannot be read."""


def due_of(schedule: Schedule, scheduled_ms: int, created_ms: int, now_ms: int) -> Due:
    """`scheduled_ms`: the time that the last run was started for; -1: none was."""
    try:
        cron = read_cron(schedule.cron, schedule.time_zone)
    except BadCron as error:
        return Due(wrong=str(error))
    after = scheduled_ms if scheduled_ms >= 0 else created_ms
    following = cron.next(now_ms)
    passed = list(islice(cron.back(after, now_ms), _COUNTED + 1))
    at, missed = (passed[0], len(passed) - 1) if passed else (None, 0)
    if at is not None and 0 <= schedule.deadline_s * 1000 < now_ms - at:
        at = None
    return Due(-1 if at is None else at, -1 if following is None else following, missed if at is not None else 0)

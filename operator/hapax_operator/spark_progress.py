"""Reads the progress of queries from running drivers, in the background: the reconciler never waits for an answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Clock, Task
from hapax_operator.conditions import from_millis
from hapax_operator.plan_spark import PodSeen
from hapax_operator.pod_http import PodHttp
from hapax_operator.spark_pods import PROGRESS_PORT

log = telemetry.logger("spark")

_EVERY_MS: Final = 8_000
_MOST_BYTES: Final = 65_536
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since 1970: later times have no RFC 3339 form."""


class Progress(NamedTuple):
    """Progress of the last micro-batch."""

    query: str
    name: str
    batch: int
    rows: int
    input_rate: float
    """Rows per second."""
    processed_rate: float
    at_ms: int
    committed_batch: int = -1
    committed_ms: int = -1
    lag_records: int = -1
    """Records between the batch and the end of its sources; -1: none of the sources tells."""
    lag_ms: int = -1
    """The age of the oldest of them."""

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "queryId": self.query, "name": self.name, "batchId": self.batch, "inputRows": self.rows,
            "inputRowsPerSecond": round(self.input_rate, 1), "processedRowsPerSecond": round(self.processed_rate, 1),
            "time": from_millis(self.at_ms)}
        if self.committed_batch >= 0:
            told["lastCommit"] = {"batchId": self.committed_batch, "time": from_millis(self.committed_ms)}
        if self.lag_records >= 0:
            told["lag"] = {"records": self.lag_records, "milliseconds": max(0, self.lag_ms)}
        return {name: value for name, value in told.items() if value != ""}


def read_progress(text: bytes) -> Progress:
    """Raises ValueError for a report that a status cannot show. A driver runs the user's code: what it reports must not
    keep the operator from looking after its job."""
    try:
        body = json.loads(text)
        last, lag = body.get("lastCommit") or {}, body.get("lag") or {}
        return Progress(
            query=_text(body.get("queryId")), name=_text(body.get("name")),
            batch=_whole(body["batchId"]), rows=_whole(body.get("numInputRows") or 0),
            input_rate=_rate(body.get("inputRowsPerSecond") or 0), at_ms=_whole(body["timestampMs"], _LAST_MS),
            processed_rate=_rate(body.get("processedRowsPerSecond") or 0),
            committed_batch=_whole(last.get("batchId", -1)), committed_ms=_whole(last.get("timestampMs", -1), _LAST_MS),
            lag_records=_whole(lag.get("records", -1)), lag_ms=_whole(lag.get("ms", -1)))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no progress: {error!r}") from error


def read_report(text: str) -> Progress:
    """What a driver left when it ended: `{"progress": ...}`. Raises ValueError."""
    try:
        return read_progress(json.dumps(json.loads(text)["progress"]).encode())
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no progress: {error!r}") from error


def _text(value: Any) -> str:
    """Half of a surrogate pair, which JSON may hold and UTF-8 may not, becomes a question mark."""
    return str(value or "")[:256].encode(errors="replace").decode()


def _whole(value: Any, most: int = 2**63 - 1) -> int:
    """Raises ValueError, TypeError, OverflowError."""
    number = int(value)
    if not -1 <= number <= most:
        raise ValueError(f"no progress: {number} is out of range")
    return number


def _rate(value: Any) -> float:
    """Raises ValueError, TypeError."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"no progress: a rate of {number}")
    return number


class ProgressReader:
    """`of` is called on the reconciler's event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pods = PodHttp()
        self._known: dict[str, Progress] = {}
        self._asked_ms: dict[str, int] = {}
        self._tasks: dict[str, Task] = {}

    async def close(self) -> None:
        await supervision.end(*self._tasks.values())
        await self._pods.close()

    def of(self, pod: PodSeen, wake: Callable[[], None]) -> Progress | None:
        """The last known progress. Asks again if it is old, and calls `wake` when a newer batch is reported."""
        now = self._clock.now_ms()
        if pod.address and pod.uid not in self._tasks and now - self._asked_ms.get(pod.uid, 0) >= _EVERY_MS:
            self._asked_ms[pod.uid] = now
            task = supervision.once(self._ask(pod, wake), "spark-progress", pod.name)
            self._tasks[pod.uid] = task
            task.add_done_callback(lambda _: self._tasks.pop(pod.uid, None))
        return self._known.get(pod.uid)

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)
        self._asked_ms.pop(uid, None)

    async def _ask(self, pod: PodSeen, wake: Callable[[], None]) -> None:
        """A driver that does not answer may be busy, so this has no consequence."""
        try:
            text = await self._pods.get(pod.address, PROGRESS_PORT, "/progress", _MOST_BYTES)
            if text is None:
                return
            found = read_progress(text)
        except ValueError as error:
            log.debug("a driver did not report its progress", pod=pod.name, error=error)
            return
        if self._known.get(pod.uid) != found:
            self._known[pod.uid] = found
            wake()

"""Serves the progress of a driver's queries: `GET http://ADDRESS:4041/progress`, from Spark's own listener.

204 before the first micro-batch; then, as JSON:

    {"queryId": "...", "runId": "...", "name": "passthrough",
     "batchId": 17, "numInputRows": 1000, "inputRowsPerSecond": 480.2, "processedRowsPerSecond": 910.0,
     "timestampMs": 1767225600000,
     "lastCommit": {"batchId": 17, "timestampMs": 1767225601098},
     "lag": {"records": 250, "ms": 3400},
     "sources": [{"reads": "subscribe flights", "lag": {"records": 250, "ms": 3400}}],
     "queries": [...]}

`lag` is the number of records behind the micro-batch, and the age of the oldest in ms. A query's `lag` has the sum
and the oldest of its sources, or null if it has no source of format `hapax`; `sources` lists only those.

`GET /metrics` has the same for Prometheus, with the labels query and name: `hapax_spark_batch`,
`hapax_spark_batch_rows`, `hapax_spark_input_rows_per_second`, `hapax_spark_processed_rows_per_second`,
`hapax_spark_lag_records`, `hapax_spark_lag_seconds`, `hapax_spark_last_commit_timestamp_seconds`.

`timestampMs` is when the micro-batch began, `lastCommit.timestampMs` when it ended, by the driver's clock, in ms since
1970. With several queries, the fields are those of the query that progressed first; `queries` has all of them in that
order. The answer comes from memory, so it costs Spark nothing.
"""

from __future__ import annotations

import json
import math
import threading
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

PORT: Final = 4041
_SLOWEST_CLIENT_S: Final = 5.0
_LONGEST_REPORT: Final = 2048


class Progress(StreamingQueryListener):
    """The last micro-batch of each query of a session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, dict[str, Any]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        return None

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        batch = event.progress
        with self._lock:
            self._queries[str(batch.id)] = described(batch, self._queries.get(str(batch.id), {}).get("lastCommit"))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        return None

    def answer(self) -> dict[str, Any] | None:
        """The JSON of the page above; None before the first micro-batch."""
        with self._lock:
            queries = list(self._queries.values())
        return {**queries[0], "queries": queries} if queries else None

    def last_report(self) -> str:
        """`{"progress": ...}` with what the answer says of its first query, at most 2,048 bytes; empty: nothing, or
        what cannot be told. It never fails: the job has ended, and its exit code must not depend on this."""
        answer = self.answer() or {}
        told = {name: value for name, value in answer.items() if name not in ("queries", "sources")}
        try:
            text = json.dumps({"progress": told}) if told else ""
        except (ValueError, TypeError, RecursionError):
            return ""
        return text if len(text) <= _LONGEST_REPORT else ""


def described(batch: StreamingQueryProgress, committed: dict[str, int] | None) -> dict[str, Any]:
    """One query after a micro-batch; `committed`: its former `lastCommit`."""
    began = int(datetime.fromisoformat(batch.timestamp).timestamp() * 1000)
    durations = batch.durationMs
    sources = [told for each in batch.sources if (told := _told_by(each.latestOffset)) is not None]
    if "addBatch" in durations:  # otherwise there was no new data, and the batch id is that of the next batch
        committed = {"batchId": batch.batchId, "timestampMs": began + durations.get("triggerExecution", 0)}
    return {
        "queryId": str(batch.id), "runId": str(batch.runId), "name": batch.name,
        "batchId": batch.batchId, "numInputRows": batch.numInputRows,
        "inputRowsPerSecond": _finite(batch.inputRowsPerSecond),
        "processedRowsPerSecond": _finite(batch.processedRowsPerSecond),
        "timestampMs": began, "lastCommit": committed, "lag": _total([each["lag"] for each in sources]),
        "sources": sources,
    }  # fmt: skip


def _told_by(latest_offset: str | None) -> dict[str, Any] | None:
    """The additional fields in the latest offset of a source `hapax`; None for other sources."""
    try:
        told = json.loads(latest_offset or "null")
        return {"reads": str(told["reads"]), "lag": {each: int(told["lag"][each]) for each in ("records", "ms")}}
    except (ValueError, TypeError, KeyError, RecursionError):  # of another source, it may be anything
        return None


def _total(lags: list[dict[str, int]]) -> dict[str, int] | None:
    if not lags:
        return None
    return {"records": sum(lag["records"] for lag in lags), "ms": max(lag["ms"] for lag in lags)}


def _finite(rate: float) -> float:
    """0 for NaN and infinity, which JSON lacks. Spark's rates have them for durations of 0."""
    return round(rate, 3) if math.isfinite(rate) else 0.0


_GAUGES: Final = (
    ("batch", "The last micro-batch.", ("batchId",), 1),
    ("batch_rows", "Its input rows.", ("numInputRows",), 1),
    ("input_rows_per_second", "Rows that arrived, by second.", ("inputRowsPerSecond",), 1),
    ("processed_rows_per_second", "Rows that were processed, by second.", ("processedRowsPerSecond",), 1),
    ("lag_records", "Records between the batch and the sources' end.", ("lag", "records"), 1),
    ("lag_seconds", "The age of the oldest of them.", ("lag", "ms"), 1000),
    ("last_commit_timestamp_seconds", "When the last batch was committed.", ("lastCommit", "timestampMs"), 1000),
)


def metrics(answer: dict[str, Any] | None) -> str:
    """The answer's queries in Prometheus' text format. What a query does not tell is left out."""
    lines = []
    for name, about, path, divisor in _GAUGES:
        lines += [f"# HELP hapax_spark_{name} {about}", f"# TYPE hapax_spark_{name} gauge"]
        for query in (answer or {}).get("queries", ()):
            value: Any = query
            for each in path:
                value = None if value is None else value.get(each)
            if value is not None:
                labels = f'query="{query["queryId"]}",name="{_escaped(query["name"] or "")}"'
                lines.append(f"hapax_spark_{name}{{{labels}}} {value / divisor if divisor != 1 else value}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def serve(
    session: SparkSession, progress: Progress, address: str = "", port: int = PORT
) -> ThreadingHTTPServer:
    """Listens to the session's queries and answers requests until the process ends. Port 0: any free port."""
    session.streams.addListener(progress)
    server = ThreadingHTTPServer((address, port), _handler(progress))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="progress", daemon=True).start()
    return server


def _handler(progress: Progress) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SLOWEST_CLIENT_S

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._say(HTTPStatus.OK, metrics(progress.answer()).encode(), "text/plain; version=0.0.4")
                return
            if self.path != "/progress":
                self._say(HTTPStatus.NOT_FOUND, b"")
                return
            answer = progress.answer()
            if answer is None:
                self._say(HTTPStatus.NO_CONTENT, b"")
            else:
                self._say(HTTPStatus.OK, json.dumps(answer).encode())

        def _say(self, status: HTTPStatus, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            if body:
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Logs no requests: they arrive every few seconds."""

    return Handler

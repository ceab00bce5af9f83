"""What is told of a micro-batch."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hapax_operator.spark_progress import read_report
from hapax_spark.jobs.progress import Progress, described, metrics

BEGAN = 1_767_225_600_250
QUERY, RUN = "8b8a3a1e-0000-4000-8000-000000000001", "8b8a3a1e-0000-4000-8000-000000000002"


def batch(
    number: int, *, query: str = QUERY, work: bool = True, rate: float = 10.0, latest: tuple[str | None, ...] = ()
) -> Any:
    durations = {"triggerExecution": 750, **({"addBatch": 600} if work else {})}
    return SimpleNamespace(
        id=query, runId=RUN, name="flights", batchId=number, timestamp="2026-01-01T00:00:00.250Z",
        numInputRows=100 if work else 0, inputRowsPerSecond=rate, processedRowsPerSecond=rate, durationMs=durations,
        sources=[SimpleNamespace(latestOffset=told) for told in latest])


def test_a_micro_batch() -> None:
    assert described(batch(4), None) == {
        "queryId": QUERY, "runId": RUN, "name": "flights", "batchId": 4, "numInputRows": 100,
        "inputRowsPerSecond": 10.0, "processedRowsPerSecond": 10.0, "timestampMs": BEGAN,
        "lastCommit": {"batchId": 4, "timestampMs": BEGAN + 750}, "lag": None, "sources": [],
    }  # fmt: skip


def test_the_lag_of_all_sources_and_of_each() -> None:
    flights = {"reads": "subscribe flights", "lag": {"records": 7, "ms": 40}}
    delays = {"reads": "subscribePattern d.*", "lag": {"records": 2, "ms": 900}}
    others = (None, "5", "{}", '{"lag": null}', "[1]", "[" * 100_000)
    told = described(batch(4, latest=(json.dumps({"topics": {}, **flights}), *others, json.dumps(delays))), None)
    assert told["lag"] == {"records": 9, "ms": 900} and told["sources"] == [flights, delays]


def test_without_new_data_the_last_commit_stays() -> None:
    before = {"batchId": 4, "timestampMs": BEGAN}
    assert described(batch(5, work=False), before)["lastCommit"] == before


def test_a_rate_that_is_no_number_is_none_that_json_lacks() -> None:
    told = described(batch(0, rate=float("nan")), None)
    assert json.loads(json.dumps(told, allow_nan=False))["inputRowsPerSecond"] == 0.0


def test_the_first_query_stands_for_the_driver() -> None:
    progress = Progress()
    assert progress.answer() is None
    for number, query in ((0, QUERY), (7, RUN), (1, QUERY)):
        progress.onQueryProgress(SimpleNamespace(progress=batch(number, query=query)))  # type: ignore[arg-type]
    told = progress.answer()
    assert told is not None and told["batchId"] == 1
    assert [each["batchId"] for each in told["queries"]] == [1, 7]


def test_metrics_are_those_of_the_answer_and_leave_out_what_it_does_not_tell() -> None:
    progress = Progress()
    assert "hapax_spark_batch{" not in metrics(progress.answer())
    told = json.dumps({"reads": "subscribe flights", "lag": {"records": 7, "ms": 1500}})
    progress.onQueryProgress(SimpleNamespace(progress=batch(4, latest=(told,))))  # type: ignore[arg-type]
    progress.onQueryProgress(SimpleNamespace(progress=batch(9, query=RUN)))  # type: ignore[arg-type]
    lines = metrics(progress.answer()).splitlines()
    assert f'hapax_spark_batch{{query="{QUERY}",name="flights"}} 4' in lines
    assert f'hapax_spark_lag_records{{query="{QUERY}",name="flights"}} 7' in lines
    assert f'hapax_spark_lag_seconds{{query="{QUERY}",name="flights"}} 1.5' in lines
    assert f'hapax_spark_batch{{query="{RUN}",name="flights"}} 9' in lines
    assert not any("lag" in line and RUN in line for line in lines), "its sources tell none"


def test_a_query_s_name_breaks_no_line() -> None:
    query = {**described(batch(1), None), "name": 'a"b\\c\nd'}
    assert 'name="a\\"b\\\\c\\nd"' in metrics({"queries": [query]})


def test_what_a_driver_leaves_is_its_last_batch() -> None:
    progress = Progress()
    assert progress.last_report() == ""
    for number in range(3):
        progress.onQueryProgress(SimpleNamespace(progress=batch(number)))  # type: ignore[arg-type]
    left = read_report(progress.last_report())
    assert (left.query, left.batch, left.committed_batch, left.rows) == (QUERY, 2, 2, 100)
    long = batch(3)
    long.name = "f" * 2048
    progress.onQueryProgress(SimpleNamespace(progress=long))  # type: ignore[arg-type]
    assert progress.last_report() == "", "half of it would be no JSON"


@pytest.mark.parametrize("text", ['{"progress": ', '{"progress": 1}', '{"progress": {"batchId": true}}', "[]", "1"])
def test_what_is_no_report_is_told_apart(text: str) -> None:
    with pytest.raises(ValueError):
        read_report(text)


def test_what_cannot_be_told_does_not_change_how_a_driver_ends() -> None:
    """The job has ended: its supervisor must see its exit code."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    cyclic: dict[str, Any] = {}
    cyclic["lag"] = cyclic
    for name in (deep, cyclic, object()):
        progress = Progress()
        last = batch(7)
        last.name = name
        progress.onQueryProgress(SimpleNamespace(progress=last))  # type: ignore[arg-type]
        assert progress.last_report() == ""

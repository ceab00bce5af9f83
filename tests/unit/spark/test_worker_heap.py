"""What the garbage collector leaves alone in a reused worker."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from hapax_spark import worker_heap
from hapax_spark.cluster import close_kept_clusters, kept_cluster
from hapax_spark.options import Options
from hapax_spark.sink import HapaxBatchWriter, HapaxStreamWriter

VALUES = StructType([StructField("value", StringType())])


def use_a_cluster() -> None:
    with kept_cluster(Options("host:1")):
        pass


def plan_a_stream() -> None:
    HapaxStreamWriter(Options("host:1", topic="t", delivery="at-least-once"), VALUES)


def plan_a_write() -> None:
    HapaxBatchWriter(Options("host:1", topic="t"), VALUES)


@pytest.fixture(autouse=True)
def nothing_is_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_heap, "_frozen", 0)
    yield
    gc.unfreeze()
    close_kept_clusters()


@pytest.mark.parametrize("begin", [use_a_cluster, plan_a_stream, plan_a_write])
def test_a_reused_worker_freezes_its_modules_in_its_first_uses(
    begin: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    begin()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    loaded_later = [[number] for number in range(1_000)]
    for _ in range(worker_heap._TIMES - 1):
        begin()
    assert gc.get_freeze_count() >= frozen + len(loaded_later)
    frozen = gc.get_freeze_count()
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    begin()
    assert gc.get_freeze_count() <= frozen, "a worker's garbage is collected, also while it goes on"


@pytest.mark.parametrize("begin", [use_a_cluster, plan_a_stream, plan_a_write])
def test_other_processes_are_left_alone(begin: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    begin()
    assert gc.get_freeze_count() == 0

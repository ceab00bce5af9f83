"""A chaos run's verdict knows what processes count of their own faults."""

from __future__ import annotations

from collections import Counter

from hapax.runtime.metrics import Metrics
from hapax.runtime.process_metrics import observe_process
from hapax.runtime.self_corrections import corrected
from hapax.runtime.supervision import contained
from hapax_chaos.world import own_faults


def scraped() -> list[str]:
    metrics = Metrics()
    observe_process(metrics)
    return metrics.render().decode().splitlines()


async def test_a_process_without_faults_counts_none() -> None:
    assert own_faults(scraped()) == {}


async def test_a_correction_and_a_failed_task_are_found(
    self_corrections: Counter[str], task_failures: Counter[str]
) -> None:
    corrected("timer")
    with contained("retention"):
        raise RuntimeError
    assert own_faults(scraped()) == {
        'hapax_task_failures_total{task="retention"}': 1, 'hapax_self_corrections_total{kind="timer"}': 1,
    }

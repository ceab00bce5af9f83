"""What `make kube-demo` calls wrong."""

from __future__ import annotations

from typing import Any

import pytest

from hapax_kube.demo import problems


def counted(**changed: int) -> dict[str, Any]:
    topic = {"input": 100, "output": 100, "lost": 0, "doubled": 0}
    return {
        "flights": dict(topic), "delays": {**topic, **{k: v for k, v in changed.items() if k in topic}},
        "sums": {"windows": 3, "differing": 0, **{k: v for k, v in changed.items() if k not in topic}},
    }  # fmt: skip


def test_nothing_is_wrong_where_everything_is_there_once() -> None:
    assert problems(counted()) == []


@pytest.mark.parametrize("changed", [{"lost": 1}, {"doubled": 1}, {"differing": 1}, {"windows": 0}])
def test_each_loss_each_double_and_each_other_sum_is_wrong(changed: dict[str, int]) -> None:
    assert len(problems(counted(**changed))) == 1

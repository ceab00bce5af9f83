"""Every example of docs/client.md, run against a real cluster, in order, in one namespace."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path

from hapax.local.cluster import LocalCluster

_PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def examples() -> list[tuple[int, str]]:
    """Line number and code of each example."""
    text = _PAGE.read_text()
    return [
        (text.count("\n", 0, found.start(1)) + 1, found.group(1))
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


async def test_the_examples_of_the_guide_run(cluster_factory: Callable[..., LocalCluster]) -> None:
    cluster = cluster_factory(settings=["transaction.two.phase.commit.enable=true"])
    names: dict[str, object] = {}
    found = examples()
    assert len(found) >= 9
    for line, source in found:
        source = source.replace("127.0.0.1:9092", cluster.bootstrap)
        code = compile("\n" * (line - 1) + source, str(_PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, names)
        if inspect.isawaitable(running):
            await running
    assert names["committed"].already is True  # type: ignore[attr-defined]

"""Backups of a cluster that runs, restored into another one and compared record by record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hapax.local.cluster import LocalCluster
from integration.backup_world import INPUT, PLAIN, SUMS, Writers, hapax, judge, read

ALL = (INPUT, "left", "right", SUMS, PLAIN)


async def backup(place: str, cluster: LocalCluster, *words: str) -> dict[str, Any]:
    done = await asyncio.to_thread(hapax, "backup", place, "--bootstrap", cluster.bootstrap, "--json", *words)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """The cluster that is backed up, and an empty one."""
    from conftest import end_clusters, start_cluster

    clusters = []
    try:
        for name in ("source", "target"):
            clusters.append(start_cluster(tmp_path / name))
        yield clusters[0], clusters[1]
    finally:
        end_clusters(clusters)


async def test_a_restored_backup_is_what_was_committed_at_its_moment(
    two: tuple[LocalCluster, LocalCluster], tmp_path: Path
) -> None:
    source, target = two
    place = str(tmp_path / "backups")
    writers = Writers(source.bootstrap)
    await writers.create()
    writers.start()
    await writers.until(20)
    first = await backup(place, source)
    await writers.until(60)
    surely, plain = dict(writers.committed), list(writers.sent)
    second = await backup(place, source)
    await writers.until(len(writers.committed) + 20)
    await writers.stop()
    assert second["base"] == first["backup"]
    await asyncio.to_thread(hapax, "verify", place)
    await asyncio.to_thread(hapax, "restore", place, "--to", target.bootstrap)
    written, restored = await read(source.bootstrap, ALL), await read(target.bootstrap, ALL)
    assert await judge(written, restored, target.bootstrap, surely=surely, plain=plain) >= 60

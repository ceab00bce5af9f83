"""What a manifest says."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.core.backup.manifest import Manifest, PartitionPart, StoredRange, TopicPart, expired, faults_of


def manifest(**fields: Any) -> Manifest:
    topics = (TopicPart("t", "1", 1, 1, {}),)
    whole = {
        "backup": "1", "cluster_id": "c", "began_ms": 0, "taken_ms": 0, "release": "", "base": "",
        "highest_producer_id": -1, "topics": topics, "partitions": (PartitionPart("t", 0, 0, 0),), "through": {}}
    return Manifest(**{**whole, **fields})


@pytest.mark.parametrize("highest", [-1, 0, 7, (1 << 32) - 1, 1 << 32, 5 << 40])
def test_new_producer_ids_are_far_above_former_ones(highest: int) -> None:
    """The backed-up cluster hands out ids after its backup, and a restored cluster may be backed up and restored."""
    floor = manifest(highest_producer_id=highest).producer_id_floor
    assert floor - highest >= 1 << 32
    assert manifest(highest_producer_id=floor).producer_id_floor > floor


def test_a_partition_has_all_offsets_from_its_start_on() -> None:
    def faults(start: int, end: int, *ranges: tuple[int, int]) -> list[str]:
        part = PartitionPart("t", 0, start, end, tuple(StoredRange("n", first, last, 1, "") for first, last in ranges))
        return list(faults_of(manifest(partitions=(part,))))

    assert faults(0, 0) == faults(5, 9, (3, 7), (7, 9)) == []
    for wrong in (
        faults(0, 5), faults(0, 5, (1, 5)), faults(0, 5, (0, 4)), faults(0, 5, (0, 2), (3, 5)),
        faults(0, 5, (0, 3), (2, 5)), faults(0, 0, (0, 0)),
    ):
        assert len(wrong) >= 1


def test_the_newest_backups_are_kept() -> None:
    backups = [(3, "c"), (1, "a"), (2, "b")]
    assert expired(backups, 2, frozenset()) == ["a"]
    assert expired(backups, 1, frozenset({"a"})) == ["b"]
    assert expired(backups, 0, frozenset()) == ["b", "a"], "never all of them"

"""Which tests of tests/kubernetes_nodes run beside which, and what both halves together have shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

SECONDS: Final = {
    "test_operations.py": 230, "test_secure_install.py": 150, "test_spark.py": 90, "test_upgrade.py": 80,
    "test_brokers.py": 60, "test_failover.py": 60, "test_etcd_size.py": 50, "test_etcd_snapshot.py": 50,
    "test_volumes.py": 42, "test_racks.py": 35, "test_mirror.py": 30, "test_ownership.py": 15, "test_install.py": 5,
}  # fmt: skip
"""What each file took, alone, without the installation that all its tests use."""
_UNKNOWN: Final = 60
_NO_TESTS: Final = 5
"""pytest's exit code if its arguments chose none."""


def halves(files: Iterable[str], seconds: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Two lists that take about the same time, each in the given order."""
    given = list(files)
    found: tuple[list[str], list[str]] = [], []
    sums = [0, 0]

    def of(file: str) -> int:
        return seconds.get(Path(file).name, _UNKNOWN)

    for file in sorted(given, key=lambda each: (-of(each), each)):
        less = sums.index(min(sums))
        found[less].append(file)
        sums[less] += of(file)
    for half in found:
        half.sort(key=given.index)
    return found


def outcome(codes: Sequence[int]) -> int:
    """The exit code for all, from that of each part: negative if a signal has ended it, as subprocess gives it."""
    tested = [each for each in codes if each != _NO_TESTS]
    if not tested:
        return _NO_TESTS
    return max(128 - each if each < 0 else each for each in tested)

"""The history of a run on disk: each client process appends to its own file, and afterwards the files are merged.

All processes of a machine share one monotonic clock, so their records can be ordered. Each line is written by one call,
so that a process may be killed at any moment. An incomplete line at the end is ignored.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hapax_checker import Operation


class HistoryFile:
    """Operations of one process of the history. `process` changes with each life of its clients."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.process = ""

    def write(self, kind: str, f: str, value: Any) -> None:
        """`kind`: invoke, ok, fail, info."""
        record = {"process": self.process, "time": time.monotonic(), "type": kind, "f": f, "value": value}
        os.write(self._descriptor, json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def note(self, f: str, value: Any = None) -> None:
        """Writes a record of something that cannot fail."""
        self.write("invoke", f, value)
        self.write("ok", f, value)


def merge(paths: Iterable[Path], *, since_start: bool = True) -> list[Operation]:
    """All records in the order of their time, numbered. `since_start`: times count from the first record."""
    records: list[dict[str, Any]] = []
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        records += [json.loads(line) for line in lines[:-1] if line]
    records.sort(key=lambda record: record["time"])
    begun = records[0]["time"] if records and since_start else 0.0
    return [
        Operation(index, r["process"], r["time"] - begun, r["type"], r["f"], r["value"])
        for index, r in enumerate(records)
    ]

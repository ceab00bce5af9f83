"""`python -m hapax_checker history.jsonl ...`: a verdict a file; exit code 1 if any has an anomaly."""

from __future__ import annotations

import sys
from pathlib import Path

from hapax_checker.check import check
from hapax_checker.record import read_lines


def main(paths: list[str]) -> int:
    bad = 0
    for path in paths:
        with Path(path).open() as lines:
            report = check(read_lines(lines))
        print(f"{path}: {report}")
        bad += not report.valid
    print(f"{len(paths) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Counts the words of standard input with Apache Beam, and prints WORD<TAB>COUNT for each. For `checkpoint.py
--count-with`; runs in a virtual environment with apache-beam, not in Hapax's. See README.md."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import apache_beam as beam


def words(line: str) -> Iterable[str]:
    return line.split()


def main() -> None:
    lines = sys.stdin.read().splitlines()
    with tempfile.TemporaryDirectory() as folder:
        with beam.Pipeline(runner="DirectRunner") as pipeline:
            (
                pipeline
                | beam.Create(lines)
                | beam.FlatMap(words)
                | beam.combiners.Count.PerElement()
                | beam.MapTuple("{}\t{}".format)
                | beam.io.WriteToText(f"{folder}/counts")
            )
        counted = [line for shard in Path(folder).glob("counts-*") for line in shard.read_text().splitlines()]
    print("\n".join(sorted(counted)))


if __name__ == "__main__":
    main()

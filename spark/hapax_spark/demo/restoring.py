"""A mistake of operators: an older copy of a query's checkpoint is restored, for example from a backup.

Spark continues from it, and numbers new batches like committed ones. A sink that takes a known number for the same
batch silently loses records; one that takes it for a new batch doubles some.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hapax_spark.demo.stage import Stage
from hapax_spark.refusals import OldCheckpointError


def started_on_older_copy(stage: Stage, checkpoint: Path, older: Path, arguments: list[str], limit_s: float) -> str:
    """Starts the query on `older` in place of its checkpoint, and puts the checkpoint back afterwards. Returns the
    error that ended the query, with its message; empty if it did not refuse."""
    right = stage.folder / "right-checkpoint"
    checkpoint.rename(right)
    shutil.copytree(older, checkpoint)
    stage.note("older checkpoint")
    driver = stage.run("pipeline", *arguments, log="restored.log")
    code = driver.end(limit_s)
    shutil.rmtree(checkpoint)
    right.rename(checkpoint)
    told = re.search(rf"{OldCheckpointError.__name__}: [^\n]*?\. ", driver.log.read_text(errors="replace"))
    return "" if code == 0 or told is None else told[0].strip()

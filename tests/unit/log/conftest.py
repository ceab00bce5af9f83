"""A data folder, and an empty log in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hapax.log.config import LogConfig
from hapax.log.segment_log import SegmentLog
from hapax.runtime.disk import RealDisk, open_folder
from unit.log.log_fixtures import FOLDER


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    made = open_folder(str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def log(disk: RealDisk) -> SegmentLog:
    made = SegmentLog(disk, FOLDER, LogConfig())
    made.create([])
    return made

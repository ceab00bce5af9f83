"""A data folder, and an empty log in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hapax.runtime.disk import RealDisk, open_folder
from hapax.runtime.log.config import LogConfig
from hapax.runtime.log.segment_log import SegmentLog
from unit.runtime.log.log_fixtures import FOLDER


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

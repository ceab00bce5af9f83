"""A data folder with one partition."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hapax.runtime.disk import RealDisk, open_folder
from unit.broker.broker_fixtures import Harness


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RealDisk]:
    disk = open_folder(str(tmp_path))
    yield disk
    disk.close()


@pytest.fixture
async def harness(folder: RealDisk) -> AsyncIterator[Harness]:
    made = Harness(folder)
    await made.open()
    yield made
    await made.storage.close()

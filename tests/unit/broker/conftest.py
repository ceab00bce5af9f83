"""A data folder with one partition."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hapax.runtime.disk import RealDisk, RealFile, open_folder
from unit.broker.broker_fixtures import Harness


@pytest.fixture(autouse=True)
def nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that crashes a partition does not close its files, as the end of a process would: they would fill the
    table of descriptors of the process that runs all tests."""
    opened: list[RealFile] = []

    def remembered(disk: RealDisk, path: str, *, create: bool = False) -> RealFile:
        opened.append(original(disk, path, create=create))
        return opened[-1]

    original = RealDisk.open
    monkeypatch.setattr(RealDisk, "open", remembered)
    yield
    for file in opened:
        file.close()


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

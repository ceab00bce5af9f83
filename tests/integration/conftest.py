"""Fixtures of the integration tests: real processes, free ports, temporary folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hapax.cli.local.etcd import find_etcd
from hapax.cli.local.folder import LocalClusterError
from integration.etcd_process import EtcdProcess


def _etcd(folder: Path) -> Iterator[EtcdProcess]:
    try:
        binary = find_etcd(sound_only=True)
    except LocalClusterError as error:
        pytest.skip(str(error))
    process = EtcdProcess(binary.path, folder)
    process.start()
    yield process
    process.close()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    """A fresh etcd, started; killed at the end of the test."""
    yield from _etcd(tmp_path / "etcd")


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """One etcd for the tests of a module, which keep apart by their keys or clean up behind themselves."""
    yield from _etcd(tmp_path_factory.mktemp("etcd"))

"""Fixtures of the integration tests: real processes, free ports, temporary folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.etcd_process import EtcdProcess, find_etcd


def _etcd(folder: Path) -> Iterator[EtcdProcess]:
    binary = find_etcd()
    if binary is None:
        pytest.skip("no etcd: set HAPAX_ETCD, put it on the PATH, or run `make setup`")
    process = EtcdProcess(binary, folder)
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

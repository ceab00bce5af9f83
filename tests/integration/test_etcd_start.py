"""The steps of an etcd pod before etcd (`hapax_operator.etcd_start`), as processes and on a real etcd's data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from hapax.local.etcd import find_etcd
from hapax_operator.etcd_start import DAMAGED, EMPTY, volume
from integration.etcd_process import EtcdProcess, dies_with_parent
from integration.waiting import wait_until

POD = {
    "SETTINGS": json.dumps({"name": "e-0", "initial-advertise-peer-urls": "http://e-0:2380"}), "POD_UID": "u1",
    "CLUSTER": "c", "FOUNDER": "", "REMOVED": ""}


def test_a_volume_says_whose_data_it_has(tmp_path: Path, etcd_binary: str) -> None:
    assert volume(tmp_path / "data") == EMPTY
    etcd = EtcdProcess(etcd_binary, tmp_path)
    etcd.start()
    try:
        wait_until(lambda: volume(tmp_path / "data") not in (EMPTY, DAMAGED), "log of etcd", 20)
        with urllib.request.urlopen(f"http://127.0.0.1:{etcd.peer_port}/members", timeout=10) as answer:
            cluster, members = answer.headers["X-Etcd-Cluster-ID"], json.load(answer)
    finally:
        etcd.kill()
    assert volume(tmp_path / "data") == f"{cluster}:{members[0]['id']:x}"
    for each in (tmp_path / "data" / "member" / "wal").glob("*.wal"):
        each.unlink()
    assert volume(tmp_path / "data") == DAMAGED


def test_it_ends_at_once_when_its_pod_does(tmp_path: Path) -> None:
    process = subprocess.Popen(
        dies_with_parent([sys.executable, "-m", "hapax_operator.etcd_start", "start"]), stdout=subprocess.PIPE,
        env={**os.environ, **POD, "DATA": str(tmp_path), "SAID": str(tmp_path / "said"),
             "PEERS": "http://127.0.0.1:9"})
    assert process.stdout is not None and process.stdout.readline() == b"waiting: no member answers\n"
    process.terminate()
    assert process.wait(10) == 143


@pytest.fixture
def etcd_binary() -> str:
    return find_etcd().path

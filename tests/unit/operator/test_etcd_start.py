"""`etcd_start`: which member a pod becomes, by facts alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from hapax.local.etcd import find_etcd
from hapax_operator.etcd_start import DAMAGED, EMPTY, FOUNDER, decide, member_for, volume
from integration.etcd_process import EtcdProcess, dies_with_parent
from integration.waiting import wait_until

SETTINGS = json.dumps({"name": "e-0", "initial-advertise-peer-urls": "http://e-0:2380"})
POD = {"SETTINGS": SETTINGS, "POD_UID": "u1", "CLUSTER": "c", "FOUNDER": "", "REMOVED": ""}


def test_data_continues_as_the_member_that_it_is_of() -> None:
    become = decide("c1:a", POD)
    assert become is not None and become.runs_as == "c1:a" and not become.discards
    assert become.initial["initial-cluster-state"] == "existing"


def test_data_of_a_removed_member_does_not() -> None:
    assert decide("c1:a", {**POD, "REMOVED": "b,a"}) is None
    assert decide("c1:a", {**POD, "REMOVED": "b"}) is not None


def test_only_the_named_pod_founds_and_only_on_an_empty_volume() -> None:
    become = decide(EMPTY, {**POD, "FOUNDER": "u1"})
    assert become is not None and become.runs_as == FOUNDER
    assert become.initial == {
        "initial-cluster": "e-0=http://e-0:2380", "initial-cluster-state": "new", "initial-cluster-token": "c-u1"}
    assert decide(EMPTY, {**POD, "FOUNDER": "u0"}) is None
    assert decide(EMPTY, POD) is None
    assert decide(DAMAGED, {**POD, "FOUNDER": "u1"}) is None


def test_another_joins_as_a_member_that_has_never_started() -> None:
    members = [{"id": 10, "name": "e-1", "peerURLs": ["http://e-1:2380"]},
               {"id": 11, "name": "", "peerURLs": ["http://e-0:2380"], "isLearner": True}]
    become, _ = member_for("http://e-0:2380", "e-0", "c1", members)
    assert become is not None and become.runs_as == "c1:b" and become.discards
    assert become.initial["initial-cluster"] == "e-1=http://e-1:2380,e-0=http://e-0:2380"
    members[1]["name"] = "e-0"
    assert member_for("http://e-0:2380", "e-0", "c1", members)[0] is None, "its data is not here"
    assert member_for("http://e-2:2380", "e-2", "c1", members)[0] is None


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

"""The replacement of certificates under load counts only if something was replaced."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hapax_load.rotation import Rotation

from hapax.local.cluster import LocalCluster
from hapax.local.folder import ClusterState, ProcessState
from hapax.local.secure import SecureFolder


class Standing(LocalCluster):
    """Has files, and no process that runs."""

    def status(self) -> ClusterState:
        return ClusterState("c", "127.0.0.1:1", 0, 0, processes=[
            ProcessState("etcd", "etcd", -1, 1, 0, 0), ProcessState("broker-0", "broker", 0, 2, 3, 4)])


def test_a_replacement_that_replaces_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Standing(tmp_path)
    SecureFolder(cluster.folder).prepare("c", cluster.status().processes, "127.0.0.1:1")
    monkeypatch.setattr(SecureFolder, "renew", lambda *arguments: None)
    rotation = Rotation(cluster, time.time())
    with pytest.raises(RuntimeError, match=r"not replaced: etcd, .*broker-0"):
        rotation()

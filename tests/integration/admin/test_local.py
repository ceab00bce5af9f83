"""`hapax local up --admin`: the REST API among the processes of a local cluster."""

from __future__ import annotations

import json
import stat
import urllib.request

from conftest import ClusterFactory


def test_a_local_cluster_serves_rest_with_tokens_of_its_own(cluster_factory: ClusterFactory) -> None:
    cluster = cluster_factory(admin=True)
    file = cluster.folder.rest_tokens()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    tokens = {role: token for _, role, token in (line.split() for line in file.read_text().splitlines())}
    state = cluster.status()
    address = f"http://127.0.0.1:{state.process('admin-0').port}/v1/version"
    asked = urllib.request.Request(address, headers={"Authorization": f"Bearer {tokens['read-only']}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert json.load(answer)["cluster_id"] == state.cluster_id
    cluster.restart("admin-0")
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 200

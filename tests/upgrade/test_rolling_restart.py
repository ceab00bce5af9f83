"""From an earlier release to this one and back, node by node, under load: nothing is lost, nothing is doubled.

`make upgrade-test FROM=<commit>`; the releases are what Git has: `FROM` (the commit before this one by default), and
this working tree. With all other tests it runs where the variable CI is set.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hapax.cli.verify.findings import Findings
from hapax.cli.verify.folders import DataFolder, check_folder
from hapax.client import HapaxError, NewTopic
from hapax.client.blocking import Admin
from hapax.local.etcd import find_etcd
from hapax.local.folder import LocalClusterError
from integration.etcd_process import EtcdProcess
from upgrade.load import Idempotent, Load, Transactions, committed_offset, contents
from upgrade.mixed_cluster import MixedCluster

ROOT = Path(__file__).resolve().parents[2]
FROM = os.environ.get("UPGRADE_FROM", "HEAD~1" if os.environ.get("CI") else "")

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not FROM, reason="takes minutes: make upgrade-test FROM=HEAD~1"),
]


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`services/` as it was at FROM."""
    folder = tmp_path_factory.mktemp("former")
    archive = folder / "services.tar"
    made = subprocess.run(
        ["git", "archive", "--output", str(archive), FROM, "services"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip(f"{FROM} is not here (a clone without history?): {made.stderr.strip()}")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder / "services"


@pytest.fixture
def cluster(former: Path, tmp_path: Path) -> Iterator[MixedCluster]:
    try:
        etcd = EtcdProcess(find_etcd(sound_only=True).path, tmp_path / "etcd")
    except LocalClusterError as error:
        pytest.skip(str(error))
    etcd.start()
    mixed = MixedCluster(etcd, tmp_path)
    try:
        mixed.start(former)
        yield mixed
    finally:
        mixed.kill()
        etcd.close()


def make_topics(bootstrap: str) -> None:
    """Three replicas, where the former release knows of them."""
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        try:
            admin.create_topics([NewTopic("transactions", 2, 3), NewTopic("plain", 2, 3)])
        except HapaxError:
            admin.create_topics([NewTopic("transactions", 2, 1), NewTopic("plain", 2, 1)])


def test_to_this_release_and_back(cluster: MixedCluster, former: Path) -> None:
    make_topics(cluster.bootstrap)
    transactions, plain = Transactions(cluster.bootstrap, "transactions"), Idempotent(cluster.bootstrap, "plain")
    loads: tuple[Load, ...] = (transactions, plain)
    for load in loads:
        load.start()
    settings = () if (former / "hapax" / "runtime" / "rpc_server.py").exists() else ("rpc.former.calls=true",)
    for release, further in ((ROOT / "services", settings), (former, ())):
        for node in cluster.nodes:
            for load in loads:
                load.wait_for_more(5)
            cluster.restart(node, release, *further)
    for load in loads:
        load.wait_for_more(20)
    committed, written = transactions.stop(), 10 * plain.stop()
    print(
        f"\n{committed} transactions ({len(transactions.repeated)} attempts repeated, longest "
        f"{transactions.longest_s:.1f} s), {written} idempotent records (longest {plain.longest_s:.1f} s)",
        *transactions.repeated, sep="\n",
    )  # fmt: skip
    assert contents(cluster.bootstrap, "transactions") == {p: list(range(committed)) for p in (0, 1)}
    assert contents(cluster.bootstrap, "plain") == {p: list(range(p, written, 2)) for p in (0, 1)}
    assert committed_offset(cluster.bootstrap, "transactions") == committed - 1
    cluster.stop()
    findings = Findings()
    for node in cluster.nodes:
        for _ in check_folder(DataFolder(node.data), findings, compacted_topics=frozenset(), records=True):
            pass
    assert findings.damage == []

"""docs/kubernetes.md, followed command by command: what it says to do works as it stands there.

The release of all tests is installed as it says, and test_upgrade.py upgrades it as it says. This ends with the release
whole again, but new: nothing that other tests wrote is there any more.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from hapax_kube.cluster import KubeCluster
from hapax_kube.page import Page
from hapax_kube.tools import Release

pytestmark = pytest.mark.timeout(1500)

PROGRAM = """
import json, sys
from hapax.client import HapaxError, NewTopic
from hapax.client.blocking import Admin, Consumer, Producer

here, (value, *_) = {"bootstrap.servers": "localhost:9092"}, sys.argv[1:] + [""]
answer = {}
if value:
    with Admin(here) as admin:
        admin.create_topics([NewTopic("kept", 3, 3, {"min.insync.replicas": "2"})], exist_ok=True)
    with Producer({**here, "transactional.id": value}) as producer:
        with producer.transaction():
            for number in range(30):
                producer.send("kept", f"{value}-{number}".encode(), partition=number % 3)
    with Producer({**here, "enable.idempotence": True}) as producer:
        producer.send("kept", f"{value}-idempotent".encode(), partition=0).result(60)
        answer["producer_id"] = producer.identity.producer_id
found = []
# A commit's answer goes before its markers: up to where the log ends by now, not to where it is stable by now.
with Consumer({**here, "isolation.level": "read_uncommitted"}) as consumer:
    partitions = consumer.partitions("kept")
    ends = consumer.end_offsets(partitions)
with Consumer({**here, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}) as consumer:
    consumer.assign(partitions)
    while any(consumer.position(each) < ends[each] for each in partitions):
        found += [(record.partition, record.value.decode()) for record in consumer.poll(500)]
print(json.dumps({**answer, "found": sorted(found)}))
"""


def ask(release: Release, value: str = "") -> Any:
    """Writes the value's records, where one is given, in a broker's pod; then all committed records and the highest
    producer id that was just handed out."""
    said = release.tools.kubectl(
        "exec", "-i", "hapax-broker-0", "-n", release.namespace, "--", "python3", "-", value, text=PROGRAM)
    return json.loads(said.splitlines()[-1])


def test_backed_up_and_restored(release: Release, page: Page, figures: dict[str, float]) -> None:
    first = ask(release, "before")
    second = ask(release, "again")
    assert len(second["found"]) == 62
    began = time.monotonic()
    page.follow("Backing up")
    figures["a backup of everything, from a cluster that serves to one that serves again"] = time.monotonic() - began
    assert ask(release)["found"] == second["found"]
    lost = ask(release, "after-the-backup")
    assert len(lost["found"]) == 93

    release.uninstall()
    began = time.monotonic()
    page.follow("Restoring")
    figures["restored from it, and helm test has passed"] = time.monotonic() - began
    assert ask(release)["found"] == second["found"], "as it was at the backup, whole and nothing twice"
    anew = ask(release, "restored")
    assert len(anew["found"]) == 93
    # Each node hands out of a block of its own; those that were restored begin new ones.
    assert first["producer_id"] != second["producer_id"]
    assert anew["producer_id"] > max(first["producer_id"], second["producer_id"]), "no producer id is handed out twice"
    release.wait_ready()


def test_a_machine_that_never_comes_back(cluster: KubeCluster, release: Release, page: Page) -> None:
    before = ask(release, "on-three-machines")
    node = cluster.node_of(release.namespace, "hapax-broker-1")
    cluster.crash(node)
    try:
        page.follow("A machine that never comes back", NODE=node)
        assert ask(release)["found"] == before["found"]
    finally:
        cluster.boot(node)
        cluster.wait_ready(node)
    release.wait_ready()


def test_a_member_of_etcd_that_has_lost_its_volume(release: Release, page: Page) -> None:
    """It does not come back as one that knows nothing; another one takes its place, and nothing is lost."""
    space = ("-n", release.namespace)

    def members() -> dict[str, str]:
        said = release.tools.kubectl("exec", "hapax-etcd-0", *space, "--", "etcdctl", "member", "list")
        return {name: identity for identity, _, name, *_ in (line.split(", ") for line in said.splitlines())}

    before, known = members(), ask(release, "three-members")
    page.follow("A member of etcd that has lost its volume", MEMBER="hapax-etcd-1")
    after = members()
    assert after.keys() == before.keys() and {name for name in after if after[name] != before[name]} == {"hapax-etcd-1"}
    release.wait_ready()
    assert ask(release)["found"] == known["found"]

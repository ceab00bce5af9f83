"""docs/operations.md, followed command by command: what it says to do works as it stands there.

It ends with the release whole again, but made anew: nothing that other tests wrote is there any more.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hapax_kube.binaries import ROOT
from hapax_kube.cluster import Cluster
from hapax_kube.images import HAPAX
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
with Consumer({**here, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}) as consumer:
    partitions = consumer.partitions("kept")
    ends = consumer.end_offsets(partitions)
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


@pytest.fixture
def page(release: Release, tmp_path: Path) -> Page:
    shutil.copy(release.values, tmp_path / "values.yaml")
    image = os.environ.get("HAPAX_KUBE_IMAGE", HAPAX)
    return Page(ROOT / "docs" / "operations.md", release.tools, tmp_path, IMAGE=image)


def test_installed_upgraded_backed_up_and_restored(release: Release, page: Page) -> None:
    release.uninstall()
    page.follow("Installing")
    first = ask(release, "before")
    page.follow("Upgrading")
    second = ask(release, "upgraded")
    assert len(second["found"]) == 62
    page.follow("Backing up")
    assert ask(release)["found"] == second["found"]
    lost = ask(release, "after-the-backup")
    assert len(lost["found"]) == 93

    release.uninstall()
    page.follow("Restoring")
    assert ask(release)["found"] == second["found"], "as it was at the backup, whole and nothing twice"
    anew = ask(release, "restored")
    assert len(anew["found"]) == 93
    # Each node hands out of a block of its own; those that were restored begin new ones.
    assert first["producer_id"] != second["producer_id"]
    assert anew["producer_id"] > max(first["producer_id"], second["producer_id"]), "no producer id is handed out twice"
    release.wait_ready()


def test_a_machine_that_never_comes_back(cluster: Cluster, release: Release, page: Page) -> None:
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

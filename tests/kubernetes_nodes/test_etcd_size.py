"""etcd grows from three members to five and shrinks again, member by member, and keeps its cluster."""

from __future__ import annotations

import json
import time

import pytest

from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax_kube.tools import CHART, Release

pytestmark = pytest.mark.timeout(600)

WAIT = "--timeout=240s"


def members(release: Release) -> tuple[int, list[str]]:
    """The cluster's id, and the names of its members that vote."""
    told = json.loads(release.tools.kubectl(
        "-n", release.namespace, "exec", "hapax-etcd-0", "-c", "etcd", "--", "etcdctl", "member", "list", "-w", "json"))
    return told["header"]["cluster_id"], sorted(
        each["name"] for each in told["members"] if not each.get("isLearner"))


def test_members_come_and_leave_one_by_one(release: Release, admin: Admin, figures: dict[str, float]) -> None:
    def settled(*given: str) -> None:
        release.tools.helm(
            "upgrade", release.name, str(CHART), "--namespace", release.namespace, "--values", str(release.values),
            *given)
        # The keeper first has to see what is wanted.
        for condition in ("Ready=false", "Ready"):
            release.tools.kubectl(
                "-n", release.namespace, "wait", f"--for=condition={condition}", WAIT, "workload/hapax-etcd",
                timeout_s=260)

    cluster, before = members(release)
    assert len(before) == 3
    began = time.monotonic()
    settled("--set", "etcd.replicas=5")
    assert members(release) == (cluster, [f"hapax-etcd-{each}" for each in range(5)])
    with pytest.raises(AssertionError, match="leave one by one before their pods do"):
        release.tools.helm(
            "upgrade", release.name, str(CHART), "--namespace", release.namespace, "--values", str(release.values),
            "--set", "etcd.replicas=3")
    settled("--set", "etcd.replicas=5", "--set", "etcd.members=3")
    release.upgrade()
    assert members(release) == (cluster, before)
    figures["etcd from three members to five, and back"] = time.monotonic() - began
    admin.create_topics([NewTopic("after-etcd-size", 1, 3)])
    admin.delete_topics(["after-etcd-size"])
    for number in (3, 4):
        release.tools.kubectl("-n", release.namespace, "delete", "pvc", f"data-hapax-etcd-{number}")

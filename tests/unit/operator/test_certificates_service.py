"""`certificates_service`: whether all members of etcd run as their StatefulSet describes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hapax_operator.certificates_service import etcd_seen

SET = "demo-hapax-etcd"


def stateful_set(members: int, replicas: int, *, ready: int = 0, updated: int = 0, observed: int = 7) -> dict[str, Any]:
    return {"metadata": {"name": SET, "generation": 7, "annotations": {
        "hapax.dev/members": str(members), "hapax.dev/replicas": str(replicas)}},
        "spec": {"replicas": replicas, "template": {"metadata": {"annotations": {"hapax.dev/trusted-issuers": "a,b"}}}},
        "status": {"observedGeneration": observed, "replicas": replicas, "readyReplicas": ready,
                   "updatedReplicas": updated, "updateRevision": "new"}}


def pod(ordinal: int, *, ready: bool = True, revision: str = "new", member: bool = True, deleting: bool = False) -> Any:
    ended = {"terminated": {"exitCode": 0, "message": json.dumps({"runsAs": "c:1"})}}
    return {"metadata": {"name": f"{SET}-{ordinal}", "uid": f"{ordinal}", "labels": {
        "controller-revision-hash": revision}, **({"deletionTimestamp": "now"} if deleting else {})},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}], "initContainerStatuses": [
            {"name": "member", "state": ended if member else {"running": {}}}]}}


WAITING = [pod(each, ready=False, revision="old", member=False) for each in (1, 2)]


def test_pods_without_members_keep_no_issuer_from_being_trusted() -> None:
    """With etcd.members below etcd.replicas they are never ready, and are not replaced for a new revision."""
    halfway = stateful_set(1, 3, ready=1, updated=1)
    seen = etcd_seen(halfway, [pod(0), *WAITING])
    assert seen.settled and seen.trusted == {"a", "b"}
    assert etcd_seen(halfway, [pod(0), pod(1), pod(2)]).settled, "members that are to leave, and run as described"


@pytest.mark.parametrize("pods", [
    [pod(0, revision="old"), *WAITING],
    [pod(0, ready=False), *WAITING],
    [pod(0, ready=False, member=False), *WAITING],
    [pod(0, deleting=True), *WAITING],
    [pod(0), pod(1, revision="old"), WAITING[1]],
    [pod(0), pod(1, ready=False), WAITING[1]],
    [pod(0), WAITING[0]],
    WAITING,
    [],
], ids=["former revision", "not ready", "waits", "ends", "leaving, former revision", "leaving, not ready", "no third",
        "no first", "none"])
def test_a_member_that_may_trust_former_issuers_only_is_waited_for(pods: list[Any]) -> None:
    """Whatever the StatefulSet's own numbers are: they do not say which pods they count."""
    assert not etcd_seen(stateful_set(1, 3, ready=1, updated=1), pods).settled


def test_where_every_pod_is_a_member_the_stateful_set_says_it() -> None:
    assert etcd_seen(stateful_set(3, 3, ready=3, updated=3)).settled
    assert not etcd_seen(stateful_set(3, 3, ready=2, updated=3)).settled
    assert not etcd_seen(stateful_set(3, 3, ready=3, updated=2)).settled
    assert not etcd_seen(stateful_set(3, 3, ready=3, updated=3, observed=6)).settled
    assert not etcd_seen(stateful_set(1, 3, observed=6), [pod(0), *WAITING]).settled, "of a template before"

"""`etcd_start`: which member a pod becomes, by facts alone."""

from __future__ import annotations

import json

from hapax_operator.etcd_start import DAMAGED, EMPTY, FOUNDER, decide, member_for

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

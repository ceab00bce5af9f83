"""How an identity on lease is kept, and that looking after it never fences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax_operator.plan_lease import Keep, LeaseSeen, Take, owner_before, plan_lease
from hapax_operator.plan_policy import policy_of
from hapax_operator.resources import BadResource, LeaseSpec, ProducerResource, read_producer

NOW = 1_800_000_000_000
SPEC: dict[str, Any] = {"lease": {"name": "files", "partitions": ["a-b-0", "c-1"], "expireSeconds": 60}}
LEASE = LeaseSpec("files", ("a-b-0", "c-1"), 60)


OWN = {"ownedLease": "files"}


def resource(
    annotations: dict[str, str] | None = None, status: dict[str, Any] | None = None, **spec: Any
) -> ProducerResource:
    return read_producer({
        "metadata": {"namespace": "team", "name": "loader", "uid": "1", "annotations": annotations or {}},
        "spec": SPEC | spec, "status": OWN if status is None else status})


def seen(left_s: float = 50, generation: int = 3, partitions: tuple[str, ...] = LEASE.partitions) -> LeaseSeen:
    return LeaseSeen(7, generation, "host", int(NOW + left_s * 1000), partitions, {"c-1": 5, "a-b-0": 6})


def test_it_is_taken_where_nobody_holds_it() -> None:
    assert resource().lease == LEASE and policy_of(resource()) is None
    for nobody in (None, seen(0), seen()._replace(producer_id=-1)):
        planned = plan_lease(resource(), nobody, NOW)
        assert planned.action == Take(LEASE)
        assert (planned.conditions[0].status, planned.conditions[0].reason) == ("False", "NotLeased")


def test_it_is_kept_under_the_generation_it_has() -> None:
    assert plan_lease(resource(), seen(31), NOW).action is None
    assert plan_lease(resource(), seen(29), NOW).action == Keep(LEASE, 7, 3)
    assert plan_lease(resource(), seen(partitions=("c-1", "z-0")), NOW).action == Keep(LEASE, 7, 3)


def test_a_lease_that_exists_is_not_kept_by_a_resource_that_did_not_make_it() -> None:
    for left_s in (50, -5):
        planned = plan_lease(resource(status={}), seen(left_s), NOW)
        assert planned.action is None and not planned.intends
        assert (planned.conditions[0].reason, planned.notes[0].reason) == ("NotAdopted", "NotAdopted")
        assert planned.status["lease"] is None and planned.status["ownedLease"] == ""
    adopts = resource({"hapax.dev/adopt": "true"}, {"ownedLease": ""})
    assert plan_lease(adopts, seen(29), NOW).intends
    assert plan_lease(replace(adopts, status=OWN), seen(29), NOW).action == Keep(LEASE, 7, 3)


def test_the_status_says_whose_a_free_lease_is_before_it_is_taken() -> None:
    planned = plan_lease(resource(status={}), None, NOW)
    assert (planned.action, planned.intends, planned.status["ownedLease"]) == (None, True, "files")
    assert plan_lease(resource(status=dict(planned.status)), None, NOW).action == Take(LEASE)
    assert plan_lease(resource(status=dict(planned.status)), seen(29), NOW).action == Keep(LEASE, 7, 3)
    looks = plan_lease(resource(status={}, managed=False), seen(), NOW)
    assert looks.status["ownedLease"] == "" and looks.conditions[0].reason == "Leased"
    assert plan_lease(resource(status=dict(looks.status)), seen(), NOW).conditions[0].reason == "NotAdopted"


def test_a_lease_of_an_earlier_release_stays_the_resource_s() -> None:
    former = {"lease": {"name": "files"}, "producerId": 7}
    assert plan_lease(resource(status=former), seen(40), NOW).status["ownedLease"] == "files"
    # Also where the definition is still the former one, which drops the note.
    assert plan_lease(resource(status=former), seen(29), NOW).action == Keep(LEASE, 7, 3)
    assert plan_lease(resource(status=former), seen(-1), NOW).intends
    assert plan_lease(resource(status=former | {"producerId": 8}), seen(40), NOW).conditions[0].reason == "NotAdopted"


@pytest.mark.parametrize("away", ["paused", "outside", "conflict"])
def test_a_lease_of_an_earlier_release_stays_the_resource_s_while_it_does_not_act(away: str) -> None:
    former = {"lease": {"name": "files"}, "producerId": 7}
    waits = resource({"hapax.dev/pause": "true"} if away == "paused" else {}, former)
    waits = replace(waits, outside="forbidden") if away == "outside" else waits
    planned = plan_lease(waits, seen(29), NOW, waits if away == "conflict" else None)
    assert planned.action is None
    after = {name: value for name, value in (former | dict(planned.status)).items() if value is not None}
    assert plan_lease(resource(status=after), seen(29), NOW).action == Keep(LEASE, 7, 3)


def test_the_progress_is_shown() -> None:
    status = plan_lease(resource(), seen(), NOW).status
    assert (status["state"], status["producerId"], status["producerEpoch"]) == ("Leased", 7, 3)
    assert status["lease"] == {
        "name": "files", "holder": "host", "expiresAt": "2027-01-15T08:00:50Z", "records": 11, "partitionCount": 2,
        "progress": [{"partition": "a-b-0", "records": 6}, {"partition": "c-1", "records": 5}]}
    assert plan_lease(resource(), None, NOW).status["state"] == "Unknown"


@pytest.mark.parametrize("spec", [
    {"transactionalId": "a"}, {"lease": {"name": "files"}}, {"lease": "files"}, {"lease": {"partitions": ["a-0"]}}])
def test_what_cannot_be_read_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(BadResource):
        resource(**spec)


@given(st.none() | st.builds(
    seen, st.floats(-10, 100), st.integers(0, 5), st.lists(st.sampled_from(["a-b-0", "c-1", "d-0"])).map(tuple)))
def test_a_holder_is_never_fenced(found: LeaseSeen | None) -> None:
    action = plan_lease(resource(), found, NOW).action
    if found is not None and found.expires_at_ms > NOW:
        assert action is None or action == Keep(LEASE, found.producer_id, found.generation)
    assert plan_lease(resource(managed=False), found, NOW).action is None
    assert plan_lease(resource({"hapax.dev/pause": "true"}), found, NOW).action is None


def named(name: str, created: str, **spec: Any) -> ProducerResource:
    body = {"namespace": "team", "name": name, "uid": name, "creationTimestamp": created}
    return read_producer({"metadata": body, "spec": SPEC | spec})


def test_of_two_resources_the_older_one_counts() -> None:
    first, second, loose = named("first", "1"), named("second", "2"), named("loose", "0", managed=False)
    all_of_them = [second, loose, first]
    assert owner_before(first, all_of_them) is None and owner_before(loose, all_of_them) is None
    assert owner_before(second, all_of_them) is first
    assert owner_before(second, [second, loose]) is None
    planned = plan_lease(second, None, NOW, first)
    assert planned.action is None and set(planned.status.values()) == {None}
    shown = [(each.type, each.status) for each in planned.conditions]
    assert shown == [("Ready", "False"), ("ResourceConflict", "True")] and "team/first" in planned.conditions[0].message
    assert [each.reason for each in planned.notes] == ["ResourceConflict"]
    told = [{"type": each.type, "message": each.message} for each in planned.conditions]
    assert plan_lease(replace(second, status={"conditions": told}), None, NOW, first).notes == ()

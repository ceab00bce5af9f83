"""What is shown of transactional ids, and the only two reasons to fence one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hapax_operator.plan_producer import Fence, FencingSeen, ProducerSeen, TokenSeen, plan, untaken
from hapax_operator.resources import ABORT, ALERT, PRODUCERS, Meta, ProducerResource, Ref

NOW = 1_800_000_000_000


def resource(**fields: Any) -> ProducerResource:
    meta = Meta(
        ref=Ref(PRODUCERS, "team", "loader"), uid="uid", generation=1, created="2026-01-01T00:00:00Z",
        paused=fields.pop("paused", False))
    if "prefix" not in fields:
        fields.setdefault("transactional_id", "loader")
    return ProducerResource(meta=meta, **fields)


def seen(name: str = "loader", open_for_s: int | None = None, **fields: Any) -> ProducerSeen:
    opened = -1 if open_for_s is None else NOW - open_for_s * 1000
    state = "Empty" if open_for_s is None else "Ongoing"
    return ProducerSeen(**{
        "transactional_id": name, "producer_id": 7, "epoch": 3, "state": state, "timeout_ms": 60_000,
        "opened_ms": opened, "instance": "one", **fields})


def test_an_open_transaction_is_shown() -> None:
    planned = plan(resource(), [seen(open_for_s=10, partitions=("a-0", "b-1"))], NOW)
    assert planned.fences == ()
    assert (planned.status["state"], planned.status["producerId"], planned.status["producerEpoch"]) == ("Ongoing", 7, 3)
    assert planned.status["openTransaction"] == {
        "openSince": "2027-01-15T07:59:50Z", "timeoutSeconds": 60, "partitions": ["a-0", "b-1"], "partitionCount": 2}
    assert plan(resource(), [seen()], NOW).status["openTransaction"] is None


def test_an_id_that_is_in_use_is_not_shown_to_a_resource_that_did_not_make_it() -> None:
    planned = untaken(resource(on_hanging=ABORT, fence=3), [seen("b", 1000), seen("a", 1000)])
    assert (planned.fences, planned.ensure, planned.intends, planned.status["state"]) == ((), False, False, None)
    assert [(each.type, each.status) for each in planned.conditions] == [("Ready", "False"), ("NotAdopted", "True")]
    assert "transactional id a " in planned.notes[0].message and "hapax.dev/adopt=true" in planned.notes[0].message
    again = resource(status={"conditions": [{"type": "NotAdopted", "message": planned.notes[0].message}]})
    assert untaken(again, [seen("a")]).notes == ()


def test_an_id_of_many_writers_alone_has_no_producer_of_its_own() -> None:
    status = plan(resource(prefix="load"), [seen(producer_id=-1, epoch=-1)], NOW).status
    assert (status["producerId"], status["producerEpoch"]) == (None, None)
    assert status["producers"] == [{"transactionalId": "loader", "state": "Empty"}]


def test_an_id_that_nobody_used_is_made_and_a_request_to_fence_it_is_done() -> None:
    planned = plan(resource(fence=2), [], NOW)
    assert (planned.fences, planned.status["state"], planned.status["fenced"]) == ((), "Unknown", 2)
    assert planned.ensure and not plan(resource(), [seen()], NOW).ensure
    for leaves_alone in (resource(paused=True), resource(managed=False), resource(prefix="lo")):
        assert not plan(leaves_alone, [], NOW).ensure


def test_a_request_fences_once_and_the_instance_that_was_seen_first() -> None:
    asked = plan(resource(fence=2, status={"fenced": 1}), [seen()], NOW)
    assert asked.intends and asked.fences == ()
    assert asked.status["fencing"] == {"request": 2, "instance": "one"}
    intended = {"fenced": 1, "fencing": asked.status["fencing"]}
    # The operator died, perhaps after it fenced, and meanwhile the next instance has begun: that one is spared.
    again = plan(resource(fence=2, status=intended), [seen(instance="two")], NOW)
    assert again.fences == (Fence("loader", 3, "one", 2, "requested by spec.fence"),) and not again.intends
    assert plan(resource(fence=3, status=intended), [seen(instance="two")], NOW).status["fencing"] == {
        "request": 3, "instance": "two"}
    done = plan(resource(fence=2, status={"fenced": 2}), [seen()], NOW)
    assert done.fences == () and not done.intends


def test_the_last_outcome_token_and_fencing_are_shown() -> None:
    known = seen(
        committed=False, decided_ms=NOW, token=TokenSeen("q", 7, 100, NOW),
        fencing=FencingSeen("timed_out", NOW, "", "job from h:1", 2), holder="job from h:2")
    status = plan(resource(), [known], NOW).status
    assert status["lastOutcome"] == {"result": "Abort", "time": "2027-01-15T08:00:00Z"}
    assert status["lastToken"] == {"scope": "q", "value": 7, "records": 100, "time": "2027-01-15T08:00:00Z"}
    assert status["fencedBy"] == {
        "time": "2027-01-15T08:00:00Z", "cause": "TimedOut", "by": "the coordinator", "fenced": "job from h:1",
        "fencedEpoch": 2}
    assert status["holder"] == "job from h:2"
    first = seen(fencing=FencingSeen("initialized", NOW, "job from h:1", "", 0))  # nobody held the id
    assert plan(resource(), [first], NOW).status["fencedBy"] is None


def test_a_fencing_is_told_once_and_not_by_whom_did_it() -> None:
    def told(fencing: FencingSeen, **status: Any) -> list[tuple[str, str]]:
        known = {"transactionalId": "loader", **status}
        return [(each.type, each.reason) for each in plan(resource(status=known), [seen(fencing=fencing)], NOW).notes]

    late = FencingSeen("timed_out", NOW, "", "job from h:1", 2)
    assert told(late) == [("Warning", "TransactionAborted")]
    assert told(late, fencedBy=plan(resource(), [seen(fencing=late)], NOW).status["fencedBy"]) == []
    other = FencingSeen("initialized", NOW, "job from h:2", "job from h:1", 2)
    assert told(other, fencedBy=plan(resource(), [seen(fencing=late)], NOW).status["fencedBy"]) == [
        ("Normal", "InstanceFenced")]
    by = other._replace(by="hapax-operator for team/loader from h:3")
    assert told(by, lastFence={"fencedEpoch": 2}) == [], "the operator says it itself"
    for last in ({}, {"lastFence": {"fencedEpoch": 1}}):
        assert told(by, **last) == [("Normal", "InstanceFenced")], "anybody may call itself like the operator"
    assert plan(resource(), [seen(fencing=late)], NOW).notes == (), "before this resource knew the id"
    assert plan(resource(prefix="lo", status={"transactionalId": "loader"}), [seen(fencing=late)], NOW).notes == ()


def test_what_hangs_is_told_once_and_fenced_only_with_abort() -> None:
    hanging = [seen(open_for_s=301)]
    told = plan(resource(), hanging, NOW)
    assert told.fences == ()
    assert [note.reason for note in told.notes] == ["TransactionHangs"]
    known = {"conditions": [{"type": "Hanging", "status": "True"}]}
    assert plan(resource(status=known), hanging, NOW).notes == ()
    assert len(plan(resource(on_hanging=ABORT), hanging, NOW).fences) == 1
    named = plan(resource(on_hanging=ABORT), [seen(open_for_s=301, serial=17)], NOW).fences
    assert [each.serial for each in named] == [17], "the instance's next transaction does not hang"
    assert plan(resource(on_hanging=ABORT), [seen(open_for_s=299)], NOW).fences == ()
    assert plan(resource(on_hanging=ABORT), [seen(open_for_s=301, state="PrepareCommit")], NOW).fences == ()


def test_a_transaction_under_two_phase_commit_does_not_hang_however_long_it_is_open() -> None:
    planned = plan(resource(on_hanging=ABORT), [seen(open_for_s=1_000_000, two_phase=True)], NOW)
    assert planned.fences == () and planned.notes == ()


def test_the_list_of_a_prefix_is_bounded_and_shows_the_longest_open_first() -> None:
    many = [seen(f"job-{index:02}") for index in range(50)] + [seen("job-z", 5), seen("job-y", 50)]
    status = plan(resource(prefix="job-"), many, NOW).status
    assert (status["producerCount"], len(status["producers"])) == (52, 20)
    assert [each["transactionalId"] for each in status["producers"][:3]] == ["job-y", "job-z", "job-00"]
    assert status["transactionalId"] == "job-y"


@given(
    st.builds(
        resource, paused=st.booleans(), managed=st.booleans(), on_hanging=st.sampled_from([ABORT, ALERT]),
        fence=st.integers(0, 2), status=st.sampled_from([
            {}, {"fenced": 1}, {"fenced": 2}, {"fencing": {"request": 1, "instance": "one"}}])),
    st.lists(st.builds(seen, open_for_s=st.sampled_from([None, 10, 1000])), max_size=1))
def test_looking_never_fences(described: ProducerResource, found: list[ProducerSeen]) -> None:
    fences = plan(described, found, NOW).fences
    if not described.acts:
        assert fences == ()
    for fence in fences:
        assert (fence.request is not None and fence.request > (described.status.get("fenced") or 0)) or (
            described.on_hanging == ABORT and found[0].opened_ms == NOW - 1_000_000)

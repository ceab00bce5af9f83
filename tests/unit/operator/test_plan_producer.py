"""What is shown of transactional ids, and the only two reasons to fence one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hapax_operator.plan_producer import Fence, ProducerSeen, plan
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
        "opened_ms": opened, **fields})


def test_an_open_transaction_is_shown() -> None:
    verdict = plan(resource(), [seen(open_for_s=10, partitions=("a-0", "b-1"))], NOW)
    assert verdict.fences == ()
    assert (verdict.status["state"], verdict.status["producerId"], verdict.status["producerEpoch"]) == ("Ongoing", 7, 3)
    assert verdict.status["openTransaction"] == {
        "openSince": "2027-01-15T07:59:50Z", "timeoutSeconds": 60, "partitions": ["a-0", "b-1"], "partitionCount": 2}
    assert plan(resource(), [seen()], NOW).status["openTransaction"] is None


def test_an_id_that_nobody_used_is_unknown_and_a_request_to_fence_it_is_done() -> None:
    verdict = plan(resource(fence=2), [], NOW)
    assert (verdict.fences, verdict.status["state"], verdict.status["fenced"]) == ((), "Unknown", 2)


def test_a_request_fences_once() -> None:
    verdict = plan(resource(fence=2, status={"fenced": 1}), [seen()], NOW)
    assert verdict.fences == (Fence("loader", 3, 2, "requested by spec.fence"),)
    assert plan(resource(fence=2, status={"fenced": 2}), [seen()], NOW).fences == ()


def test_what_hangs_is_told_once_and_fenced_only_with_abort() -> None:
    hanging = [seen(open_for_s=301)]
    told = plan(resource(), hanging, NOW)
    assert told.fences == ()
    assert [note.reason for note in told.notes] == ["TransactionHangs"]
    known = {"conditions": [{"type": "Hanging", "status": "True"}]}
    assert plan(resource(status=known), hanging, NOW).notes == ()
    assert len(plan(resource(on_hanging=ABORT), hanging, NOW).fences) == 1
    assert plan(resource(on_hanging=ABORT), [seen(open_for_s=299)], NOW).fences == ()
    assert plan(resource(on_hanging=ABORT), [seen(open_for_s=301, state="PrepareCommit")], NOW).fences == ()


def test_the_list_of_a_prefix_is_bounded_and_shows_the_longest_open_first() -> None:
    many = [seen(f"job-{index:02}") for index in range(50)] + [seen("job-z", 5), seen("job-y", 50)]
    status = plan(resource(prefix="job-"), many, NOW).status
    assert (status["producerCount"], len(status["producers"])) == (52, 20)
    assert [each["transactionalId"] for each in status["producers"][:3]] == ["job-y", "job-z", "job-00"]
    assert status["transactionalId"] == "job-y"


@given(
    st.builds(
        resource, paused=st.booleans(), managed=st.booleans(), on_hanging=st.sampled_from([ABORT, ALERT]),
        fence=st.integers(0, 2), status=st.sampled_from([{}, {"fenced": 1}, {"fenced": 2}])),
    st.lists(st.builds(seen, open_for_s=st.sampled_from([None, 10, 1000])), max_size=1))
def test_looking_never_fences(described: ProducerResource, found: list[ProducerSeen]) -> None:
    fences = plan(described, found, NOW).fences
    if not described.acts:
        assert fences == ()
    for fence in fences:
        assert (fence.request is not None and fence.request > (described.status.get("fenced") or 0)) or (
            described.on_hanging == ABORT and found[0].opened_ms == NOW - 1_000_000)

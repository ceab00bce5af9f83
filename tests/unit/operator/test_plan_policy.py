"""Which policy a resource keeps in the store, and who counts where several describe an id."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.transaction.policy import StoredPolicy, TransactionPolicies
from hapax_operator.plan_policy import Standing, must_ask, must_store, policy_of, standing, touched
from hapax_operator.plan_producer import ProducerSeen, plan
from hapax_operator.resources import ABORT, PRODUCERS, Meta, ProducerResource, Ref, read_producer


def resource(uid: str = "1", created: str = "2026-01-01", **fields: Any) -> ProducerResource:
    meta = Meta(
        ref=Ref(PRODUCERS, "team", f"loader-{uid}"), uid=uid, generation=1, created=created,
        paused=fields.pop("paused", False), deleting=fields.pop("deleting", False))
    if "prefix" not in fields:
        fields.setdefault("transactional_id", "loader")
    return ProducerResource(meta=meta, **fields)


def stored(*resources: ProducerResource) -> list[StoredPolicy]:
    return [StoredPolicy(policy, 1) for each in resources if (policy := policy_of(each)) is not None]


def test_a_policy_says_what_the_resource_says() -> None:
    read = read_producer({
        "metadata": {"namespace": "team", "name": "loader", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "transactionalIdPrefix": "team-", "allowedTopics": ["a", "b-*"], "maxTransactionTimeoutSeconds": 30}})
    policy = policy_of(read)
    assert policy is not None
    assert (policy.prefix, policy.transactional_id, policy.allowed_topics, policy.max_timeout_ms) == (
        "team-", "", ("a", "b-*"), 30_000)
    assert (policy.created, policy.uid, policy.owner) == ("2026-01-01T00:00:00Z", "1", "team/loader")
    limitless = policy_of(resource())
    assert limitless is not None and limitless.allowed_topics is None and limitless.max_timeout_ms == 0


def test_it_is_written_when_it_differs_and_left_alone_while_paused() -> None:
    first, changed = resource(), resource(max_timeout_s=5)
    (known,) = stored(first)
    assert must_store(first, None) and not must_store(first, known) and must_store(changed, known)
    assert must_store(resource(managed=False), known) and not must_store(resource(managed=False), None)
    assert not must_store(resource(paused=True, max_timeout_s=5), known)
    assert not must_store(resource(deleting=True, max_timeout_s=5), known)


def test_only_a_resource_without_a_policy_asks_whether_its_ids_are_in_use() -> None:
    """Every release has stored one before anything else, so an upgrade asks nothing."""
    first = resource()
    (known,) = stored(first)
    assert must_ask(first, None) and not must_ask(first, known) and not must_ask(resource(max_timeout_s=5), known)
    assert not must_ask(resource(managed=False), None) and not must_ask(resource(outside="forbidden"), None)


@pytest.mark.parametrize(("older", "conflict"), [
    ({"transactional_id": "loader"}, True),
    ({"prefix": "lo"}, True),
    ({"prefix": "loader-"}, False),
    ({"transactional_id": "other"}, False),
    ({"transactional_id": "loader", "managed": False}, False),
])
def test_an_older_one_that_covers_the_id_counts(older: dict[str, Any], conflict: bool) -> None:
    first, second = resource("1", "2026-01-01", **older), resource("2", "2026-01-02")
    found = standing(second, stored(first, second))
    assert (found.conflict is not None) == conflict
    assert standing(first, stored(first, second)).conflict is None


def test_a_younger_prefix_counts_for_the_rest() -> None:
    older = resource("1", "2026-01-01", transactional_id="team-a")
    younger = resource("2", "2026-01-02", prefix="team-", on_hanging=ABORT)
    found = standing(younger, stored(older, younger))
    assert found.conflict is None and not found.counts_for("team-a") and found.counts_for("team-b")
    seen = [ProducerSeen(name, 1, 1, "Ongoing", 60_000, 1) for name in ("team-a", "team-b")]
    planned = plan(younger, seen, 1_800_000_000_000, found)
    assert [each.transactional_id for each in planned.fences] == ["team-b"]
    assert planned.status["producerCount"] == 1
    (told,) = (each for each in planned.conditions if each.type == "Overlaps")
    assert "team/loader-1" in told.message


def test_a_conflict_is_told_once_and_nothing_is_done() -> None:
    older = policy_of(resource("1"))
    younger = resource("2", fence=3, on_hanging=ABORT)
    seen = [ProducerSeen("loader", 1, 1, "Ongoing", 60_000, 1)]
    planned = plan(younger, seen, 1_800_000_000_000, Standing(older))
    assert planned.fences == () and "fenced" not in planned.status and planned.status["producerId"] is None
    assert [(each.type, each.status) for each in planned.conditions] == [
        ("Ready", "False"), ("ResourceConflict", "True")]
    assert [note.reason for note in planned.notes] == ["ResourceConflict"]
    told = {"conditions": [each._asdict() for each in planned.conditions]}
    assert plan(resource("2", status=told), seen, 0, Standing(older)).notes == ()


ids = st.text("ab", min_size=1, max_size=3)
uids, days = st.sampled_from("12345"), st.sampled_from(["2026-01-01", "2026-01-02"])
described = st.builds(resource, uids, days, transactional_id=ids) | st.builds(resource, uids, days, prefix=ids)
some = st.lists(described, unique_by=lambda each: each.meta.uid)


@given(some, ids)
def test_operator_and_coordinators_agree_on_who_counts(resources: list[ProducerResource], name: str) -> None:
    policies = TransactionPolicies()
    for each in stored(*resources):
        policies.put(each.policy)
    counts = [
        each.meta.uid for each in resources
        if (own := policy_of(each)) is not None and own.covers(name) and standing(each, policies).counts_for(name)]
    assert counts == ([uid] if (uid := policies.of(name).uid) else [])


@given(some, described)
def test_whoever_it_may_concern_is_looked_at(resources: list[ProducerResource], changed: ProducerResource) -> None:
    policy = policy_of(changed)
    assert policy is not None
    others = [each for each in resources if each.meta.uid != policy.uid]
    looked_at = touched(others, policy)
    for each in others:
        if standing(each, stored(*others)) != standing(each, stored(*others, changed)):
            assert each in looked_at

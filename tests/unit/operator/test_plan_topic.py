"""Plans for topics: from resources and a topic to actions, conditions and events, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax_operator.plan_topic import (
    Configure,
    Create,
    Delete,
    Grow,
    PartitionSeen,
    Replicate,
    TopicPlan,
    TopicSeen,
    owner,
    plan,
)
from hapax_operator.resources import DELETE, FINALIZER, RETAIN, TOPICS, Meta, Ref, TopicResource


def resource(name: str = "orders", *, created: str = "2026-01-01T00:00:00Z", **fields: Any) -> TopicResource:
    meta = {
        name: fields.pop(name) for name in ("deleting", "finalizers", "paused", "adopts", "generation")
        if name in fields}
    namespace = fields.pop("namespace", "team")
    fields.setdefault("status", {"ownedTopicId": "id-1"})
    return TopicResource(
        meta=Meta(
            ref=Ref(TOPICS, namespace, name), uid=f"uid-{namespace}-{name}", created=created,
            **{"generation": 1, **meta}),
        topic=fields.pop("topic", "orders"), **fields)


def topic(
    partitions: int = 1, replicas: tuple[int, ...] = (0,), each: PartitionSeen | None = None, **fields: Any
) -> TopicSeen:
    shown = each or PartitionSeen(replicas[0], replicas, replicas)
    return TopicSeen(name="orders", topic_id="id-1", partitions=[shown] * partitions, **fields)


def ready(planned: TopicPlan) -> tuple[str, str]:
    (found,) = (each for each in planned.conditions if each.type == "Ready")
    return found.status, found.reason


def alone(described: TopicResource, seen: TopicSeen | None) -> TopicPlan:
    return plan(described, [described], seen)


def test_a_topic_that_is_missing_is_made() -> None:
    planned = alone(resource(partitions=3, config={"retention.ms": "1"}, status={}), None)
    assert planned.actions == (Create(3, -1, {"retention.ms": "1"}),)
    assert (planned.finalizer, ready(planned), planned.notes) == (None, ("False", "Creating"), ())


def test_a_topic_that_is_as_described_needs_nothing() -> None:
    planned = alone(resource(partitions=2), topic(2))
    assert (planned.actions, planned.finalizer, ready(planned)) == ((), None, ("True", "AsDescribed"))
    assert planned.status is not None
    assert (planned.status["topicId"], planned.status["inSync"]) == ("id-1", "2/2")


def test_differences_are_mended_in_order() -> None:
    described = resource(partitions=4, replication_factor=2, config={"retention.ms": "5", "segment.bytes": "4096"})
    planned = alone(described, topic(2, config={"retention.ms": "4", "segment.bytes": "4096"}))
    assert planned.actions == (Grow(4), Configure({"retention.ms": "5"}), Replicate(2))
    assert ready(planned) == ("False", "Differs")


def test_configuration_of_others_stays_and_own_is_given_back() -> None:
    described = resource(config={"segment.ms": "7"}, status={
        "configured": ["retention.ms", "segment.ms"], "ownedTopicId": "id-1"})
    seen = topic(config={"retention.ms": "1", "segment.ms": "7", "max.message.bytes": "9"})
    assert alone(described, seen).actions == (Configure({"retention.ms": None}),)
    gone = topic(config={"segment.ms": "7", "max.message.bytes": "9"})
    assert alone(described, gone).actions == ()


def test_partitions_never_shrink() -> None:
    planned = alone(resource(partitions=1), topic(3))
    assert (planned.actions, ready(planned)) == ((), ("False", "MorePartitions"))


def test_replicas_on_their_way_are_not_asked_for_again() -> None:
    moving = topic(each=PartitionSeen(0, (0,), (0,), moving=True))
    planned = alone(resource(replication_factor=2), moving)
    assert (planned.actions, ready(planned)) == ((), ("True", "Moving"))


@pytest.mark.parametrize(("partition", "expected"), [
    (PartitionSeen(-1, (0,), (0,)), ("False", "NoLeader")),
    (PartitionSeen(0, (0, 1), (0,)), ("True", "Serving")),
])
def test_readiness_says_what_is_missing(partition: PartitionSeen, expected: tuple[str, str]) -> None:
    assert ready(alone(resource(), topic(each=partition))) == expected


def test_the_oldest_resource_wins_and_the_other_is_told() -> None:
    old, young = resource("a"), resource("b", created="2026-01-02T00:00:00Z", partitions=9)
    lost = plan(young, [young, old], topic(1))
    assert (lost.actions, ready(lost)) == ((), ("False", "ResourceConflict"))
    assert [note.reason for note in lost.notes] == ["ResourceConflict"]
    assert "team/a" in lost.notes[0].message
    assert lost.status is not None and lost.status["topicId"] is None
    told = replace(young, status={"conditions": [
        {"type": "ResourceConflict", "message": "topic orders is described by the older resource team/a"}]})
    assert plan(told, [told, old], topic(1)).notes == ()
    assert plan(old, [young, old], topic(1)).actions == ()
    assert plan(young, [young, replace(old, managed=False)], topic(1)).actions == (Grow(9),)


def test_unmanaged_and_paused_resources_do_nothing() -> None:
    let_go = alone(resource(managed=False, partitions=9, deletion_policy=DELETE), topic(1))
    assert (let_go.actions, let_go.finalizer, ready(let_go)) == ((), None, ("Unknown", "Unmanaged"))
    paused = alone(resource(paused=True, partitions=9), topic(1))
    assert (paused.actions, ready(paused)) == ((), ("False", "Differs"))
    assert ("Paused", "True") in [(each.type, each.status) for each in paused.conditions]


def test_a_topic_of_the_cluster_s_own_is_left_alone() -> None:
    planned = alone(resource(partitions=60), topic(50, internal=True))
    assert (planned.actions, ready(planned)) == ((), ("False", "InternalTopic"))


def test_a_topic_that_somebody_deleted_is_made_anew_with_a_warning() -> None:
    planned = alone(resource(status={"ownedTopicId": "id-0"}), None)
    assert planned.actions == (Create(1, -1, {}),)
    assert [(note.type, note.reason) for note in planned.notes] == [("Warning", "TopicGone")]
    assert [note.reason for note in alone(resource(adopts=True, status={"ownedTopicId": "id-0"}), topic()).notes] == [
        "TopicReplaced"]


# --- what exists already --------------------------------------------------------------------------------------------


def test_a_topic_that_exists_is_not_changed_by_a_resource_that_did_not_make_it() -> None:
    late = resource(partitions=9, config={"retention.ms": "1"}, deletion_policy=DELETE, status={})
    planned = alone(late, topic())
    assert (planned.actions, planned.finalizer, ready(planned)) == ((), None, ("False", "NotAdopted"))
    assert [note.reason for note in planned.notes] == ["NotAdopted"]
    assert "hapax.dev/adopt=true" in planned.notes[0].message
    assert planned.status is not None and planned.status["partitions"] is None and "configured" not in planned.status
    told = replace(late, status={"conditions": [{"type": "NotAdopted", "message": planned.notes[0].message}]})
    assert alone(told, topic()).notes == ()
    paused = alone(resource(status={}, paused=True), topic())
    assert ready(paused) == ("False", "NotAdopted") and paused.conditions[-1].type == "Paused"


def test_its_deletion_keeps_the_records_of_a_topic_that_it_did_not_adopt() -> None:
    planned = alone(going(status={}), topic())
    assert (planned.actions, planned.finalizer) == ((), False)
    loose = resource(deletion_policy=DELETE, finalizers=(FINALIZER,), status={})
    assert alone(loose, topic()).finalizer is False, "another client was faster than the first creation"


def test_it_is_adopted_by_an_annotation_and_stays_so_without_it() -> None:
    planned = alone(resource(partitions=2, adopts=True, deletion_policy=DELETE, status={}), topic())
    assert (planned.actions, planned.finalizer) == ((Grow(2),), True)
    adopted = alone(resource(partitions=2, adopts=True, status={}), topic(2)).status
    assert adopted is not None and adopted["ownedTopicId"] == "id-1"
    assert alone(resource(partitions=3, status=adopted), topic(2)).actions == (Grow(3),)


def test_a_topic_that_it_made_is_its_own_before_its_status_says_so() -> None:
    mine = topic(made_by="uid-team-orders")
    assert ready(alone(resource(status={}), mine)) == ("True", "AsDescribed")
    assert alone(going(status={}), mine).actions == (Delete("id-1"),)
    assert ready(alone(resource(status={}), topic(made_by="uid-team-other"))) == ("False", "NotAdopted")


def test_what_an_earlier_release_adopted_stays_adopted() -> None:
    """It wrote the topic's id into every status, and `configured` into that of a resource that acted."""
    acted, looked = {"topicId": "id-1", "configured": []}, {"topicId": "id-1"}
    assert ready(alone(resource(status=acted), topic())) == ("True", "AsDescribed")
    assert alone(going(status=acted), topic()).actions == (Delete("id-1"),)
    assert ready(alone(resource(status=looked), topic())) == ("False", "NotAdopted")
    assert ready(alone(resource(status={**acted, "ownedTopicId": "id-0"}), topic())) == ("False", "NotAdopted")


@pytest.mark.parametrize("away", [
    {"managed": False}, {"outside": "forbidden"}, {"paused": True},
    {"created": "2026-02-01T00:00:00Z"}])  # fmt: skip
def test_what_an_earlier_release_adopted_is_its_own_after_a_time_without_it(away: dict[str, Any]) -> None:
    """The status of such a time has no topic's id, or that of whatever topic there is."""
    acted: dict[str, Any] = {"topicId": "id-1", "configured": []}
    former = resource(status=acted, **away)
    older = resource("other", status={})
    replaced = replace(topic(), topic_id="id-2")
    for seen, left in ((topic(), ("True", "AsDescribed")), (replaced, ("False", "NotAdopted"))):
        planned = plan(former, [former, older] if "created" in away else [former], seen)
        assert planned.status is not None and not planned.actions
        status = {name: value for name, value in (acted | dict(planned.status)).items() if value is not None}
        assert ready(alone(resource(status=status), seen)) == left


@pytest.mark.parametrize("status", [
    {"topicId": "id-1"}, {"topicId": "id-1", "ownedTopicId": "id-0", "configured": []}])  # fmt: skip
@pytest.mark.parametrize("away", [{"managed": False}, {"outside": "forbidden"}])
def test_a_topic_that_the_status_only_shows_does_not_become_its_own(
    status: dict[str, Any], away: dict[str, Any]
) -> None:
    planned = alone(resource(status=status, **away), topic())
    assert planned.status is not None
    after = {name: value for name, value in (status | dict(planned.status)).items() if value is not None}
    assert ready(alone(resource(status=after), topic())) == ("False", "NotAdopted")


def test_a_topic_that_was_replaced_needs_the_annotation_again() -> None:
    planned = alone(resource(status={"ownedTopicId": "id-0", "configured": []}), topic())
    assert (planned.actions, ready(planned)) == ((), ("False", "NotAdopted"))
    assert "deleted and created again" in planned.conditions[0].message


# --- deletion -------------------------------------------------------------------------------------------------------


def test_the_finalizer_is_there_only_while_it_protects_something() -> None:
    held = resource(deletion_policy=DELETE)
    assert alone(held, topic()).finalizer is True
    assert alone(resource(deletion_policy=DELETE, finalizers=(FINALIZER,)), topic()).finalizer is None
    for lets_go in ({"deletion_policy": RETAIN}, {"managed": False}, {"paused": True}):
        loose = resource(**{"deletion_policy": DELETE, "finalizers": (FINALIZER,), **lets_go})
        assert alone(loose, topic()).finalizer is False


def going(**fields: Any) -> TopicResource:
    return resource(**{
        "deleting": True, "finalizers": (FINALIZER,), "deletion_policy": DELETE, "status": {"ownedTopicId": "id-1"},
        **fields})


def test_delete_deletes_the_topic_that_it_knew_and_then_lets_go() -> None:
    assert alone(going(), topic()).actions == (Delete("id-1"),)
    done = alone(going(), None)
    assert (done.actions, done.finalizer, done.status) == ((), False, None)


@pytest.mark.parametrize("fields", [
    {"deletion_policy": RETAIN}, {"managed": False}, {"paused": True}, {"status": {"ownedTopicId": "another"}},
    {"status": {}}, {"status": {"topicId": "id-1"}}, {"status": {}, "adopts": True},
])
def test_whatever_is_in_doubt_keeps_the_records(fields: dict[str, Any]) -> None:
    planned = alone(going(**fields), topic())
    assert (planned.actions, planned.finalizer) == ((), False)


def test_a_topic_that_another_resource_describes_is_not_deleted() -> None:
    old, young = going(), resource("b", created="2026-01-02T00:00:00Z")
    assert plan(old, [old, young], topic()).actions == ()
    assert plan(old, [old, young], topic()).finalizer is False
    heir = replace(young, meta=replace(young.meta, deleting=True))
    assert plan(old, [old, heir], topic()).actions == (Delete("id-1"),)


def test_a_topic_is_not_deleted_by_a_resource_that_lost_the_conflict() -> None:
    old, young = resource("a"), going(created="2026-01-02T00:00:00Z")
    assert plan(young, [old, young], topic()).actions == ()


# --- whatever comes -------------------------------------------------------------------------------------------------

_resources = st.builds(
    resource, name=st.sampled_from("abc"), created=st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
    partitions=st.integers(1, 3), replication_factor=st.sampled_from([-1, 1, 2]), managed=st.booleans(),
    paused=st.booleans(), deleting=st.booleans(), deletion_policy=st.sampled_from([RETAIN, DELETE]),
    finalizers=st.sampled_from([(), (FINALIZER,), ("other",)]), config=st.sampled_from([{}, {"segment.ms": "7"}]),
    adopts=st.booleans(), status=st.sampled_from([
        {}, {"ownedTopicId": "id-1"}, {"ownedTopicId": "id-0"}, {"topicId": "id-1"},
        {"topicId": "id-0", "configured": ["retention.ms"]}, {"topicId": "id-1", "configured": ["retention.ms"]}]),
)
_topics = st.one_of(st.none(), st.builds(
    topic, partitions=st.integers(1, 3), replicas=st.sampled_from([(0,), (0, 1)]), internal=st.booleans(),
    made_by=st.sampled_from(["", "uid-team-a", "uid-team-b"]), config=st.sampled_from([{}, {"retention.ms": "1"}])))


def recorded(each: TopicResource, seen: TopicSeen) -> bool:
    """Whether something that is stored says that the resource made or adopted the topic."""
    status = each.status
    former = "configured" in status and "ownedTopicId" not in status and status.get("topicId") == seen.topic_id
    return seen.made_by == each.meta.uid or status.get("ownedTopicId") == seen.topic_id or former


@given(st.lists(_resources, min_size=1, max_size=3, unique_by=lambda each: each.meta.uid), _topics)
def test_at_most_one_resource_acts_and_only_where_it_may(
    claimants: list[TopicResource], seen: TopicSeen | None
) -> None:
    acting = [each for each in claimants if plan(each, claimants, seen).actions]
    first = owner(claimants)
    assert [each.meta.uid for each in acting] in ([], [first.meta.uid if first else None])
    for each in claimants:
        planned = plan(each, claimants, seen)
        if planned.actions:
            assert each.acts and not (seen is not None and seen.internal)
            assert seen is None or recorded(each, seen) or each.meta.adopts
        for action in planned.actions:
            if isinstance(action, Delete):
                assert each.meta.deleting and each.deletion_policy == DELETE
                assert seen is not None and action.topic_id == seen.topic_id and recorded(each, seen)
                assert FINALIZER in each.meta.finalizers
            if isinstance(action, Grow):
                assert seen is not None and action.partitions > len(seen.partitions)
        if each.meta.deleting and FINALIZER in each.meta.finalizers and not planned.actions:
            assert planned.finalizer is False  # nothing waits for ever

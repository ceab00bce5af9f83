"""Plans for Mirrors: from resources, copiers and their reports to actions, conditions and events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.access.resources import ResourceType
from hapax_operator.mirror_pods import DeploymentSeen, PodSeen, UserSeen, deployment, fingerprint_of, user
from hapax_operator.mirror_reports import Report, TopicState
from hapax_operator.mirror_resource import MirrorResource, Names, forbidden, pattern_of
from hapax_operator.namespace_policy import UNRESTRICTED, read_policy
from hapax_operator.plan_mirror import MirrorPlan, MirrorSeen, Stop, WriteDeployment, WriteUser, plan_mirror
from hapax_operator.resources import PAUSE

from .mirror_bodies import COPIERS, mirror

OWN = ["{namespace}.*", "hapax-copy.{namespace}.*"]
POLICY = read_policy({"namespaces": [
    {"names": ["*"], "topics": OWN, "groups": OWN, "transactionalIds": OWN},
    {"names": ["shop"], "topics": ["legacy"]}]})
PODS = (PodSeen("a", "uid-a", "10.0.0.1", True), PodSeen("b", "uid-b", "10.0.0.2", True))
STARTED = 1_767_225_600_000


def report(records: int = 0, *topics: TopicState, started: int = STARTED, error: str = "") -> Report:
    return Report(started, records, error, topics=topics)


def running(described: MirrorResource, own: UserSeen | None = None, **changes: Any) -> DeploymentSeen:
    """A Deployment that is as described."""
    wanted, copies = fingerprint_of(deployment(described, COPIERS, own)), described.replicas
    return DeploymentSeen("5", True, wanted, copies, True, copies, copies, copies)._replace(**changes)


def seen(described: MirrorResource, **fields: Any) -> MirrorSeen:
    pods = PODS[:described.replicas]
    return replace(MirrorSeen(
        copiers=COPIERS, deployment=running(described), pods=pods,
        reports={each.uid: report(1, TopicState("shop.orders", 1)) for each in pods}), **fields)


def plan(described: MirrorResource, found: MirrorSeen | None = None, *others: MirrorResource) -> MirrorPlan:
    return plan_mirror(described, [described, *others], found or seen(described), POLICY)


def condition(planned: MirrorPlan, kind: str = "Ready") -> tuple[str, str]:
    return next(((each.status, each.reason) for each in planned.conditions if each.type == kind), ("", ""))


def test_a_new_mirror_gets_its_copiers() -> None:
    described = mirror(replicas=2)
    planned = plan(described, MirrorSeen(copiers=COPIERS))
    assert planned.actions == (WriteDeployment(deployment(described, COPIERS, None), ""),)
    assert condition(planned) == ("False", "Starting") and condition(planned, "Progressing") == ("True", "RollingOut")
    assert condition(planned, "SourceReachable") == ("Unknown", "NoReport")


def test_a_mirror_that_copies_is_ready_and_tells_how_far_it_is() -> None:
    described = mirror(replicas=2, prefix="shop.", topics=["a", "b"])
    planned = plan(described, seen(described, reports={
        "uid-a": report(7, TopicState("a", 2, 10, 4_999), TopicState("b", 1, 3, 100)),
        "uid-b": report(5, TopicState("b", 2, 20, 7_000))}))
    assert planned.actions == ()
    assert [condition(planned, each) for each in ("Ready", "Progressing", "SourceReachable", "Blocked")] == [
        ("True", "Copying"), ("False", "Complete"), ("True", "Answers"), ("False", "NoTopic")]
    assert planned.status is not None
    assert planned.status["lag"] == {"records": 33, "seconds": 7}
    assert (planned.status["topicCount"], planned.status["partitions"], planned.status["recordsCopied"]) == (2, 5, 12)
    assert planned.status["topics"] == [
        {"name": "b", "target": "shop.b", "partitions": 3, "lagRecords": 23, "lagSeconds": 7},
        {"name": "a", "target": "shop.a", "partitions": 2, "lagRecords": 10, "lagSeconds": 4}]
    assert planned.status["group"] == "hapax-copy.shop.orders"
    assert [each.reason for each in planned.notes] == ["Copying"]


def test_a_mirror_of_topics_that_are_not_there_says_so() -> None:
    """A name may be misspelt."""
    described = mirror()
    planned = plan(described, seen(described, reports={"uid-a": report()._replace(matching=0)}))
    assert condition(planned) == ("True", "NothingToCopy")
    assert "the source has none of spec.topics" in planned.conditions[0].message


@pytest.mark.parametrize(("matching", "why"), [(None, "have not connected"), (3, "share out the topics that match, 3")])
def test_a_copier_that_has_just_started_does_not_say_that_there_is_nothing_to_copy(
    matching: int | None, why: str
) -> None:
    """It has no partitions before its group gives it some."""
    described = mirror()
    planned = plan(described, seen(described, reports={"uid-a": report()._replace(matching=matching)}))
    assert condition(planned) == ("False", "Starting") and why in planned.conditions[0].message
    assert planned.notes == ()


@pytest.mark.parametrize("change", [{"fingerprint": "other"}, {"wanted": 7}])
def test_copiers_that_are_not_as_described_are_changed_at_the_version_that_was_seen(change: dict[str, Any]) -> None:
    described = mirror()
    planned = plan(described, seen(described, deployment=running(described, **change)))
    assert planned.actions == (WriteDeployment(deployment(described, COPIERS, None), "5"),)


def test_the_last_figures_stay_and_the_lag_goes_while_a_copier_does_not_answer() -> None:
    described = mirror(replicas=2)
    status = plan(described, seen(described, reports={"uid-a": report(1, TopicState("shop.orders", 1))})).status
    assert status is not None and status["lag"] is None and "topics" not in status and "partitions" not in status
    assert condition(plan(described, seen(described, reports={}))) == ("False", "NoReport")


def test_a_topic_that_is_blocked_is_named_with_its_reason_and_told_once() -> None:
    described = mirror(replicas=2)
    blocked = TopicState("x", 1, 5, 9, "Truncated", "x-0: the source has lost records", True)
    found = seen(described, reports={"uid-a": report(1, blocked), "uid-b": report(1, TopicState("x", 2, 1, 1))})
    planned = plan(described, found)
    assert condition(planned) == ("False", "Blocked") and condition(planned, "Blocked") == ("True", "Truncated")
    (told,) = (each for each in planned.conditions if each.type == "Blocked")
    assert told.message == "x: x-0: the source has lost records"
    assert planned.status is not None and planned.status["topics"] == [{
        "name": "x", "target": "x", "partitions": 3, "lagRecords": 6, "lagSeconds": 0,
        "error": "x-0: the source has lost records", "blocked": True}]
    assert [each.reason for each in planned.notes] == ["Blocked"]
    again = mirror(replicas=2, status={"conditions": [each._asdict() for each in planned.conditions]})
    assert plan(again, found).notes == ()


def test_a_source_is_away_when_no_copier_reaches_it() -> None:
    described = mirror(replicas=2)
    copied = report(1, TopicState("shop.orders", 1))
    one = seen(described, reports={"uid-a": report(error="no answer"), "uid-b": copied})
    assert condition(plan(described, one)) == ("True", "Copying")
    none = seen(described, reports={"uid-a": report(error="no answer"), "uid-b": report(error="no answer")})
    for found in (none, replace(none, deployment=running(described, ready=0))):
        planned = plan(described, found)
        assert condition(planned) == condition(planned, "SourceReachable") == ("False", "SourceUnreachable")


def test_a_target_that_is_away_is_named_too() -> None:
    described = mirror()
    planned = plan(described, seen(described, deployment=running(described, ready=0), reports={
        "uid-a": Report(STARTED, 0, target_error="no answer")}))
    assert condition(planned) == ("False", "TargetUnreachable") and planned.conditions[0].message == "no answer"
    assert condition(planned, "SourceReachable")[0] == "True"


def test_copiers_that_do_not_come_up_say_why() -> None:
    described = mirror()
    pods = (PodSeen("a", "uid-a", problem="Back-off pulling image"),)
    planned = plan(described, seen(described, deployment=running(
        described, ready=0, failure="it took too long"), pods=pods, reports={}))
    assert condition(planned) == ("False", "CopiersNotReady") and condition(planned, "Progressing")[1] == "Failed"
    assert planned.conditions[0].message == "0 of 1 copiers are ready: it took too long; Back-off pulling image"


def test_a_suspended_mirror_has_no_copiers() -> None:
    described = mirror(suspend=True, replicas=3)
    planned = plan(described, seen(described, deployment=running(mirror(replicas=3)), pods=(), reports={}))
    (action,) = planned.actions
    assert isinstance(action, WriteDeployment) and action.body["spec"]["replicas"] == 0
    assert condition(planned) == ("False", "Suspended")
    stopped = running(described, wanted=0, pods=0, updated=0, ready=0)
    rested = plan(described, seen(described, deployment=stopped, pods=(), reports={}))
    assert rested.actions == () and condition(rested, "Progressing") == ("False", "Complete")


def test_a_paused_mirror_is_observed_only() -> None:
    described = mirror(annotations={PAUSE: "true"})
    planned = plan(described, MirrorSeen(copiers=COPIERS))
    assert planned.actions == () and planned.notes == () and condition(planned, "Paused")[0] == "True"


def test_a_deleted_mirror_changes_nothing() -> None:
    assert plan(mirror(deleting=True), MirrorSeen(copiers=COPIERS)) == MirrorPlan()


# --- what it may write ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "why"), [
    ({"topics": ["pay.orders"]}, "the topic pay.orders"),
    ({"topics": ["*"]}, "the topics *"),
    ({"topics": ["sho*"]}, "the topics sho*"),
    ({"topics": ["legacy*"]}, "the topics legacy*"),
    ({"topics": ["shop.*"], "prefix": "x."}, "the topics x.shop.*"),
    ({"topics": ["shop.orders"], "groups": ["other"]}, "the group other"),
    ({"topics": ["shop.orders"], "groups": ["shop*"]}, "the groups shop*"),
])
def test_what_the_namespace_may_not_own_is_not_written(spec: dict[str, Any], why: str) -> None:
    described = mirror(**spec)
    planned = plan(described)
    assert planned.actions == (Stop("5"),), "also one that ran before the policy"
    assert condition(planned) == ("False", "OutsidePolicy")
    assert planned.conditions[0].message == f"namespace shop may not own {why}"
    assert planned.status is not None and planned.status["lag"] is None
    assert [each.reason for each in planned.notes] == ["OutsidePolicy"]
    assert plan(replace(described, meta=replace(described.meta, paused=True))).actions == (Stop("5"),)


@pytest.mark.parametrize("spec", [
    {"topics": ["legacy"]}, {"topics": ["a", "b*"], "prefix": "shop."}, {"topics": ["*"], "prefix": "shop.old."},
    {"topics": ["shop.*"], "groups": ["shop.readers", "shop.x*"]},
    {"topics": ["*"], "groups": ["*"], "target": {"bootstrapServers": "elsewhere:9092"}},
])
def test_what_the_namespace_may_own_is_written(spec: dict[str, Any]) -> None:
    assert forbidden(mirror(**spec), POLICY) == ""
    assert condition(plan(mirror(**spec))) == ("True", "Copying")


def test_what_it_keeps_on_the_target_is_the_namespace_s() -> None:
    def judged(**owns: list[str]) -> str:
        return forbidden(mirror(partitioning="ByKey"), read_policy({"namespaces": [{"names": ["*"], **owns}]}))

    assert judged(topics=["shop.*"]).endswith("may not own the topics hapax-copy.shop.orders.*")
    assert judged(topics=OWN, groups=["shop.*"]).endswith("may not own the group hapax-copy.shop.orders")
    assert judged(topics=OWN, groups=OWN).endswith("may not own the transactional ids hapax-copy.shop.orders.*")
    assert judged(topics=OWN, groups=OWN, transactionalIds=OWN) == ""


@given(st.text("ab.*", min_size=1, max_size=4), st.text("ab.", max_size=2), st.text("ab.", min_size=1, max_size=6))
def test_a_pattern_copies_to_what_the_policy_judges(topic: str, prefix: str, name: str) -> None:
    """Whatever the command's regular expression matches is among what was judged."""
    if "*" in topic[:-1]:
        return
    described = mirror(topics=[topic], prefix=prefix)
    (written,) = described.written
    if re_matches(pattern_of(described.topics), name):
        assert written.meets(Names(prefix + name, prefix=False))
    else:
        assert not Names.read(topic).meets(Names(name, prefix=False))


def re_matches(pattern: str, name: str) -> bool:
    return re2.fullmatch(pattern, name) is not None


# --- two Mirrors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("younger", "conflicts"), [
    ({}, True), ({"topics": ["shop.*"]}, True), ({"topics": ["shop.other"]}, False), ({"prefix": "shop."}, False),
    ({"topics": ["orders"], "prefix": "shop."}, True), ({"target": {"bootstrapServers": "other:9092"}}, False),
    ({"topics": ["shop.*"], "exclude": ["shop.orders"]}, False),
    ({"topics": ["shop.*"], "exclude": ["shop.o*"]}, False),
    ({"topics": ["shop.*"], "exclude": ["shop.orders.*"]}, True),
    ({"topics": ["shop.*"], "exclude": ["shop.other"]}, True),
    ({"topics": ["orders"], "prefix": "shop.", "exclude": ["shop.orders"]}, True),
    ({"topics": ["order*"], "prefix": "shop.", "exclude": ["orders"]}, False),
])
def test_two_mirrors_do_not_copy_to_one_topic(younger: dict[str, Any], conflicts: bool) -> None:
    """Each would copy every record."""
    older = mirror("first")
    second = mirror("second", created="2026-01-02T00:00:00Z", **younger)
    planned = plan(second, None, older)
    assert (condition(planned)[1] == "ResourceConflict") == conflicts
    assert (planned.actions == (Stop("5"),)) == conflicts
    assert condition(plan(older, None, second)) == ("True", "Copying")


@pytest.mark.parametrize(("older", "younger", "conflicts"), [
    (["a:1", "b:1"], ["b:1", "a:1"], True), (["a:1"], ["b:1", "a:1"], True), (["a:1"], ["a:2", "b:1"], False),
])
def test_a_target_is_known_by_each_of_its_addresses(older: list[str], younger: list[str], conflicts: bool) -> None:
    first = mirror("first", target={"bootstrapServers": ",".join(older)})
    second = mirror("second", created="2026-01-02T00:00:00Z", target={"bootstrapServers": ",".join(younger)})
    assert (condition(plan(second, None, first))[1] == "ResourceConflict") == conflicts


def test_a_topic_that_the_older_mirror_leaves_out_is_free() -> None:
    """It may be copied with other settings, such as by key."""
    older = mirror("first", topics=["shop.*"], exclude=["shop.orders", "shop.big-*"])
    for topics, conflicts in (["shop.orders"], False), (["shop.big-one", "shop.big-a*"], False), (["shop.b*"], True):
        second = mirror("second", created="2026-01-02T00:00:00Z", topics=topics)
        assert (condition(plan(second, None, older))[1] == "ResourceConflict") == conflicts


def test_an_older_mirror_that_may_not_be_or_is_being_deleted_holds_up_none() -> None:
    second = mirror("second", created="2026-01-02T00:00:00Z")
    outside = mirror("first", topics=["shop.orders", "pay.orders"])
    assert condition(plan(second, None, outside)) == ("True", "Copying")
    assert condition(plan(second, None, mirror("first", deleting=True))) == ("True", "Copying")


# --- its own user -----------------------------------------------------------------------------------------------------


def logging_in(described: MirrorResource, known: UserSeen | None) -> MirrorSeen:
    return seen(described, authorises=True, user=known, deployment=running(described, known or UserSeen("", True, "")))


def test_copiers_log_in_with_a_user_of_their_own() -> None:
    described = mirror()
    planned = plan(described, logging_in(described, None))
    assert planned.actions == (WriteUser(user(described, ""), ""),) and condition(planned) == ("False", "UserNotReady")
    made = UserSeen("3", True, fingerprint_of(user(described, "")), False, "it has no password yet")
    planned = plan(described, logging_in(described, made))
    assert planned.actions == () and "it has no password yet" in planned.conditions[0].message
    assert condition(plan(described, logging_in(described, made._replace(ready=True)))) == ("True", "Copying")
    changed = plan(described, logging_in(described, made._replace(fingerprint="former")))
    assert changed.actions == (WriteUser(user(described, ""), "3"),)


def test_copiers_start_once_their_user_is_ready_and_again_with_each_password() -> None:
    described = mirror()
    made = UserSeen("3", True, fingerprint_of(user(described, "")), False, "", "2026-01-01T00:00:00Z")
    assert plan(described, replace(logging_in(described, made), deployment=None)).actions == ()
    ready = made._replace(ready=True)
    (action,) = plan(described, replace(logging_in(described, ready), deployment=None)).actions
    assert isinstance(action, WriteDeployment)
    rotated = replace(logging_in(described, ready), user=ready._replace(password_since="2026-01-02T00:00:00Z"))
    (action,) = plan(described, rotated).actions
    assert isinstance(action, WriteDeployment) and action.version == "5"
    away = replace(logging_in(described, ready), user=made._replace(password_since=""))
    assert plan(described, away).actions == (), "what runs goes on"
    suspended = mirror(suspend=True)
    assert plan(suspended, replace(logging_in(suspended, made), deployment=running(described, made))).actions


def test_new_copiers_wait_for_the_rights_that_they_need() -> None:
    """Otherwise the target refuses them at first."""
    described = mirror(topics=["shop.orders", "shop.more"])
    made = UserSeen("3", True, fingerprint_of(user(mirror(), "")), True)
    found = replace(logging_in(described, made), deployment=running(mirror(), made))
    assert plan(described, found).actions == (WriteUser(user(described, ""), "3"),)
    rights = made._replace(fingerprint=fingerprint_of(user(described, "")))
    assert plan(described, replace(found, user=rights._replace(ready=False))).actions == ()
    (action,) = plan(described, replace(found, user=rights)).actions
    assert isinstance(action, WriteDeployment)


def test_a_user_of_somebody_else_is_not_used() -> None:
    described = mirror()
    planned = plan(described, logging_in(described, UserSeen("3", False, "", True)))
    assert planned.actions == () and condition(planned) == ("False", "NotOurs")


@pytest.mark.parametrize("target", [{"secret": {"name": "mine"}}, {"bootstrapServers": "other:9092"}])
def test_a_mirror_with_settings_of_its_own_gets_no_user(target: dict[str, Any]) -> None:
    described = mirror(target=target)
    planned = plan(described, seen(described, authorises=True))
    assert planned.actions == () and condition(planned) == ("True", "Copying")
    assert planned.status is not None and planned.status["user"] is None


def test_a_deployment_of_somebody_else_is_left_alone() -> None:
    described = mirror()
    for found in (running(described, ours=False), running(described, ours=False, fingerprint="other")):
        planned = plan(described, seen(described, deployment=found))
        assert planned.actions == () and condition(planned) == ("False", "NotOurs")
    outside = mirror(topics=["pay.orders"])
    assert plan(outside, seen(outside, deployment=running(outside, ours=False))).actions == ()


def test_what_the_operator_lacks_is_said() -> None:
    described = mirror()
    refused = plan(described, seen(described, refused="403: deployments is forbidden"))
    assert condition(refused) == ("False", "Forbidden") and "mirrors.namespaces" in refused.conditions[0].message
    assert condition(plan(described, seen(described, copiers=replace(COPIERS, bootstrap=""))))[1] == "TargetUnknown"
    assert condition(plan(described, seen(described, copiers=replace(COPIERS, image=""))))[1] == "ImageUnknown"


# --- counting ---------------------------------------------------------------------------------------------------------


def test_records_are_counted_over_restarts_of_copiers() -> None:
    status: dict[str, Any] = {}

    def look(*reports: Report | None) -> int:
        described = mirror(replicas=2, status=status)
        found = seen(described, reports={
            pod.uid: each for pod, each in zip(PODS, reports, strict=True) if each is not None})
        told = plan(described, found).status
        assert told is not None
        status.update(told)
        return int(status["recordsCopied"])

    assert look(report(10), report(5)) == 15
    assert look(report(12), report(5)) == 17
    assert look(report(12), None) == 17, "it does not answer"
    assert look(report(12), report(9)) == 21, "and is not counted again"
    assert look(report(3, started=STARTED + 60_000), report(9)) == 24, "another process begins at 0"
    assert look(report(3, started=STARTED + 60_000), report(9)) == 24


def test_a_policy_without_rules_permits_everything() -> None:
    assert forbidden(mirror(topics=["*"], groups=["*"]), UNRESTRICTED) == ""
    assert not POLICY.owns("shop", ResourceType.TOPIC, "", prefix=True)

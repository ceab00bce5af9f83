"""Whose a resource is among several clusters."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.runtime import telemetry
from hapax.runtime.clock import SystemClock
from hapax_operator.api import KubeRefused, KubeUnavailable
from hapax_operator.clusters import Clusters
from hapax_operator.neighbours import first_look
from hapax_operator.reconciler import Reconciler
from hapax_operator.resource_index import ResourceIndex
from hapax_operator.resources import PRODUCERS, SPARK_JOBS, TOPICS, Meta, Ref, read_meta, read_topic
from hapax_operator.spark_jobs import JobLook
from hapax_operator.status import StatusWriter

ONE, TWO = "a.hapax", "b.log"


def clusters(own: str, *others: str) -> Clusters:
    made = Clusters(own)
    made.saw({"metadata": {"namespace": each.split(".")[0], "name": each.split(".")[1] + "-broker"}}
             for each in (own, *others))
    return made


def body(name: str = "orders", label: str = "", recorded: str = "", namespace: str = "team") -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": {"hapax.dev/cluster": label}},
        "spec": {"topicName": "orders"}, "status": {"cluster": recorded}}


def meta(label: str = "", recorded: str = "", namespace: str = "team") -> Meta:
    return read_meta(TOPICS, body(label=label, recorded=recorded, namespace=namespace))


def test_the_only_cluster_takes_what_names_none() -> None:
    assert clusters(ONE).owns(meta()) and not clusters(ONE).unnamed(meta())
    assert not clusters(ONE, TWO).owns(meta()) and clusters(ONE, TWO).unnamed(meta())
    assert Clusters().owns(meta(TWO)) and not Clusters().unnamed(meta()), "an operator without a name acts on all"


def test_the_label_counts_before_what_the_status_says() -> None:
    assert clusters(ONE, TWO).owns(meta(ONE)) and not clusters(TWO, ONE).owns(meta(ONE))
    assert clusters(ONE, TWO).owns(meta(recorded=ONE)) and not clusters(TWO, ONE).owns(meta(recorded=ONE))
    assert clusters(ONE, TWO).owns(meta(ONE, TWO)) and not clusters(TWO, ONE).owns(meta(ONE, TWO))
    assert not clusters(ONE).owns(meta(TWO)), "its cluster may be away"


def test_a_cluster_s_own_namespace_is_its_own() -> None:
    here = meta(namespace="a")
    assert clusters(ONE, TWO).owns(here) and not clusters(ONE, TWO).unnamed(here)
    assert not clusters(TWO, ONE).owns(here) and not clusters(TWO, ONE).unnamed(here)
    for named in (meta(TWO, namespace="a"), meta(recorded=TWO, namespace="a")):
        assert clusters(TWO, ONE).owns(named) and not clusters(ONE, TWO).owns(named)
    assert clusters(ONE, TWO, "a.second").unnamed(here) and not clusters(ONE, TWO, "a.second").owns(here)


@given(st.sampled_from(["", ONE, TWO, "c.gone"]), st.sampled_from(["", ONE, TWO]), st.sampled_from(["team", "a", "b"]))
def test_two_clusters_that_know_each_other_never_act_on_the_same(label: str, recorded: str, namespace: str) -> None:
    resource = meta(label, recorded, namespace)
    owners = [each for each in (clusters(ONE, TWO), clusters(TWO, ONE)) if each.owns(resource)]
    assert len(owners) <= 1
    assert bool(owners) or label == "c.gone" or clusters(ONE, TWO).unnamed(resource)


def test_the_question_is_the_same_from_every_operator() -> None:
    for each in (meta(), meta("c.gone")):
        assert clusters(ONE, TWO).question(each) == clusters(TWO, ONE).question(each)
        assert "a.hapax, b.log" in clusters(ONE, TWO).question(each).message


def test_a_label_that_names_no_cluster_is_asked_about_until_one_has_taken_the_resource() -> None:
    for known in (clusters(ONE), clusters(ONE, TWO)):
        assert known.unnamed(meta("c.gone")) and known.unnamed(meta("c.gone", ONE))
        asked = known.question(meta("c.gone"))
        assert asked.reason == "ClusterUnknown" and "names c.gone, which is not there" in asked.message
        assert not known.unnamed(meta("c.gone", "c.gone")), "it may be away"
        assert not known.unnamed(meta(recorded="c.gone"))
    assert not clusters(ONE, TWO).unnamed(meta(TWO)) and not Clusters().unnamed(meta("c.gone"))


def test_what_belongs_to_another_cluster_is_no_claimant() -> None:
    index = ResourceIndex(clusters(ONE, TWO))
    for each in (body("mine", ONE), body("theirs", TWO), body("whose")):
        index.put(read_topic(each))
    assert [each.meta.ref.name for each in index.claimants("orders")] == ["mine"]
    assert [each.meta.ref.name for each in index.unnamed("orders")] == ["whose"]
    assert len(index.all()) == 3


@pytest.mark.parametrize(("label", "looks"), [(ONE, 1), (TWO, 0), ("", 0)])
async def test_a_spark_job_belongs_where_its_producer_does(label: str, looks: int) -> None:
    conditions: list[list[str]] = []

    class Api:
        async def put_status(self, _: Meta, changes: dict[str, Any]) -> dict[str, Any]:
            conditions.append([each["reason"] for each in changes["conditions"]])
            return job

    class View:
        policies = ()

    made = body("job")
    spec = {"producer": {"name": "orders"}, "image": "i", "job": "j", "checkpoint": {"ephemeral": True}}
    job = {**made, "spec": spec}
    reconciler = Reconciler(
        View(), View(), Api(), SystemClock(), random.Random(1), telemetry.Metrics(), View(),  # type: ignore[arg-type]
        clusters=clusters(ONE, TWO))
    looked = []

    async def look(each: Any) -> JobLook:
        looked.append(each.meta.ref.name)
        return JobLook(0.0)

    reconciler._jobs.look = look  # type: ignore[method-assign]
    reconciler.seen(PRODUCERS, {**body(label=label), "spec": {"transactionalId": "a"}})
    reconciler.seen(SPARK_JOBS, job)
    await reconciler._spark_job(Ref(SPARK_JOBS, "team", "job"))
    assert len(looked) == looks and conditions == ([] if label else [["ClusterNotNamed"]])
    await reconciler.close()


@pytest.mark.parametrize("cluster", ["", ONE])
async def test_a_status_names_the_cluster_that_took_the_resource(cluster: str) -> None:
    written: list[dict[str, Any]] = []

    class Api:
        async def put_status(self, _: Meta, changes: dict[str, Any]) -> dict[str, Any]:
            written.append(changes)
            return body()

    writer = StatusWriter(Api(), SystemClock(), lambda *_: None, cluster)  # type: ignore[arg-type]
    await writer.write(read_topic(body()), {"partitions": 1}, [])
    assert written[0].get("cluster") == (cluster or None)


@pytest.mark.parametrize(("label", "reason", "left"), [
    ("", "ClusterNotNamed", None), ("c.gone", "ClusterUnknown", ONE)])
async def test_a_topic_of_no_cluster_says_so_and_is_not_taken(label: str, reason: str, left: str | None) -> None:
    written: list[dict[str, Any]] = []
    topic = body(label=label, recorded="" if label == "" else ONE)

    class Api:
        async def put_status(self, _: Meta, changes: dict[str, Any]) -> dict[str, Any]:
            written.append(changes)
            return topic

    class View:
        policies = ()

    reconciler = Reconciler(
        View(), View(), Api(), SystemClock(), random.Random(1), telemetry.Metrics(), View(),  # type: ignore[arg-type]
        clusters=clusters(ONE, TWO))
    reconciler.seen(TOPICS, topic)
    await reconciler._topic("orders")
    assert [[each["reason"] for each in changes["conditions"]] for changes in written] == [[reason]]
    assert written[0].get("cluster", left) == left, "it is not this one's, and what it was stays"
    await reconciler.close()


async def test_nothing_is_done_before_the_other_clusters_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is not an answer: without one, each would take its own cluster for the only one."""
    answers: list[Any] = [KubeRefused(403, "brokerpools is forbidden"), KubeUnavailable("away"), {"items": [
        {"metadata": {"namespace": "b", "name": "log-broker"}}]}]

    class Api:
        async def listed(self, _: str, __: str) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr("hapax_operator.neighbours._AGAIN_S", 0.0)
    made = Clusters(ONE)
    await first_look(made, Api())  # type: ignore[arg-type]
    assert not answers and made.others == (TWO,)


async def test_an_operator_looks_for_other_clusters_once_its_own_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases that are installed at one moment: each sees the other, or is seen."""
    monkeypatch.setattr("hapax_operator.neighbours._ANNOUNCED_S", 0.0)
    pools: list[str] = []
    looks = 0

    class Api:
        async def listed(self, path: str, _: str) -> dict[str, Any]:
            nonlocal looks
            looks += 1
            found = [{"metadata": {"namespace": each.split(".")[0], "name": each.split(".")[1] + "-broker"}}
                     for each in pools]
            if looks == 3:
                pools.extend((ONE, TWO))
            return {"items": found}

    api: Any = Api()
    made = Clusters(ONE)
    await first_look(made, api, announces=True)
    assert looks == 4 and made.others == (TWO,)
    # It cannot be made, or there is none to be made: the others are known all the same.
    for announces, most in ((True, 41), (False, 1)):
        pools[:], looks, made = [TWO], 10, Clusters(ONE)
        await first_look(made, api, announces)
        assert looks == 10 + most and made.others == (TWO,)

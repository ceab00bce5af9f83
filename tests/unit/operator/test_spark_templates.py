"""What a SparkJob says of its pods: templates, volumes, places, dependencies, secrets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax_operator.pod_template import merged
from hapax_operator.resources import ProducerResource, read_producer, read_spark_job
from hapax_operator.spark_pods import auth_secret, driver_pod, executor_pod, pod_seen, ui_service
from hapax_operator.spark_work import SparkWork, of_job

SPARK: dict[str, Any] = {"image": "spark:1", "job": "jobs.one", "checkpoint": {"claimName": "claim"}}
ENV = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]


def work(**fields: Any) -> SparkWork:
    producer: ProducerResource = read_producer({
        "metadata": {"namespace": "team", "name": "p", "uid": "u-p"}, "spec": {"transactionalId": "loader"}})
    return of_job(read_spark_job({
        "metadata": {"namespace": "team", "name": "j", "uid": "u-j"},
        "spec": {**SPARK, "producer": {"name": "p"}, **fields}}), producer)


def driver(**fields: Any) -> dict[str, Any]:
    of = work(**fields)
    assert of.spark is not None
    return driver_pod(of, of.spark, 3)


def executor(**fields: Any) -> dict[str, Any] | None:
    of = work(**fields)
    assert of.spark is not None
    return executor_pod(of, of.spark)


def told(body: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in body["spec"]["containers"][0]["env"]}


def conf(body: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = json.loads(told(body)["HAPAX_SPARK_CONF"])
    return found


def test_without_a_word_executors_have_the_image_s_template() -> None:
    assert executor() is None and "HAPAX_SPARK_EXECUTOR_TEMPLATE" not in told(driver())
    found = executor(executorTemplate={"metadata": {"labels": {"team": "a"}}})
    assert found is not None and found["metadata"] == {"labels": {"team": "a"}}


def test_driver_and_executors_have_the_same_environment_volumes_and_places() -> None:
    fields: dict[str, Any] = {
        "env": ENV, "envFrom": [{"secretRef": {"name": "more"}}],
        "volumes": [{"name": "certs", "secret": {"secretName": "certs"}}],
        "volumeMounts": [{"name": "certs", "mountPath": "/certs", "readOnly": True}],
        "tolerations": [{"key": "spark", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"x": 1}}}
    body, template = driver(**fields), executor(**fields)
    assert template is not None and json.loads(told(body)["HAPAX_SPARK_EXECUTOR_TEMPLATE"]) == template
    for each in (body, template):
        (container,), spec = each["spec"]["containers"], each["spec"]
        assert ENV[0] in container["env"] and container["envFrom"] == fields["envFrom"]
        assert fields["volumes"][0] in spec["volumes"] and fields["volumeMounts"][0] in container["volumeMounts"]
        assert (spec["tolerations"], spec["affinity"]) == (fields["tolerations"], fields["affinity"])
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        assert container["securityContext"]["readOnlyRootFilesystem"]


def test_a_template_adds_what_it_wants_and_takes_nothing_that_keeps_drivers_apart() -> None:
    body = driver(driverTemplate={
        "metadata": {
            "name": "mine", "labels": {"team": "a", "hapax.dev/identity": "other", "hapax.dev/spark-run": "9"},
            "annotations": {"hapax.dev/fingerprint": "x", "note": "n"}, "ownerReferences": [{"name": "x"}]},
        "spec": {
            "restartPolicy": "Always", "schedulingGates": [], "priorityClassName": "high",
            "terminationGracePeriodSeconds": 60, "serviceAccountName": "other",
            "containers": [
                {"name": "driver", "image": "other", "args": ["sh"], "resources": {"limits": {"memory": "9Gi"}},
                 "env": [{"name": "HAPAX_SPARK_TRANSACTIONAL_ID", "value": "stolen"}, {"name": "MINE", "value": "1"}]},
                {"name": "beside", "image": "b"}]}})
    plain, metadata, spec = driver(), body["metadata"], body["spec"]
    for name, value in plain["metadata"]["labels"].items():
        assert metadata["labels"][name] == value
    assert metadata["labels"]["team"] == "a" and metadata["annotations"]["note"] == "n"
    assert metadata["annotations"]["hapax.dev/fingerprint"] != "x"
    assert (metadata["name"], metadata["ownerReferences"]) == (
        plain["metadata"]["name"], plain["metadata"]["ownerReferences"])
    assert (spec["restartPolicy"], spec["schedulingGates"]) == ("Never", [{"name": "hapax.dev/fenced"}])
    assert spec["serviceAccountName"] == "hapax-spark"
    assert (spec["priorityClassName"], spec["terminationGracePeriodSeconds"]) == ("high", 60)
    assert [each["name"] for each in spec["containers"]] == ["driver", "beside"]
    assert (spec["containers"][0]["image"], spec["containers"][0]["args"]) == ("spark:1", ["run", "jobs.one"])
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "9Gi"}
    assert (told(body)["HAPAX_SPARK_TRANSACTIONAL_ID"], told(body)["MINE"]) == ("loader", "1")


def test_a_driver_beside_others_is_judged_by_its_own_end() -> None:
    body = driver()
    body["metadata"]["uid"] = "d"
    body["status"] = {"phase": "Failed", "containerStatuses": [
        {"name": "beside", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}},
        {"name": "driver", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}
    assert (pod_seen(body).reason, pod_seen(body).exit_code) == ("OOMKilled", 137)


def test_dependencies_event_logs_and_the_ui_become_settings_which_conf_overrides() -> None:
    found = conf(driver(
        dependencies={"packages": ["a:b:1", "c:d:2"], "repositories": ["https://r"], "jars": ["local:///x.jar"],
                      "pyFiles": ["s3a://b/x.zip", "local:///jobs/y.py"], "files": ["local:///y"]},
        eventLog={"path": "/checkpoint/events"}, ui={"service": True}, conf={"spark.files": "mine"}))
    assert found["spark.jars.packages"] == "a:b:1,c:d:2" and found["spark.jars.repositories"] == "https://r"
    assert found["spark.jars"] == "local:///x.jar" and found["spark.submit.pyFiles"] == (
        "s3a://b/x.zip,file:///jobs/y.py")
    assert found["spark.files"] == "mine"
    assert (found["spark.eventLog.enabled"], found["spark.eventLog.dir"]) == ("true", "file:///checkpoint/events")
    assert found["spark.ui.prometheus.enabled"] == "true"
    assert conf(driver(eventLog={"path": "s3a://b/e"}))["spark.eventLog.dir"] == "s3a://b/e"


def test_the_secret_is_a_file_of_the_driver_a_variable_of_executors_and_in_no_description() -> None:
    """An executor reads no file before it has its settings from the driver, to which it connects with the secret."""
    fields: dict[str, Any] = {"authenticate": True, "conf": {"spark.authenticate": "false"}}
    body, template = driver(**fields), executor(**fields)
    assert template is not None and conf(body)["spark.authenticate"] == "true"
    assert conf(body)["spark.authenticate.secret.file"] == "/var/run/hapax/spark-auth/secret"
    (volume,) = (volume for volume in body["spec"]["volumes"] if volume["name"] == "spark-auth")
    assert volume["secret"] == {"secretName": "j-spark-auth-u-j", "defaultMode": 0o440}
    assert {"name": "spark-auth", "mountPath": "/var/run/hapax/spark-auth", "readOnly": True} in (
        body["spec"]["containers"][0]["volumeMounts"])
    assert template["spec"]["containers"][0]["env"] == [{"name": "_SPARK_AUTH_SECRET", "valueFrom": {
        "secretKeyRef": {"name": "j-spark-auth-u-j", "key": "encoded"}}}]
    secret = auth_secret(work(**fields), "generated")
    assert secret["metadata"]["name"] == "j-spark-auth-u-j"
    assert secret["stringData"] == {"secret": "generated", "encoded": "Z2VuZXJhdGVk"}, "as Spark makes it of the file"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u-j"
    assert "generated" not in json.dumps([body, template])


def test_a_service_leads_to_the_job_s_driver_alone() -> None:
    service = ui_service(work())
    labels = driver()["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["selector"]["hapax.dev/producer-uid"] == "u-j"
    assert [each["port"] for each in service["spec"]["ports"]] == [4040, 4041]


@pytest.mark.parametrize("field", ["env", "volumes", "tolerations"])
def test_a_change_of_what_a_pod_has_is_a_change_of_the_job(field: str) -> None:
    before, after = work().spark, work(**{field: [{"name": "x"}]}).spark
    assert before is not None and after is not None and before.fingerprint != after.fingerprint


def test_a_change_of_when_it_runs_is_none() -> None:
    before, after = work().spark, work(schedule={"cron": "@daily"}, historyLimit=9).spark
    assert before is not None and after is not None and before.fingerprint == after.fingerprint


NAMED = st.lists(st.sampled_from("abc"), unique=True).map(lambda names: [{"name": each} for each in names])


@given(NAMED, NAMED)
def test_lists_with_names_are_merged_by_name(base: list[dict[str, str]], over: list[dict[str, str]]) -> None:
    marked = [{**each, "of": "over"} for each in over]
    found = merged({"containers": base}, {"containers": marked})["containers"]
    assert [each["name"] for each in found] == list(dict.fromkeys(each["name"] for each in [*base, *over]))
    assert all((each.get("of") == "over") == (each["name"] in {one["name"] for one in over}) for each in found)


def test_a_variable_has_one_source() -> None:
    base = {"env": [{"name": "A", "value": "1"}]}
    assert merged(base, {"env": [{"name": "A", "valueFrom": {"x": 1}}]}) == {
        "env": [{"name": "A", "valueFrom": {"x": 1}}]}


@pytest.mark.parametrize("spec", [
    {"containers": [{"image": "x"}]}, {"containers": ["text"]}, {"volumes": [{"emptyDir": {}}]},
    {"containers": [{"name": "driver", "env": [{"value": "x"}], "volumeMounts": [{"name": "x"}]}]}])
def test_what_a_template_lacks_is_for_the_api_server_to_refuse(spec: dict[str, Any]) -> None:
    """An error here would be shown to nobody who reads the resource."""
    for made in (driver(driverTemplate={"spec": spec}), executor(executorTemplate={"spec": spec})):
        ((name, given),) = spec.items()
        kept = [each for each in given if each not in made["spec"][name]]  # type: ignore[index]
        assert not kept or kept[0]["name"] == "driver"


def test_a_template_s_null_is_no_value() -> None:
    spec = {"containers": None, "securityContext": None, "volumes": None, "tolerations": None}
    assert driver(driverTemplate={"spec": spec})["spec"] == driver()["spec"]
    labels = {"metadata": {"labels": {"a": "b"}}}
    found, other = executor(executorTemplate={"spec": spec, **labels}), executor(executorTemplate=labels)
    assert found is not None and other is not None and found["spec"] == other["spec"]


def test_nothing_is_left_of_a_mount_where_the_operator_mounts_its_own() -> None:
    """A checkpoint that is mounted read-only, or a part of the volume, is not the one that the job had before."""
    mount = {"name": "mine", "mountPath": "/checkpoint", "readOnly": True, "subPath": "other"}
    for fields in ({"volumeMounts": [mount]},
                   {"driverTemplate": {"spec": {"containers": [{"name": "driver", "volumeMounts": [mount]}]}}}):
        mounts = driver(checkpoint={"claimName": "claim", "path": "/checkpoint"}, **fields)[
            "spec"]["containers"][0]["volumeMounts"]
        assert [each for each in mounts if each["mountPath"] == "/checkpoint"] == [
            {"name": "checkpoint", "mountPath": "/checkpoint"}]


def test_a_job_that_is_made_again_has_a_secret_of_its_own() -> None:
    """The former one's is deleted with its owner, some time after the new one has started."""
    one = work(authenticate=True)
    other = replace(one, meta=replace(one.meta, uid="another"))
    names = {auth_secret(each, "x")["metadata"]["name"] for each in (one, other)}
    assert len(names) == 2 and all(name.startswith("j-spark-auth-") for name in names)
    for each in (one, other):
        assert each.spark is not None
        (volume,) = (
            volume for volume in driver_pod(each, each.spark, 1)["spec"]["volumes"] if volume["name"] == "spark-auth")
        assert volume["secret"]["secretName"] in names

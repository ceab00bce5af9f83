"""What the API server takes and refuses by the resource definitions alone; each refusal is a sentence that helps."""

from __future__ import annotations

import re
import textwrap

import pytest
import yaml

from hapax.core.cluster.topics import TOPIC_CONFIGS
from hapax_kube.api import ApiError, KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace
from hapax_operator.access_file import Copiers
from hapax_operator.mirror_pods import UserSeen, deployment, user
from hapax_operator.mirror_resource import read_mirror
from hapax_operator.resources import read_producer, read_spark_job
from hapax_operator.spark_pods import auth_secret, driver_pod, executor_pod, ui_service
from hapax_operator.spark_work import of_job


def test_defaults_are_filled_in(namespace: Namespace) -> None:
    body = namespace.topic("plain")
    assert body["spec"] == {"partitions": 1, "managed": True, "deletionPolicy": "Retain"}
    body = namespace.producer("loader", transactionalId="loader")
    assert body["spec"] == {
        "transactionalId": "loader", "hangingAfterSeconds": 300, "onHanging": "Alert", "fence": 0, "managed": True}


@pytest.mark.parametrize(("spec", "sentence"), [
    ({"partitions": 0}, "should be greater than or equal to 1"),
    ({"partitions": 10_001}, "should be less than or equal to 10000"),
    ({"partitions": "three"}, "must be of type integer"),
    ({"topicName": "a/b"}, "ASCII letters, digits"),
    ({"topicName": ".."}, "must not be named '.' or '..'"),
    ({"topicName": "__consumer_offsets"}, "names that begin with '__' are reserved"),
    ({"topicName": "x" * 250}, "may not be more than 249"),
    ({"config": {"retention": "1"}}, "unknown name; topic configurations are cleanup.policy, "),
    ({"config": {"retention.ms": "7d"}}, "whole numbers, or -1"),
    ({"config": {"segment.bytes": "1MB"}}, "without a unit"),
    ({"config": {"cleanup.policy": "shred"}}, "cleanup.policy must be delete, compact, or both"),
    ({"config": {"retention.ms": 7}}, "must be of type string"),
    ({"config": {"min.insync.replicas": "3"}, "replicationFactor": 2}, "no write with acks=all could ever succeed"),
    ({"deletionPolicy": "Shred"}, "supported values"),
])
def test_a_bad_topic_is_refused_with_a_sentence(namespace: Namespace, spec: dict[str, object], sentence: str) -> None:
    assert sentence in namespace.refusal("bad", **spec)


def test_a_name_that_is_too_long_for_a_topic_is_refused_unless_another_is_given(namespace: Namespace) -> None:
    long = "a" * 250
    assert "give a shorter one in spec.topicName" in namespace.refusal(long)
    namespace.topic(long, topicName="short")


@pytest.mark.parametrize(("change", "sentence"), [
    ({"partitions": 2}, "partitions can only grow"),
    ({"topicName": "other"}, "topicName cannot be changed"),
    ({"topicName": None}, "topicName cannot be changed"),
])
def test_what_cannot_change_is_refused(namespace: Namespace, change: dict[str, object], sentence: str) -> None:
    namespace.topic("a", topicName="a", partitions=3)
    with pytest.raises(ApiError, match=re.escape(sentence)):
        namespace.patch("topics", "a", **change)
    namespace.patch("topics", "a", partitions=4)


SPARK: dict[str, object] = {
    "image": "hapax-spark", "job": "hapax_spark.jobs.passthrough", "checkpoint": {"claimName": "claim"}}


@pytest.mark.parametrize(("spec", "sentence"), [
    ({}, "give either transactionalId or transactionalIdPrefix or lease"),
    ({"transactionalId": "a", "lease": {"name": "a", "partitions": ["t-0"]}}, "one of the three"),
    ({"lease": {"name": "a", "partitions": []}}, "should have at least 1 items"),
    ({"lease": {"partitions": ["t-0"]}}, "spec.lease.name: Required value"),
    ({"lease": {"name": "a", "partitions": ["t"]}}, "a partition is written as topic-number, such as orders-0"),
    ({"lease": {"name": "a", "partitions": ["t-0"], "expireSeconds": 1}}, "greater than or equal to 30"),
    ({"lease": {"name": "a", "partitions": ["t-0"]}, "fence": 1}, "not for a prefix or a lease"),
    ({"lease": {"name": "a", "partitions": ["t-0"]}, "allowedTopics": ["t"]}, "a lease has no transactions"),
    ({"transactionalId": "a", "transactionalIdPrefix": "b"}, "give either"),
    ({"transactionalIdPrefix": "b", "fence": 1}, "not for a prefix"),
    ({"transactionalId": "a", "hangingAfterSeconds": 1}, "greater than or equal to 5"),
    ({"transactionalId": "a", "onHanging": "Panic"}, "supported values"),
    ({"transactionalId": "a", "allowedTopics": []}, "should have at least 1 items"),
    ({"transactionalId": "a", "allowedTopics": ["a*b"]}, "the beginning of names with one '*' at its end"),
    ({"transactionalId": "a", "allowedTopics": ["a/b"]}, "an allowed topic is a name"),
    ({"transactionalId": "a", "allowedTopics": ["__consumer_offsets"]}, "the cluster's own"),
    ({"transactionalId": "a", "allowedTopics": ["a", "a"]}, "Duplicate value"),
    ({"transactionalId": "a", "allowedTopics": "a"}, "must be of type array"),
    ({"transactionalId": "a", "maxTransactionTimeoutSeconds": 0}, "greater than or equal to 1"),
    ({"lease": {"name": "a", "partitions": ["t-0"]}, "spark": SPARK}, "no transactions for a Spark job to write in"),
    ({"transactionalId": "a", "spark": {"job": "a"}}, "spec.spark.image: Required value"),
    ({"transactionalId": "a", "spark": {**SPARK, "job": "/jobs/mine.py"}}, "or a file as local:///path/to/job.py"),
    ({"transactionalId": "a", "spark": {**SPARK, "conf": {"executor.cores": "1"}}}, "begin with 'spark.'"),
    ({"transactionalId": "a", "spark": {**SPARK, "conf": {"spark.master": "local"}}}, "are set by the driver's pod"),
    ({"transactionalId": "a", "spark": {**SPARK, "driver": {"memory": "1 GB"}}}, "written as 512m or 2g"),
    ({"transactionalId": "a", "spark": {**SPARK, "executors": {"instances": 0}}}, "greater than or equal to 1"),
    ({"transactionalId": "a", "spark": {**SPARK, "checkpoint": {"path": "here"}}}, "path must be absolute"),
    ({"transactionalId": "a", "spark": {**SPARK, "checkpoint": {"claimName": "a", "path": "s3a://b/c"}}},
     "an object store's address alone"),
    ({"transactionalId": "a", "spark": {**SPARK, "checkpoint": {}}}, "or ephemeral: true"),
    ({"transactionalId": "a", "spark": {"image": "i", "job": "j"}}, "or ephemeral: true"),
    ({"transactionalId": "a", "spark": {**SPARK, "checkpoint": {"ephemeral": False}}}, "or ephemeral: true"),
    ({"transactionalId": "a", "spark": {**SPARK, "checkpoint": {"claimName": "a", "ephemeral": True}}},
     "ephemeral: true is for a checkpoint that is deleted with the pod"),
    ({"transactionalId": "a", "spark": {**SPARK, "checkpoint": {"path": "s3a://b/c", "ephemeral": True}}},
     "ephemeral: true is for a checkpoint that is deleted with the pod"),
    ({"transactionalId": "a", "spark": {**SPARK, "backOff": {"firstSeconds": 500}}}, "not be more than longestSeconds"),
])
def test_a_bad_producer_is_refused_with_a_sentence(
    namespace: Namespace, spec: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ApiError, match=re.escape(sentence)):
        namespace.producer("bad", **spec)


def test_requests_to_fence_only_rise_and_an_identity_stays(namespace: Namespace) -> None:
    namespace.producer("a", transactionalId="a", fence=2)
    with pytest.raises(ApiError, match="can only rise"):
        namespace.patch("transactionalproducers", "a", fence=1)
    with pytest.raises(ApiError, match="transactionalId cannot be changed"):
        namespace.patch("transactionalproducers", "a", transactionalId="b")


def test_a_spark_job_gets_its_defaults_and_reruns_only_rise(namespace: Namespace) -> None:
    body = namespace.producer("job", transactionalId="job", spark={**SPARK, "rerun": 2})
    assert body["spec"]["spark"] == {
        **SPARK, "rerun": 2, "suspend": False, "imagePullPolicy": "IfNotPresent",
        "driver": {"memory": "1g"}, "executors": {"instances": 1, "cores": 1, "memory": "1g"},
        "checkpoint": {"claimName": "claim", "path": "/checkpoint", "ephemeral": False}, "giveUpAfterSeconds": 300,
        "backOff": {"firstSeconds": 10, "longestSeconds": 300, "resetAfterSeconds": 600}}
    with pytest.raises(ApiError, match=re.escape("spark.rerun counts requests")):
        namespace.patch("transactionalproducers", "job", spark={"rerun": 1})
    namespace.patch("transactionalproducers", "job", spark=None)


def job(**spec: object) -> dict[str, object]:
    return {**SPARK, **spec}


@pytest.mark.parametrize(("spec", "sentence"), [
    (job(checkpoint={}), "or ephemeral: true"),
    (job(job="/jobs/mine.py"), "or a file as local:///path/to/job.py"),
    (job(conf={"spark.master": "local"}), "are set by the driver's pod"),
    (job(image=None), "spec.image: Required value"),
    (job(backOff={"firstSeconds": 500}), "not be more than longestSeconds"),
    (job(schedule={"cron": "every day"}), "cron has five fields, such as '30 3 * * *'"),
    (job(schedule={}), "spec.schedule.cron: Required value"),
    (job(schedule={"cron": "@daily", "concurrencyPolicy": "Allow"}), "supported values"),
    (job(env=[{"name": "HAPAX_SPARK_CONF"}]), "are set by the operator and by Spark"),
    (job(env=[{"name": "A"}, {"name": "A"}]), "Duplicate value"),
    (job(volumes=[{"name": "checkpoint", "emptyDir": {}}]), "are the operator's and Spark's"),
    (job(driverTemplate={"metadata": {"labels": {"hapax.dev/identity": "x"}}}), "by which they find pods"),
    (job(executorTemplate={"metadata": {"labels": {"spark-role": "x"}}}), "by which they find pods"),
    (job(dependencies={"packages": ["a:b"]}), "written as group:artifact:version"),
    (job(dependencies={"jars": ["a,b"]}), "without commas"),
    (job(eventLog={"path": "/tmp/events"}), "event logs would be deleted with the pod"),
    (job(eventLog={"path": "/logs2/events"}, volumes=[{"name": "logs"}],
         volumeMounts=[{"name": "logs", "mountPath": "/logs"}]), "event logs would be deleted with the pod"),
    (job(eventLog={"path": "events"}), "path must be absolute"),
])
def test_a_bad_spark_job_is_refused_with_a_sentence(
    namespace: Namespace, spec: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ApiError, match=re.escape(sentence)):
        namespace.spark_job("bad", "loader", **{name: value for name, value in spec.items() if value is not None})


def test_event_logs_may_be_on_a_volume_of_the_driver_alone(namespace: Namespace) -> None:
    mount = {"name": "logs", "mountPath": "/logs"}
    namespace.spark_job("job", "loader", **job(eventLog={"path": "/logs/events"}, driverTemplate={"spec": {
        "containers": [{"name": "driver", "volumeMounts": [mount]}],
        "volumes": [{"name": "logs", "persistentVolumeClaim": {"claimName": "logs"}}]}}))


def test_a_spark_job_s_producer_stays_and_reruns_only_rise(namespace: Namespace) -> None:
    body = namespace.spark_job("job", "loader", **job(rerun=2))
    assert body["spec"]["managed"] is True and body["spec"]["backOff"]["firstSeconds"] == 10
    for change, sentence in (({"rerun": 1}, "rerun counts requests"), (
            {"producer": {"name": "other"}}, "producer cannot be changed")):
        with pytest.raises(ApiError, match=re.escape(sentence)):
            namespace.patch("sparkjobs", "job", **change)


def test_a_spark_job_with_everything_is_taken_and_its_pods_fit_the_restricted_standard(namespace: Namespace) -> None:
    namespace.api.patch(f"/api/v1/namespaces/{namespace.name}", {
        "metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    producer = read_producer(namespace.producer("loader", transactionalId="a", managed=False))
    job = read_spark_job(namespace.spark_job(
        "job", "loader", **SPARK, managed=False, authenticate=True, ui={"service": True}, historyLimit=2,
        schedule={"cron": "30 3 * * mon-fri", "timeZone": "Europe/Berlin", "startingDeadlineSeconds": 60},
        env=[{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, {"name": "A", "value": "b"}],
        envFrom=[{"configMapRef": {"name": "c"}}], volumes=[{"name": "certs", "secret": {"secretName": "s"}}],
        volumeMounts=[{"name": "certs", "mountPath": "/certs", "readOnly": True}],
        tolerations=[{"key": "spark", "operator": "Exists"}], nodeSelector={"disk": "fast"},
        affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}]}},
        driverTemplate={"metadata": {"labels": {"team": "a"}}, "spec": {"priorityClassName": ""}},
        executorTemplate={"spec": {"terminationGracePeriodSeconds": 5}},
        dependencies={"packages": ["a:b:1"], "pyFiles": ["local:///x.zip"]},
        eventLog={"path": "/checkpoint/events"}))
    work = of_job(job, producer)
    assert job.spark.schedule is not None and job.spark.schedule.time_zone == "Europe/Berlin"
    assert job.spark.env[0]["valueFrom"]["secretKeyRef"]["key"] == "k", "nothing is pruned"
    space = f"/api/v1/namespaces/{namespace.name}"
    namespace.api.create(f"{space}/pods?dryRun=All&fieldValidation=Strict", driver_pod(work, job.spark, 1))
    executors = executor_pod(work, job.spark)
    assert executors is not None
    executors = {**executors, "metadata": {"name": "executor"}}
    executors["spec"]["containers"][0]["image"] = "spark:1"
    namespace.api.create(f"{space}/pods?dryRun=All&fieldValidation=Strict", executors)
    namespace.api.create(f"{space}/secrets?dryRun=All&fieldValidation=Strict", auth_secret(work, "x"))
    namespace.api.create(f"{space}/services?dryRun=All&fieldValidation=Strict", ui_service(work))


def test_a_section_s_fields_are_those_of_a_spark_job() -> None:
    """So that a section can be carried over as it stands."""
    section = _properties("transactionalproducers", "v1alpha1")["spark"]["properties"]
    fields = _properties("sparkjobs", "v1alpha2")
    for name, schema in section.items():
        assert fields[name] == schema, name
    assert _properties("transactionalproducers", "v1alpha1") == _properties("transactionalproducers", "v1alpha2")


def _properties(plural: str, version: str) -> dict[str, dict[str, object]]:
    definition = yaml.safe_load((ROOT / "charts" / "hapax" / "files" / "crds" / f"{plural}.yaml").read_text())
    (found,) = (each for each in definition["spec"]["versions"] if each["name"] == version)
    properties: dict[str, dict[str, object]] = found["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return properties


def test_kubectl_scales_a_topic_and_shows_its_columns(namespace: Namespace, kube_api: KubeApi) -> None:
    namespace.topic("a", partitions=2)
    scaled = kube_api.kubectl("-n", namespace.name, "scale", "topic.hapax.dev/a", "--replicas=5")
    assert scaled.returncode == 0, scaled.stderr
    assert namespace.get("topics", "a")["spec"]["partitions"] == 5
    shown = kube_api.kubectl("-n", namespace.name, "get", "hapax").stdout
    assert "TOPIC" in shown and "IN SYNC" in shown


def test_examples_of_the_page_are_taken(namespace: Namespace) -> None:
    """As they stand there; nothing that they describe is made."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    examples = re.findall(r"^    apiVersion: hapax[.]dev/.*\n(?:    .*\n)+", page, re.MULTILINE)
    bodies = [yaml.safe_load(textwrap.dedent(each)) for each in examples]
    assert [each["metadata"]["name"] for each in bodies] == [
        "orders", "web", "loader", "flights", "flights", "nightly", "orders"]
    for body in bodies:
        path = namespace.path(body["kind"].lower() + "s").replace("v1alpha1", body["apiVersion"].rpartition("/")[2])
        body["metadata"].pop("namespace", None)
        namespace.api.create(f"{path}?dryRun=All&fieldValidation=Strict", body)


@pytest.mark.parametrize("name", ["topics", "transactionalproducers", "sparkjobs", "brokerpools", "users"])
def test_every_field_is_described(name: str) -> None:
    """`kubectl explain` is where people look first."""
    definition = yaml.safe_load((ROOT / "charts" / "hapax" / "files" / "crds" / f"{name}.yaml").read_text())
    for version in definition["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        assert schema["description"]
        for part in ("spec", "status"):
            described = schema["properties"][part]
            bare = [field for field, about in described["properties"].items() if not about.get("description")]
            assert described["description"] and bare == []


def test_the_definition_knows_every_topic_configuration() -> None:
    """The rule and its sentence hold the same list as the cluster."""
    text = (ROOT / "charts" / "hapax" / "files" / "crds" / "topics.yaml").read_text()
    (rule,) = re.findall(r"name in \[([^\]]*)\]", text)
    assert sorted(re.findall(r"'([^']+)'", rule)) == sorted(TOPIC_CONFIGS)
    (sentence,) = re.findall(r"topic configurations are ([^\"]*)\"", text)
    assert sorted(sentence.split(", ")) == sorted(TOPIC_CONFIGS)


MIRROR: dict[str, object] = {"source": {"bootstrapServers": "old:9092"}, "topics": ["orders"]}


def test_a_mirror_gets_its_defaults(namespace: Namespace) -> None:
    assert namespace.mirror("plain", **MIRROR)["spec"] == {
        **MIRROR, "target": {}, "partitioning": "Same", "onLost": "Stop", "suspend": False, "replicas": 1}
    secret = {"source": {"bootstrapServers": "a:1,b:2", "secret": {"name": "old"}}}
    body = namespace.mirror("secret", **{**MIRROR, **secret})
    assert body["spec"]["source"]["secret"] == {"name": "old", "key": "client.properties"}


@pytest.mark.parametrize(("spec", "sentence"), [
    ({"topics": []}, "should have at least 1 items"),
    ({"topics": ["a*b"]}, "a prefix ends with one '*'"),
    ({"topics": ["__consumer_offsets"]}, "each cluster's own"),
    ({"topics": ["a", "a"]}, "Duplicate value"),
    ({"exclude": ["a/b"]}, "a name has ASCII letters"),
    ({"groups": ["a*b"]}, "the beginning of names with one '*' at its end"),
    ({"groups": ["a"], "partitioning": "ByKey"}, "only where partitions correspond"),
    ({"prefix": "__x"}, "does not begin with '__'"),
    ({"partitioning": "Random"}, "supported values"),
    ({"onLost": "Panic"}, "supported values"),
    ({"replicas": 0}, "greater than or equal to 1"),
    ({"source": {}}, "spec.source.bootstrapServers: Required value"),
    ({"source": {"bootstrapServers": "old"}}, "host:port"),
    ({"source": {"bootstrapServers": "old:1, new:2"}}, "without spaces"),
    ({"source": {"bootstrapServers": "a:1", "secret": {"name": "a"}, "configMap": {"name": "a"}}}, "not in both"),
    ({"source": {"bootstrapServers": "a:1", "secret": {"name": "a", "key": "../b"}}}, "a key has letters"),
])
def test_a_bad_mirror_is_refused_with_a_sentence(
    namespace: Namespace, spec: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ApiError, match=re.escape(sentence)):
        namespace.mirror("bad", **{**MIRROR, **spec})


def test_what_would_break_a_copy_cannot_change(namespace: Namespace) -> None:
    namespace.mirror("a", **MIRROR, prefix="old.")
    for change, sentence in (
        ({"prefix": "new."}, "prefix cannot be changed"), ({"prefix": None}, "prefix cannot be changed"),
        ({"partitioning": "ByKey"}, "partitioning cannot be changed"),
    ):
        with pytest.raises(ApiError, match=sentence):
            namespace.patch("mirrors", "a", **change)
    namespace.patch("mirrors", "a", source={"bootstrapServers": "moved:9092"}, topics=["orders", "bills"])


def test_copiers_are_what_the_api_server_takes(namespace: Namespace) -> None:
    """With everything that a Mirror can say; the API server knows all of its fields."""
    body = namespace.mirror(
        "all", **MIRROR, replicas=3, prefix="old.", exclude=["x*"], groups=["g*"], replicationFactor=3, onLost="Skip",
        imagePullSecrets=["pull"], nodeSelector={"disk": "fast"}, tolerations=[{"operator": "Exists"}],
        affinity={"nodeAffinity": {}}, resources={"requests": {"cpu": 1}},
        target={"bootstrapServers": "b:9092", "configMap": {"name": "c"}},
        podTemplate={"metadata": {"labels": {"team": "a"}}, "spec": {"priorityClassName": "high"}})
    described = read_mirror(body)
    for own, name in ((None, "a"), (UserSeen("1", True, "", True, "", "2026-01-01T00:00:00Z"), "b")):
        made = deployment(described, Copiers("hapax:9092", "hapax:1"), own)
        made["metadata"]["name"] = name
        path = f"/apis/apps/v1/namespaces/{namespace.name}/deployments?fieldValidation=Strict"
        assert namespace.api.create(path, made)["spec"]["replicas"] == 3
    rights = namespace.api.create(namespace.path("users") + "?fieldValidation=Strict", user(described, "a.b"))
    assert rights["spec"]["authentication"] == {"type": "Scram"}

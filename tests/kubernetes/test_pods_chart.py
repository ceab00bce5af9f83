"""What the values add to the pods of each role: all of them take the same, and nothing of the chart's is replaced."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace

CHART = ROOT / "charts" / "hapax"
Render = Callable[..., list[dict[str, Any]]]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]
EVERYTHING = ("load.enabled=true", "admin.enabled=true", 'admin.tokensSecret="t"')
ROLES = {
    "broker": "broker", "coordinator": "coordinator", "pid": "pid", "operator": "operator", "admin": "admin",
    "certificates": "certificates", "etcd": "etcd", "etcd.keeper": "etcd-keeper", "load": "load", "test": "test",
}
"""Where a role's values are -> the end of its account's name."""
EXTRAS: dict[str, Any] = {
    "podLabels": {"team": "log"},
    "podAnnotations": {"note": "a"},
    "nodeSelector": {"pool": "log"},
    "tolerations": [{"key": "log", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]}},
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "row", "labelSelector": {"matchLabels": {"a": "b"}}}}]}},
    "topologySpreadConstraints": [
        {"maxSkew": 2, "topologyKey": "row", "whenUnsatisfiable": "DoNotSchedule"}],
    "priorityClassName": "high",
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "extra-volume", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "extra-volume", "mountPath": "/more"}],
    "sidecars": [{"name": "extra-beside", "image": "registry.example/beside:1"}],
    "initContainers": [{"name": "extra-before", "image": "registry.example/before:1"}],
    "serviceAccount": {"annotations": {"cloud.example/role": "log"}},
    "image": {"registry": "mirror.example", "repository": "own", "tag": "9", "pullPolicy": "Always",
              "pullSecrets": [{"name": "theirs"}]},
}
FOR_ALL = tuple(f"pods.{key}={json.dumps(value)}" for key, value in EXTRAS.items() if key != "image")


def templates(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The end of the account's name, and the pod, of everything that makes pods."""
    for each in objects:
        if each["kind"] in ("StatefulSet", "Deployment", "Job"):
            pod = each["spec"]["template"]
        elif each["kind"] == "Pod":
            pod = each
        else:
            continue
        yield pod["spec"]["serviceAccountName"].removeprefix("demo-hapax-"), pod


def accounts(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"].removeprefix("demo-hapax-"): each for each in objects
            if each["kind"] == "ServiceAccount"}


def has_everything(pod: dict[str, Any], account: dict[str, Any]) -> None:
    spec, (main, *beside) = pod["spec"], pod["spec"]["containers"]
    assert pod["metadata"]["labels"]["team"] == "log" and pod["metadata"]["annotations"]["note"] == "a"
    assert spec["nodeSelector"] == {"pool": "log"} and spec["priorityClassName"] == "high"
    assert spec["tolerations"].count({"key": "log", "operator": "Exists"}) == 1
    assert spec["affinity"]["nodeAffinity"] == EXTRAS["affinity"]["nodeAffinity"]
    terms = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert terms[-1]["podAffinityTerm"]["topologyKey"] == "row"
    (spread,) = spec["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["topologyKey"]) == (2, "row")
    selected = spread["labelSelector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items() and "app.kubernetes.io/component" in selected
    assert {"name": "TZ", "value": "UTC"} in main["env"]
    assert {"name": "extra-volume", "emptyDir": {}} in spec["volumes"]
    assert {"name": "extra-volume", "mountPath": "/more"} in main["volumeMounts"]
    assert spec["initContainers"][0]["name"] == "extra-before"
    if spec.get("restartPolicy") == "Never":  # it ends when its own container does, not the one beside it
        assert spec["initContainers"][1] == EXTRAS["sidecars"][0] | {"restartPolicy": "Always"} and not beside
    else:
        assert [each["name"] for each in beside] == ["extra-beside"]
    assert account["metadata"]["annotations"] == {"cloud.example/role": "log"}


def test_every_role_takes_what_is_given_to_all(render: Render) -> None:
    objects = render(*EVERYTHING, *FOR_ALL)
    seen = set()
    for name, pod in templates(objects):
        seen.add(name)
        has_everything(pod, accounts(objects)[name])
    assert seen == set(ROLES.values()) and set(accounts(objects)) == seen


@pytest.mark.parametrize(("at", "name"), ROLES.items())
def test_a_role_takes_its_own_and_no_other_role_does(render: Render, at: str, name: str) -> None:
    objects = render(*EVERYTHING, *(f"{at}.{key}={json.dumps(value)}" for key, value in EXTRAS.items()))
    for other, pod in templates(objects):
        if other == name:
            has_everything(pod, accounts(objects)[name])
            assert pod["spec"]["containers"][0]["image"] == "mirror.example/own:9"
            assert pod["spec"]["containers"][0]["imagePullPolicy"] == "Always"
            assert pod["spec"]["imagePullSecrets"] == [{"name": "theirs"}]
        else:
            text = json.dumps([pod, accounts(objects)[other]])
            foreign = ('"team"', "extra-", "TZ", "cloud.example", "mirror.example", '"row"')
            assert not any(word in text for word in foreign), other


def test_a_role_s_own_counts_beside_what_all_have(render: Render) -> None:
    objects = render(
        *FOR_ALL, 'image.pullSecrets=[{"name":"all"}]', 'pid.image.pullSecrets=[{"name":"own"}]',
        'pid.priorityClassName="low"', 'pid.podLabels={"team":"ids","more":"x"}', 'pid.nodeSelector={"pool":""}',
        'pid.extraEnv=[{"name":"LANG","value":"C"}]', 'pid.serviceAccount.annotations={"cloud.example/role":"ids"}')
    pod = dict(templates(objects))["pid"]
    assert pod["spec"]["priorityClassName"] == "low" and pod["spec"]["nodeSelector"] == {"pool": ""}
    assert pod["metadata"]["labels"].items() >= {"team": "ids", "more": "x"}.items()
    assert [each["name"] for each in pod["spec"]["containers"][0]["env"]][-2:] == ["TZ", "LANG"]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "all"}, {"name": "own"}]
    assert accounts(objects)["pid"]["metadata"]["annotations"] == {"cloud.example/role": "ids"}
    assert len(pod["spec"]["tolerations"]) == 3, "those against machines that are gone stay"


def test_a_real_api_server_takes_it(kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path) -> None:
    rendered = tmp_path / "objects.yaml"
    rendered.write_text(yaml.safe_dump_all(
        each for each in render(*EVERYTHING, *FOR_ALL, namespace=namespace.name)
        if each["kind"] in ("StatefulSet", "Deployment", "Job", "ServiceAccount")))
    done = kube_api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(rendered))
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr


@pytest.mark.parametrize("key", EXTRAS)
def test_the_operator_and_the_keeper_see_each_of_them_as_a_new_revision(render: Render, key: str) -> None:
    """Their StatefulSets have the strategy OnDelete: what is not in the pods' template replaces no pod."""
    names = ("broker", "coordinator", "etcd")
    before, after = (
        {name: pod for name, pod in templates(render(*values)) if name in names}
        for values in ((), tuple(f"{name}.{key}={json.dumps(EXTRAS[key])}" for name in names)))
    assert len(before) == 3 and all(before[name] != after[name] for name in names)


@pytest.mark.parametrize(("values", "said"), [
    ('broker.extraEnv=[{"name":"HAPAX_NODE_ID","value":"7"}]', "broker.extraEnv: HAPAX_NODE_ID is set already"),
    ('broker={"settings":{"num.partitions":6},"extraEnv":[{"name":"HAPAX_NUM_PARTITIONS","value":"7"}]}',
     "broker.extraEnv: HAPAX_NUM_PARTITIONS is set already"),
    ('pods.extraEnv=[{"name":"A"},{"name":"A"}]', "extraEnv: A is set already"),
    ('pid.extraEnv=[{"name":"HAPAX_SERVICE_SSL_KEY_PASSWORD","value":"x"}]',
     "service.ssl.key.password is set by the chart while security.enabled is true"),
    ('etcd.extraEnv=[{"name":"ETCDCTL_CACERT","value":"x"}]', "etcd.extraEnv: ETCDCTL_CACERT is set already"),
    ('test.extraEnv=[{"name":"BOOTSTRAP","value":"x"}]', "test.extraEnv: BOOTSTRAP is set already"),
    ('broker.podLabels={"app.kubernetes.io/component":"x"}', "broker.podLabels: app.kubernetes.io/component is the"),
    ('broker.podLabels={"hapax.dev/identity":"x"}', "broker.podLabels: hapax.dev/identity is the chart's own"),
    ('operator.podAnnotations={"hapax.dev/access":"x"}', "operator.podAnnotations: hapax.dev/access is the chart's"),
    ('test.podAnnotations={"helm.sh/hook":"x"}', "test.podAnnotations: helm.sh/hook is the chart's own"),
    ('broker.extraVolumes=[{"name":"data","emptyDir":{}}]', "broker.extraVolumes: there is a volume data already"),
    ('coordinator.extraVolumes=[{"name":"tls","emptyDir":{}}]', "extraVolumes: there is a volume tls already"),
    ('broker.extraVolumeMounts=[{"name":"x","mountPath":"/data/hapax/"}]', "/data/hapax would hide, or be hidden by"),
    ('broker.extraVolumeMounts=[{"name":"x","mountPath":"/"}]', "would hide, or be hidden by, what is mounted at"),
    ('broker.extraVolumeMounts=[{"name":"x","mountPath":"/etc/hapax"}]', "what is mounted at /etc/hapax/tls"),
    ('broker.sidecars=[{"name":"broker","image":"a/b"}]', "broker: there is a container broker already"),
    ('etcd.initContainers=[{"name":"member","image":"a/b"}]', "etcd: there is a container member already"),
    ('broker.sidecars=[{"name":"s"}]', "missing property 'image'"),
    ('broker.extraEnv=[{"nme":"s"}]', "missing property 'name'"),
    ('broker.affinity={"nodeAfinity":{}}', "additional properties 'nodeAfinity' not allowed"),
    ('pods.replicas=3', "additional properties 'replicas' not allowed"),
])
def test_nothing_of_the_chart_s_is_replaced_without_a_word(helm: Helm, values: str, said: str) -> None:
    done = helm("template", "demo", str(CHART), "--set-json", values)
    assert done.returncode != 0 and said in done.stderr, done.stderr


def test_a_setting_from_a_secret_is_not_refused(render: Render) -> None:
    given = {"name": "HAPAX_NUM_PARTITIONS", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    pod = dict(templates(render(f"broker.extraEnv=[{json.dumps(given)}]")))["broker"]
    assert given in pod["spec"]["containers"][0]["env"]


def test_pods_are_made_at_one_place() -> None:
    """A second one would lack what the next value adds."""
    folder = CHART / "templates"
    for path in sorted([*folder.rglob("*.yaml"), *folder.rglob("*.tpl")]):
        if path.name != "_pods.tpl":
            for word in ("serviceAccountName", "imagePullSecrets", "tolerations", "nodeSelector", "enableServiceLinks"):
                assert f"{word}:" not in path.read_text(), f"{path.name}: {word}"


def test_an_account_of_spark_s_drivers_has_annotations(render: Render) -> None:
    objects = render("spark.enabled=true", 'spark.serviceAccount.annotations={"a":"b"}')
    assert accounts(objects)["spark"]["metadata"]["annotations"] == {"a": "b"}


def test_names_that_yaml_reads_as_numbers_stay_names(render: Render) -> None:
    """As Kubernetes permits them for classes of storage and for Secrets."""
    objects = render(
        *EVERYTHING, 'broker.storage.className="007"', "spark.enabled=true", "spark.checkpoint.enabled=true",
        'spark.checkpoint.className="1e3"', 'load.tokenSecret="12"', 'users={"caSecret":"13","authoritySecret":"14"}',
        'etcd={"enabled":false,"external":{"endpoints":["https://a:1"],"tls":{"secret":"10"},"login":{"secret":"11"}}}')
    objects += render('etcd.storage.className="008"', 'etcd.snapshots.storage.className="9"')
    found: list[object] = []

    def walk(value: object) -> None:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):  # type: ignore[arg-type]
            if isinstance(inner, dict | list):
                walk(inner)
            elif key in ("storageClassName", "secretName", "name"):
                found.append(inner)

    walk(objects)
    assert all(isinstance(each, str) for each in found), found
    assert {"007", "008", "9", "1e3", "10", "11", "12", "13", "14"} <= set(found)

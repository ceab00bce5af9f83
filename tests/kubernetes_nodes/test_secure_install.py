"""The chart as it comes, closed: a client without a key is refused on each port, and the admin's Secret opens it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax_kube.binaries import ROOT
from hapax_kube.tools import Release, Tools

pytestmark = pytest.mark.timeout(600)

NAMESPACE = "hapax-closed"
FULL = "log"
"""The full name of this release, which all its names follow."""
VALUES = Path(os.environ.get("HAPAX_KUBE_VALUES", Path(__file__).parent / "values.yaml"))
KEYLESS = """
import json, socket, ssl, sys

# ApiVersions 0 of Kafka's protocol: the nodes' first answer to any client that is let in.
FRAME = bytes.fromhex("0000000a00120000000000010000")

def answer(address, tls):
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), timeout=20)
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = context.wrap_socket(connection)
        connection.sendall(FRAME)
        found = connection.recv(65536)
        return b"" if found[:1] == b"\\x15" else found  # an alert of TLS
    except OSError:
        return b""

for address in sys.argv[1:]:
    print(json.dumps([address, len(answer(address, False)), len(answer(address, True))]))
"""
WITH_KEY = """
from pathlib import Path
from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.client.properties import read_properties
with Admin(read_properties(Path("/etc/hapax/client/mounted.properties"))) as admin:
    admin.create_topics([NewTopic("opened", 1)])
    print(sorted(each.name for each in admin.list_topics() if not each.name.startswith("__")))
"""
USERS = """
apiVersion: hapax.dev/v1alpha1
kind: User
metadata: {name: %(name)s}
spec:
  authentication: {type: %(login)s}
  acls: [{type: Topic, name: opened, operations: [Write]}]
"""
AS_USER = """
import sys
from pathlib import Path
from hapax.client import HapaxError
from hapax.client.blocking import Producer
from hapax.client.properties import read_properties
with Producer(read_properties(Path("/etc/hapax/client/client.properties"))) as producer:
    print(producer.send("opened", b"x").result(60).offset)
    try:
        producer.send("others", b"x").result(60)
    except HapaxError as error:
        print("refused")
"""
OUTSIDE = """
import sys
from pathlib import Path
from hapax.client.blocking import Admin, Producer
from hapax.client.properties import read_properties
settings = {**read_properties(Path("/etc/hapax/client/mounted.properties")), "bootstrap.servers": sys.argv[1]}
with Producer({**settings, "transactional.id": "outside"}) as producer, producer.transaction():
    producer.send("opened", b"far")
with Admin(settings) as admin:
    print(*sorted(f"{node.host}:{node.port}" for node in admin.describe_cluster().nodes))
"""
WITHOUT = """
from hapax.client import HapaxError
from hapax.client.blocking import Admin
try:
    with Admin({"bootstrap.servers": "log:9092", "default.api.timeout.ms": 10000}) as admin:
        print("let in", admin.list_topics())
except HapaxError as error:
    print("refused")
"""


@pytest.fixture(scope="module")
def closed(release: Release, tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A second release, which uses the first one's definitions: the defaults, with images that the machines have and as
    few pods as possible. The API server refuses pods that are not as restricted as its strictest standard wants."""
    given: dict[str, Any] = yaml.safe_load(VALUES.read_text())
    for name in ("security", "external", "admin"):
        given.pop(name, None)
    for name, replicas in (("broker", 1), ("coordinator", 1), ("pid", 1), ("operator", 1), ("etcd", 1)):
        given.setdefault(name, {})["replicas"] = replicas
    factors = ("transaction.state.log.replication.factor", "offsets.topic.replication.factor")
    given |= {"settings": dict.fromkeys(factors, 1), "crds": {"install": False}, "fullnameOverride": FULL}
    given["external"] = {"enabled": True, "type": "LoadBalancer"}
    given["pods"] = {
        "podLabels": {"team": "log"}, "tolerations": [{"key": "log", "operator": "Exists"}],
        "extraEnv": [{"name": "TZ", "value": "UTC"}], "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}], "priorityClassName": "system-cluster-critical"}
    given["broker"]["sidecars"] = [{
        "name": "beside", "image": f"{given['image']['repository']}:{given['image']['tag']}",
        "imagePullPolicy": given["image"]["pullPolicy"],
        "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"],
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}]
    told = json.loads(tools.kubectl("get", "--raw", "/.well-known/openid-configuration"))
    given["users"] = {"tokenIssuer": told["issuer"]}
    values = tmp_path_factory.mktemp("closed") / "values.yaml"
    values.write_text(yaml.safe_dump(given))
    tools.kubectl("create", "namespace", NAMESPACE)
    tools.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    second = Release(tools, NAMESPACE, values)
    try:
        tools.helm("install", second.name, str(ROOT / "charts" / "hapax"), "--namespace", NAMESPACE,
                   "--values", str(values))
        give_addresses(second)
        second.wait_ready()
        yield second
    finally:
        second.uninstall(wait=False)


def give_addresses(release: Release) -> dict[str, str]:
    """As a cloud gives load balancers theirs, by Service. Inside this cluster, each Service's own address leads where
    its load balancer would."""
    found = json.loads(release.tools.kubectl("get", "services", "-n", release.namespace, "-o", "json"))["items"]
    given = {each["metadata"]["name"]: each["spec"]["clusterIP"]
             for each in found if each["spec"]["type"] == "LoadBalancer"}
    for name, address in given.items():
        release.tools.kubectl(
            "patch", f"service/{name}", "-n", release.namespace, "--subresource=status", "--type=merge", "-p",
            json.dumps({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}))
    return given


def client_pod(release: Release, name: str, secret: str, account: str = "default") -> None:
    """A pod of a program that uses the cluster; with `secret`, it has the keys of a user. It has a token of `account`,
    as clients show it."""
    (like, *_) = release.pods("coordinator")
    container = like["spec"]["containers"][0]
    token = {"serviceAccountToken": {"audience": "hapax", "expirationSeconds": 3600, "path": "token"}}
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {}}, {"name": "token", "projected": {"sources": [token]}}]
    mounts: list[dict[str, Any]] = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "token", "mountPath": "/var/run/secrets/hapax", "readOnly": True}]
    if secret:
        volumes.append({"name": "client", "secret": {"secretName": secret, "defaultMode": 0o440}})
        mounts.append({"name": "client", "mountPath": "/etc/hapax/client", "readOnly": True})
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never", "securityContext": like["spec"]["securityContext"],
            "serviceAccountName": account, "automountServiceAccountToken": False, "volumes": volumes,
            "containers": [{
                "name": "client", "image": container["image"], "imagePullPolicy": container["imagePullPolicy"],
                "command": ["python3", "-c", "import signal; signal.pause()"],
                "securityContext": container["securityContext"], "volumeMounts": mounts}],
        },
    }
    tools = release.tools
    tools.kubectl("apply", "-n", release.namespace, "-f", "-", text=json.dumps(pod))
    tools.kubectl("wait", f"pod/{name}", "-n", release.namespace, "--for=condition=Ready", "--timeout=60s")


def run(release: Release, pod: str, program: str, *words: str) -> str:
    return release.tools.kubectl(
        "exec", pod, "-n", release.namespace, "--", "python3", "-c", program, *words, timeout_s=240)


def test_it_is_closed_and_the_admin_s_secret_opens_it(closed: Release) -> None:
    client_pod(closed, "without", "")
    client_pod(closed, "with", f"{FULL}-admin")
    assert run(closed, "with", WITH_KEY).split() == ["['opened']"]
    assert run(closed, "without", WITHOUT).split() == ["refused"]
    closed.tools.kubectl("create", "serviceaccount", "workloadidentity", "-n", NAMESPACE)
    for offset, login in enumerate(("Scram", "Tls", "WorkloadIdentity")):
        name = login.lower()
        closed.tools.kubectl("apply", "-n", NAMESPACE, "-f", "-", text=USERS % {"name": name, "login": login})
        closed.tools.kubectl(
            "wait", f"users.hapax.dev/{name}", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=90s", timeout_s=120)
        client_pod(closed, f"as-{name}", name, "workloadidentity" if login == "WorkloadIdentity" else "default")
        assert run(closed, f"as-{name}", AS_USER).split() == [str(offset), "refused"]
    audited = closed.tools.kubectl("logs", "-n", NAMESPACE, f"{FULL}-broker-0", "-c", "broker")
    assert any(line.startswith("{") and '"event":"refused"' in line for line in audited.splitlines()), "no audit"
    ports = {
        f"{pod['status']['podIP']}:{port['containerPort']}"
        for role in ("broker", "coordinator", "pid", "operator", "etcd") for pod in closed.pods(role)
        for container in pod["spec"]["containers"] for port in container.get("ports", ())
        # Probes have no key, so these answer, with health and figures alone.
        if port["name"] not in ("http", "metrics")}
    assert len(ports) >= 6 + 6 + 2 + 2 + 2 - 2
    found = [json.loads(line) for line in run(closed, "without", KEYLESS, *sorted(ports)).splitlines()]
    assert len(found) == len(ports)
    for address, plain, tls in found:
        # By TLS, the listener for clients tells what it can do before a login, as Kafka does, and no more.
        assert plain == 0 and (tls == 0 or address.endswith((":9092", ":9095"))), (address, plain, tls)
    clients_outside_are_told_addresses_of_load_balancers(closed)
    pods_have_what_the_values_add(closed)
    names_follow_the_release(closed)
    said = closed.tools.helm("test", closed.name, "-n", closed.namespace, "--logs")
    assert "were read once" in said


def clients_outside_are_told_addresses_of_load_balancers(closed: Release) -> None:
    """By TLS, so that the certificates must have these addresses."""
    closed.tools.kubectl("wait", f"brokerpool/{FULL}-broker", "-n", NAMESPACE, "--for=condition=AddressesKnown",
                         "--timeout=90s", timeout_s=120)
    addresses = give_addresses(closed)
    assert len(addresses) == 3
    said = run(closed, "with", OUTSIDE, f"{addresses.pop(f'{FULL}-external')}:9095")
    assert said.split() == sorted(f"{each}:9095" for each in addresses.values())


def names_follow_the_release(closed: Release) -> None:
    """Those of what the chart makes, and of what the operator makes of it."""
    kinds = "services,statefulsets,deployments,pods,poddisruptionbudgets,configmaps,secrets,serviceaccounts,brokerpools"
    ours = {"default", "kube-root-ca.crt", "with", "without", *(f"{word}{each}" for word in ("", "as-") for each in (
        "scram", "tls", "workloadidentity"))}
    found = {each["metadata"]["name"] for each in closed.tools.get(kinds, "-n", NAMESPACE)["items"]}
    assert not [each for each in found - ours if each != FULL and not each.startswith((f"{FULL}-", "sh.helm."))]


def pods_have_what_the_values_add(closed: Release) -> None:
    for role in ("broker", "coordinator", "pid", "operator", "etcd", "etcd-keeper", "certificates"):
        for pod in closed.pods(role):
            assert pod["metadata"]["labels"]["team"] == "log" and pod["spec"]["priorityClassName"].startswith("system-")
            assert pod["spec"]["serviceAccountName"] == f"{FULL}-{role}"
    for container, words in (("broker", ("printenv", "TZ")), ("broker", ("ls", "-d", "/more")),
                             ("beside", ("ls", "-d", "/data/hapax"))):
        said = closed.tools.kubectl("exec", f"{FULL}-broker-0", "-n", NAMESPACE, "-c", container, "--", *words)
        assert said.split()[-1] in ("UTC", "/more", "/data/hapax")


def test_each_of_two_releases_acts_on_its_own(closed: Release, release: Release) -> None:
    """In a namespace of neither, a resource names its cluster."""
    tools, team = closed.tools, "team-two"
    tools.kubectl("create", "namespace", team)
    try:
        for name in ("open", "shut", "whose"):
            tools.kubectl("apply", "-f", "-", text=json.dumps({
                "apiVersion": "hapax.dev/v1alpha1", "kind": "Topic", "metadata": {"name": name, "namespace": team},
                "spec": {"topicName": f"{team}.{name}", "partitions": 1, "replicationFactor": 1}}))
            wait = ("-n", team, "wait", f"topic.hapax.dev/{name}", "--timeout=90s")
            tools.kubectl(*wait, "--for=jsonpath={.status.conditions[0].reason}=ClusterNotNamed")
        ours = {"open": f"{release.namespace}.hapax", "shut": f"{closed.namespace}.{FULL}"}
        for name, cluster in (*ours.items(), ("whose", "nowhere.hapax")):
            tools.kubectl("-n", team, "label", f"topic.hapax.dev/{name}", f"hapax.dev/cluster={cluster}")
        for name, cluster in ours.items():
            tools.kubectl("-n", team, "wait", f"topic.hapax.dev/{name}", "--for=condition=Ready", "--timeout=90s")
            assert tools.get("topic.hapax.dev", name, "-n", team)["status"]["cluster"] == cluster
        tools.kubectl("-n", team, "wait", "topic.hapax.dev/whose", "--timeout=90s",
                      "--for=jsonpath={.status.conditions[0].reason}=ClusterUnknown")
        program = "import sys; from hapax.client.blocking import Admin; print([each.name for each in Admin({" \
            "'bootstrap.servers': sys.argv[1]}).list_topics() if each.name.startswith('team-two.')])"
        found = tools.kubectl("-n", release.namespace, "exec", "hapax-broker-0", "--", "python3", "-c", program,
                              "localhost:9092")
        assert found.split() == [f"['{team}.open']"]
    finally:
        tools.kubectl("-n", team, "delete", "topics.hapax.dev", "--all", timeout_s=90)
        tools.kubectl("delete", "namespace", team, timeout_s=120)

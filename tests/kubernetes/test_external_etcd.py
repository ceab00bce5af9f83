"""A release that uses an etcd that is there already: what the chart renders, and its pods against a real one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from aetcd.rpc import auth_pb2, rpc_pb2

from hapax.client import HapaxError, NewTopic
from hapax.client.blocking import Admin
from hapax.client.properties import parse_properties
from hapax.local.authority import Authority
from hapax.local.etcd import find_etcd
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.by_hand import ByHand
from hapax_kube.certificates import KINDS, NAME, VALUES
from hapax_kube.operator import Namespace
from integration.etcd_process import EtcdProcess
from integration.waiting import wait_until

CHART = ROOT / "charts" / "hapax"
Render = Callable[..., list[dict[str, Any]]]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]
OUTSIDE = ("etcd.enabled=false", 'etcd.external.endpoints=["https://a.example:2379","https://b.example:2380"]')
CERTIFIED = (*OUTSIDE, 'etcd.external.tls.secret="store-tls"')
USERS = (*CERTIFIED, 'etcd.external.login.secret="store-login"', "etcd.external.tls.clientCertificate=false")
ALL = ("admin.enabled=true", 'admin.tokensSecret="t"', "monitoring.rules.enabled=true")
SETTINGS = ("HAPAX_ETCD_ENDPOINTS", "HAPAX_ETCD_SSL_TRUSTSTORE_LOCATION", "HAPAX_ETCD_SSL_CERTIFICATE_LOCATION",
            "HAPAX_ETCD_SSL_KEY_LOCATION", "HAPAX_ETCD_USERNAME", "HAPAX_ETCD_PASSWORD_LOCATION")


def of_etcd(objects: list[dict[str, Any]]) -> dict[str, tuple[set[str], dict[str, str]]]:
    """Component -> its settings of etcd, and the Secrets of etcd that it mounts, by their places."""
    found = {}
    for each in objects:
        if each["kind"] in ("StatefulSet", "Deployment"):
            pod = each["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            secrets = {volume["name"]: volume["secret"]["secretName"]
                       for volume in pod["volumes"] if volume["name"].startswith("etcd")}
            mounts = {mount["mountPath"]: secrets[mount["name"]]
                      for mount in container["volumeMounts"] if mount["name"] in secrets}
            names = {entry["name"] for entry in container.get("env", ())} & set(SETTINGS)
            found[each["metadata"]["name"].removeprefix("demo-hapax-")] = names, mounts
    return found


@pytest.mark.parametrize("opened", [False, True])
def test_every_process_reaches_the_etcd_that_is_named_and_none_is_installed(render: Render, opened: bool) -> None:
    more = (*ALL, "security.enabled=false") if opened else ALL
    keeper = set() if opened else {"certificates"}
    for values, settings, mounts in (
        (CERTIFIED, set(SETTINGS[:4]), {"/etc/hapax/etcd": "store-tls"}),
        (USERS, {*SETTINGS[:2], *SETTINGS[4:]},
         {"/etc/hapax/etcd": "store-tls", "/etc/hapax/etcd-login": "store-login"}),
    ):
        objects = render(*values, *more)
        found = of_etcd(objects)
        assert found.keys() == {"broker", "coordinator", "pid", "operator", "admin"} | keeper, "no member, no keeper"
        for component, (names, mounted) in found.items():
            assert mounted == mounts, component
            assert names == (set() if component == "certificates" else settings), component
        assert not [each for each in objects if "-etcd" in each["metadata"]["name"]]


def test_connections_to_it_are_permitted_and_its_alerts_are_not_the_chart_s(render: Render) -> None:
    objects = render(*USERS, *ALL, 'networkPolicy.etcd=[{"ipBlock":{"cidr":"192.0.2.0/24"}}]')
    rule = {"ports": [{"port": 2379}, {"port": 2380}], "to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}
    policies = {each["metadata"]["name"].removeprefix("demo-hapax-"): each["spec"] for each in objects
                if each["kind"] == "NetworkPolicy"}
    for component in ("broker", "coordinator", "pid", "operator", "admin", "certificates"):
        assert rule in policies[component]["egress"], component
    assert rule not in policies["test"]["egress"] and "etcd" not in policies
    (rules,) = (each for each in objects if each["kind"] == "PrometheusRule")
    named = [each["alert"] for group in rules["spec"]["groups"] for each in group["rules"]]
    whole = yaml.safe_load((CHART / "files" / "monitoring" / "rules.yaml").read_text())
    wanted = [each for group in whole["groups"] for each in group["rules"] if not each["alert"].startswith("HapaxEtcd")]
    assert [each for group in rules["spec"]["groups"] for each in group["rules"]] == wanted
    assert "HapaxNoController" in named and not [each for each in named if each.startswith("HapaxEtcd")]


@pytest.mark.parametrize(("values", "said"), [
    (OUTSIDE, "etcd.external.tls.secret must name a Secret with ca.crt"),
    ((*CERTIFIED, "etcd.external.tls.clientCertificate=false"), "an etcd that takes every caller is not for security"),
    (("etcd.enabled=false",), "must name an etcd"),
    ((*CERTIFIED, "etcd.enabled=true"), "set etcd.enabled=false"),
    (('etcd.enabled=false', 'etcd.external.endpoints=["a:1"]'), "does not begin with https://"),
    ((*USERS, 'settings={"etcd.username":"x"}'), "settings: etcd.username is set by the chart"),
])
def test_half_a_description_is_refused(helm: Helm, values: tuple[str, ...], said: str) -> None:
    done = helm("template", "demo", str(CHART), *(word for value in values for word in ("--set-json", value)))
    assert done.returncode != 0 and said in done.stderr, done.stderr


@pytest.mark.parametrize(("was", "becomes"), [("true", "false"), ("false", "true")])
def test_a_release_keeps_its_etcd(
    kube_api: KubeApi, namespace: Namespace, helm: Helm, render: Render, tmp_path: Path, was: str, becomes: str
) -> None:
    values = {"true": (), "false": CERTIFIED}
    objects = tmp_path / "objects.yaml"
    objects.write_text(yaml.safe_dump_all(
        each for each in render(*values[was], namespace=namespace.name) if each["kind"] == "StatefulSet"))
    assert kube_api.kubectl("apply", "-f", str(objects)).returncode == 0
    words = [word for value in values[becomes] for word in ("--set-json", value)]
    done = helm("template", "demo", str(CHART), "--namespace", namespace.name, "--dry-run=server", "--kubeconfig",
                str(kube_api.kubeconfig), *words)
    assert f"was installed with etcd.enabled={was}" in done.stderr, done.stderr


# --- against a real etcd


def close_to_others(endpoint: str, authority: Authority, cluster_id: str) -> None:
    """A user with a password, who may do what the page says."""
    channel: object = grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(authority.certificate))

    def call(method: str, **fields: Any) -> None:
        name = method if method == "AuthEnable" else f"Auth{method}"
        request, answer = getattr(rpc_pb2, f"{name}Request"), getattr(rpc_pb2, f"{name}Response")
        channel.unary_unary(  # type: ignore[attr-defined]
            f"/etcdserverpb.Auth/{method}", request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString)(request(**fields), wait_for_ready=True, timeout=20)

    for user, password in (("root", "r"), ("hapax", "a word")):
        call("RoleAdd", name=user)
        call("UserAdd", name=user, password=password)
        call("UserGrantRole", user=user, role=user)
    for prefix in (f"/hapax/{cluster_id}", f"/hapax-admin/{cluster_id}"):
        call("RoleGrantPermission", name="hapax", perm=auth_pb2.Permission(
            permType=auth_pb2.Permission.READWRITE, key=f"{prefix}/".encode(), range_end=f"{prefix}0".encode()))
    call("AuthEnable")
    channel.close()  # type: ignore[attr-defined]


@pytest.fixture
def authority() -> Authority:
    return Authority.make("the company's")


@pytest.fixture
def etcd(authority: Authority, tmp_path: Path) -> Iterator[EtcdProcess]:
    issued = authority.issue("CN=store", ["localhost", "127.0.0.1"], use="server")
    (tmp_path / "store.crt").write_bytes(issued.certificate)
    (tmp_path / "store.key").write_bytes(issued.key)
    made = EtcdProcess(find_etcd(sound_only=True).path, tmp_path / "store", "store",
                       (tmp_path / "store.crt", tmp_path / "store.key"))
    made.start()
    close_to_others(made.endpoint, authority, "hapax")
    yield made
    made.close()


@pytest.mark.timeout(300)
def test_a_cluster_works_on_an_etcd_that_asks_for_a_password(
    kube_api: KubeApi, namespace: Namespace, render: Render, etcd: EtcdProcess, authority: Authority, tmp_path: Path
) -> None:
    values = [each for each in VALUES if not each.startswith(("etcd.", "admin."))]
    objects = render(
        *values, f'operator.watchNamespaces=["{namespace.name}"]', "etcd.enabled=false",
        f'etcd.external.endpoints=["https://127.0.0.1:{etcd.client_port}"]', *USERS[2:], namespace=namespace.name)
    applied = tmp_path / "objects.yaml"
    applied.write_text(yaml.safe_dump_all(each for each in objects if each["kind"] in KINDS))
    assert kube_api.kubectl("apply", "-f", str(applied)).returncode == 0
    for name, data in (("store-tls", {"ca.crt": authority.certificate.decode()}),
                       ("store-login", {"username": "hapax", "password": "a word"})):
        kube_api.create(
            f"/api/v1/namespaces/{namespace.name}/secrets", {"metadata": {"name": name}, "stringData": data})
    release = ByHand(kube_api, namespace.name, objects, tmp_path / "pods")
    release.stays(etcd.client_port)
    certificates = kube_api.kubeconfig_of(namespace.name, f"{NAME}-certificates")
    operator = kube_api.kubeconfig_of(namespace.name, f"{NAME}-operator")
    (tmp_path / "pods").mkdir()
    # The keeper runs as the pod would: its places are those of the pod that mounts the Secrets.
    assert release.start("Deployment", "certificates", KUBECONFIG=str(certificates)) is not None
    try:
        wait_until(lambda: release.start(
            "StatefulSet", "broker", f"{NAME}-broker-0", 0, KUBECONFIG=str(operator)) is not None,
            f"Secrets: {release.pods[f'{NAME}-certificates'].log[-2000:]}", 90)
        for kind, component, node_id in (
            ("StatefulSet", "coordinator", 100), ("Deployment", "pid", 200), ("Deployment", "operator", 300),
        ):
            pod = f"{NAME}-{component}" + (f"-{node_id}" if kind == "StatefulSet" else "")
            assert release.start(kind, component, pod, node_id, KUBECONFIG=str(operator)) is not None
        data = release.secret(f"{NAME}-admin")
        assert data is not None
        given = parse_properties(data["client.properties"].decode())
        where = {**given, "bootstrap.servers": f"127.0.0.1:{release.port(f'{NAME}-broker-0', 9092)}"}

        def created() -> bool:
            try:
                with Admin(where) as admin:
                    if "kept" in admin.list_topics():  # an answer to the creation may have been lost
                        return True
                    admin.create_topics([NewTopic("kept", 2)])
            except HapaxError:
                return False
            return True

        wait_until(created, "topic", 60, every_s=0.5)
    finally:
        release.close()
        kube_api.kubectl("delete", "--wait=false", "-f", str(applied))

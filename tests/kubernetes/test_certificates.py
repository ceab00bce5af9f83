"""The keeper of certificates with the chart's rights alone, on a real API server, and a cluster of real processes that
runs by what the chart renders: who has no key gets in nowhere, and a change of every authority disturbs nobody."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from hapax.client import HapaxError, NewTopic
from hapax.client.blocking import Admin, Consumer, Producer
from hapax.client.properties import parse_properties
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.by_hand import ByHand
from hapax_kube.certificates import KINDS, NAME, VALUES, Keeper
from hapax_kube.operator import Namespace
from hapax_kube.sni_router import SniRouter
from hapax_kube.users import ISSUER, profile, service_account_token, write
from integration.etcd_process import free_ports
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(420)

ROLES = {  # component -> kind, pod, node id
    "broker": ("StatefulSet", f"{NAME}-broker-0", 0), "coordinator": ("StatefulSet", f"{NAME}-coordinator-100", 100),
    "pid": ("Deployment", f"{NAME}-pid", 200), "operator": ("Deployment", f"{NAME}-operator", 300),
    "admin": ("Deployment", f"{NAME}-admin", 0),
}
OUTSIDE = ("external.enabled=true", 'external.type="TLSRoute"', 'external.domain="log.example"',
           'external.hostTemplate="{role}-{id}.{domain}"', 'external.gateway={"name":"edge"}')
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def objects(render: Render, namespace: Namespace) -> list[dict[str, Any]]:
    return render(*VALUES, f'operator.watchNamespaces=["{namespace.name}"]', f'users.tokenIssuer="{ISSUER}"',
                  *OUTSIDE, f"external.port={free_ports(1)[0]}",
                  namespace=namespace.name)


@pytest.fixture
def release(kube_api: KubeApi, namespace: Namespace, objects: list[dict[str, Any]], tmp_path: Path) -> Iterator[ByHand]:
    applied = tmp_path / "objects.yaml"
    applied.write_text(yaml.safe_dump_all(
        each for each in objects if each["kind"] in (*KINDS, "StatefulSet")))
    done = kube_api.kubectl("apply", "-f", str(applied))
    assert done.returncode == 0, done.stderr
    kube_api.create(f"/api/v1/namespaces/{namespace.name}/secrets", {
        "metadata": {"name": "tokens"}, "stringData": {"tokens": "ops admin a-token-of-some-length\n"}})
    made = ByHand(kube_api, namespace.name, objects, tmp_path / "pods")
    made.report_etcd(settled=True)
    yield made
    made.close()
    kube_api.kubectl("delete", "--wait=false", "-f", str(applied))


@pytest.fixture
def keeper(release: ByHand, kube_api: KubeApi, tmp_path: Path) -> Iterator[Keeper]:
    (tmp_path / "pods").mkdir(exist_ok=True)
    made = Keeper(release, tmp_path, kube_api.kubeconfig_of(release.namespace, f"{NAME}-certificates"))
    made.start()
    yield made
    made.close()


@pytest.fixture
def cluster(release: ByHand, keeper: Keeper) -> ByHand:
    """All processes run."""
    wait_until(lambda: release.start("StatefulSet", "etcd", f"{NAME}-etcd-0") is not None, f"etcd: {keeper.log}", 60)
    wait_until(keeper.ready.exists, "Secrets of all", 90)
    operator = release.api.kubeconfig_of(release.namespace, f"{NAME}-operator")
    for component, (kind, name, node_id) in ROLES.items():
        assert release.start(kind, component, name, node_id, KUBECONFIG=str(operator)) is not None
    for _, name, _ in ROLES.values():
        wait_until(lambda name=name: serves(release, name), f"{name}: {release.pods[name].log[-3000:]}", 120,  # type: ignore[misc]
                   every_s=0.3)
    return release


def serves(release: ByHand, name: str) -> bool:
    pod = release.pods[name]
    assert pod.process is not None and pod.process.poll() is None, pod.log[-3000:]
    trust = ssl.create_default_context(cafile=str(pod.path("etc/hapax/tls/services-ca.crt")))
    try:
        with (
            socket.create_connection(("127.0.0.1", release.port(name, 8080)), timeout=5) as plain,
            trust.wrap_socket(plain, server_hostname=f"{NAME}.{release.namespace}.svc") as connection,
        ):
            connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return connection.recv(12) == b"HTTP/1.1 200"
    except ConnectionError:
        return False


def settings_of(release: ByHand, secret: str = f"{NAME}-admin") -> dict[str, object]:
    """Of the client that the admin's Secret describes, for loopback."""
    data = release.secret(secret)
    assert data is not None
    found = parse_properties(data["client.properties"].decode())
    assert found["bootstrap.servers"] == f"{NAME}.{release.namespace}.svc.cluster.local:9092"
    return {**found, "bootstrap.servers": f"127.0.0.1:{release.port(f'{NAME}-broker-0', 9092)}"}


def test_etcd_comes_first_and_pods_wait_for_their_secrets(release: ByHand, keeper: Keeper) -> None:
    wait_until(lambda: release.secret(f"{NAME}-etcd-tls") is not None, f"Secret of etcd: {keeper.log}", 60)
    wait_until(lambda: release.secret(f"{NAME}-admin") is not None, "Secret of the admin", 60)
    for component, (kind, name, node_id) in ROLES.items():
        assert release.start(kind, component, name, node_id) is None, f"{component} need not wait for etcd"
    assert not keeper.ready.exists()
    assert release.start("StatefulSet", "etcd", f"{NAME}-etcd-0") is not None
    wait_until(keeper.ready.exists, f"end of the start: {keeper.log}", 90)
    names = {"issuers", "etcd-tls", "admin", "operator-client", "rest-client", "broker-tls", "coordinator-tls",
             "pid-tls", "operator-tls", "admin-tls", "trust", "users-authority"}
    for name in names:
        data = release.secret(f"{NAME}-{name}")
        assert data is not None, name
        assert ("state.json" in data) == (name == "issuers")
    broker = release.secret(f"{NAME}-broker-tls")
    assert broker is not None
    assert {"0.crt", "0.key", "0-public.crt", "1.crt", "services-ca.crt", "clients-ca.crt"} <= broker.keys()
    assert "2.crt" not in broker and not any(".key" in each and "ca" in each for each in broker)
    # A restart of the keeper changes nothing.
    versions = {name: version(release, name) for name in names}
    keeper.close()
    keeper.ready.unlink()
    keeper.start()
    wait_until(keeper.ready.exists, "second start", 60)
    assert {name: version(release, name) for name in names} == versions
    # What a person deletes comes back, with another password.
    password = (release.secret(f"{NAME}-admin") or {})["password"]
    for name in ("pid-tls", "admin"):
        release.api.delete(f"/api/v1/namespaces/{release.namespace}/secrets/{NAME}-{name}")
    wait_until(lambda: release.secret(f"{NAME}-admin") is not None, "another password", 60)
    wait_until(lambda: release.secret(f"{NAME}-pid-tls") is not None, "the Secret again", 60)
    assert (release.secret(f"{NAME}-admin") or {})["password"] != password
    # More brokers have certificates before their pods exist.
    release.api.patch(f"/apis/apps/v1/namespaces/{release.namespace}/statefulsets/{NAME}-broker", {
        "spec": {"replicas": 4}})
    wait_until(lambda: "4.crt" in (release.secret(f"{NAME}-broker-tls") or {}), "certificates of new brokers", 60)


def version(release: ByHand, name: str) -> str:
    found = release.api.get(f"/api/v1/namespaces/{release.namespace}/secrets/{NAME}-{name}")
    return str(found["metadata"]["resourceVersion"])


def test_who_has_no_key_gets_in_nowhere_and_the_admin_does_everything(cluster: ByHand) -> None:
    settings = settings_of(cluster)
    with Admin(settings) as admin:
        admin.create_topics([NewTopic("orders", 2)])
        with Producer({**settings, "transactional.id": "t"}) as producer, producer.transaction():
            producer.send("orders", b"one", partition=0)
        with Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign(consumer.partitions("orders"))
            seen: list[bytes | None] = []
            wait_until(lambda: bool(seen.extend(each.value for each in consumer.poll()) or seen), "record", 60)
        assert seen == [b"one"]
    refused_everywhere(cluster, settings)
    clients_outside_are_led_by_names(cluster)
    namespace = Namespace(cluster.api, cluster.namespace)
    namespace.topic("from-a-resource", partitions=1)
    wait_until(lambda: namespace.ready("from-a-resource"), "topic of a resource", 90)
    namespace.producer("loader", transactionalId="loader")
    wait_until(lambda: namespace.ready("loader", "transactionalproducers"), "producer of a resource", 90)
    namespace.producer("leased", lease={"name": "files", "partitions": ["orders-0"], "expireSeconds": 3600})
    wait_until(lambda: namespace.ready("leased", "transactionalproducers"), "lease of a resource", 90)
    users_log_in(cluster, namespace)


def clients_outside_are_led_by_names(cluster: ByHand) -> None:
    """One address leads to all nodes, and none of what is said on the way can be read there."""
    routes, port = {}, 0
    for each in cluster.objects:
        if each["kind"] == "TLSRoute":
            (name,), ((backend,),) = each["spec"]["hostnames"], (rule["backendRefs"] for rule in each["spec"]["rules"])
            pod = backend["name"].removesuffix("-external")
            routes[name] = ("127.0.0.1", cluster.port(f"{NAME}-broker-0" if pod == NAME else pod, backend["port"]))
    told = {entry["name"]: entry.get("value", "") for each in cluster.objects if each["kind"] == "StatefulSet"
            for entry in each["spec"]["template"]["spec"]["containers"][0].get("env", ())}
    port = int(told["HAPAX_ADVERTISED_LISTENERS"].rpartition(":")[2])
    assert routes.keys() == {f"{NAME}.log.example", "broker-0.log.example", "coordinator-100.log.example"}
    settings = {key: value for key, value in settings_of(cluster).items() if key.startswith("s")}
    folder = cluster.pods[f"{NAME}-broker-0"].folder
    (folder / "hosts").write_text("".join(f"127.0.0.1 {name}\n" for name in ("localhost", *routes)))
    (folder / "ca.crt").write_bytes((cluster.secret(f"{NAME}-trust") or {})["clients-ca.crt"])
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin",
             "sasl.password": (cluster.secret(f"{NAME}-admin") or {})["password"].decode(),
             "ssl.ca.location": str(folder / "ca.crt")}
    assert settings["security.protocol"] == given["security.protocol"]
    router = SniRouter(port, routes)
    try:
        done = subprocess.run(
            ["unshare", *(["--user", "--map-root-user"] if os.geteuid() else []), "--mount",
             "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(folder / "hosts"),
             sys.executable, "-m", "hapax_kube.outside_client", f"{NAME}.log.example:{port}", json.dumps(given), "far"],
            capture_output=True, text=True, timeout=150, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests")})
    finally:
        router.close()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "seen": ["0", "1", "2", "3"],
        "nodes": [f"broker-0.log.example:{port}", f"coordinator-100.log.example:{port}"]}
    assert set(router.seen) == set(routes)


def users_log_in(cluster: ByHand, namespace: Namespace) -> None:
    """Users need no value of the chart: neither for passwords nor for certificates."""
    writes = [{"type": "Topic", "name": "orders", "operations": ["Write"]}]
    for login, protocol in (("Scram", "SASL_SSL"), ("Tls", "SSL")):
        name = login.lower()
        namespace.user(name, login, acls=writes)
        wait_until(lambda name=name: namespace.ready(name, "users"),  # type: ignore[misc]
                   f"{login}: {namespace.get('users', name).get('status')}", 90)
        found = profile(namespace, name)
        assert found["security.protocol"] == protocol
        assert (write(found, "orders"), write(found, "others")) == ("", "TOPIC_AUTHORIZATION_FAILED")
    namespace.user("runner", "WorkloadIdentity", acls=writes)
    wait_until(lambda: namespace.ready("runner", "users"), "User of a service account", 90)
    found, token = profile(namespace, "runner"), cluster.pods[f"{NAME}-broker-0"].folder / "token"
    nothing = "CLUSTER_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"
    for account, outcomes in (("runner", ("", "TOPIC_AUTHORIZATION_FAILED")), ("other", nothing)):
        token.write_text(service_account_token(namespace, account))
        found["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
        assert (write(found, "orders"), write(found, "others")) == outcomes
    # On the listener of certificates, neither none nor one of the cluster's own processes opens.
    data, broker = cluster.secret(f"{NAME}-broker-tls") or {}, cluster.pods[f"{NAME}-broker-0"]
    (broker.folder / "own.pem").write_bytes(data["0.crt"] + data["0.key"])
    for certificate in (None, broker.folder / "own.pem"):
        assert closed(cluster.port(broker.name, 9098), broker.path("etc/hapax/tls/clients-ca.crt"), certificate)


def refused_everywhere(cluster: ByHand, settings: dict[str, object]) -> None:
    bootstrap = settings["bootstrap.servers"]
    trusting = {key: value for key, value in settings.items() if key.startswith("ssl.truststore")}
    for bad in (
        {"bootstrap.servers": bootstrap},
        {**trusting, "bootstrap.servers": bootstrap, "security.protocol": "SSL"},
        {**settings, "sasl.jaas.config": str(settings["sasl.jaas.config"]).replace('password="', 'password="x')},
    ):
        with pytest.raises(HapaxError), Admin({**bad, "default.api.timeout.ms": 3000}) as admin:  # type: ignore[dict-item]
            admin.list_topics()
    # A certificate of a client passes for none of a process.
    data = cluster.secret(f"{NAME}-admin") or {}
    folder = cluster.pods[f"{NAME}-admin"].folder
    (folder / "user.pem").write_bytes(data["user.crt"] + data["user.key"])
    services = cluster.pods[f"{NAME}-broker-0"].path("etc/hapax/tls/services-ca.crt")
    asked = 0
    for pod, ports in ((f"{NAME}-broker-0", (9093, 9094, 9097)), (f"{NAME}-coordinator-100", (9093, 9094, 9097)),
                       (f"{NAME}-pid", (9094,)), (f"{NAME}-operator", (9094,)), (f"{NAME}-etcd-0", (2379, 2380))):
        for port in ports:
            for certificate in (None, folder / "user.pem"):
                assert closed(cluster.port(pod, port), services, certificate), f"{pod} {port}"
                asked += 1
    assert asked == 20
    clients = ssl.create_default_context(cadata=data["clients-ca.crt"].decode())
    for pod in (f"{NAME}-broker-0", f"{NAME}-pid", f"{NAME}-operator"):
        channel = grpc.secure_channel(
            f"127.0.0.1:{cluster.port(pod, 9096)}", grpc.ssl_channel_credentials(data["clients-ca.crt"]))
        with pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=2)
        channel.close()
    with (
        socket.create_connection(("127.0.0.1", cluster.port(f"{NAME}-admin", 8090)), timeout=10) as plain,
        clients.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 401"


def closed(port: int, authorities: Path, certificate: Path | None) -> bool:
    """Whether a client that trusts the server, and shows at most this certificate, is shut out."""
    context = ssl.create_default_context(cafile=str(authorities))
    context.check_hostname = False
    if certificate is not None:
        context.load_cert_chain(certificate)
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain) as connection,
        ):
            connection.sendall(b"\x00\x00\x00\x10" + b"\x00" * 16)
            return connection.recv(1) == b""
    except ssl.SSLEOFError:  # etcd's port for members closes without an alert
        return True
    except ssl.SSLError as error:
        assert "ALERT" in str(error).upper(), error
        return True
    except ConnectionError:
        return True


def test_each_authority_is_replaced_while_clients_work(cluster: ByHand) -> None:
    settings = settings_of(cluster)
    with Admin(settings) as admin:
        admin.create_topics([NewTopic("orders", 1)])
    namespace = Namespace(cluster.api, cluster.namespace)
    namespace.user("certified", "Tls", acls=[{"type": "Topic", "name": "orders", "operations": ["Describe"]}])
    wait_until(lambda: namespace.ready("certified", "users"), "User", 90)
    former = profile(namespace, "certified")
    work = Work(settings)
    pods = Kubelet(cluster)
    work.start()
    pods.start()
    try:
        before = {each: issuers(cluster, each) for each in ("services", "clients")}
        cluster.api.patch(f"/api/v1/namespaces/{cluster.namespace}/secrets/{NAME}-issuers", {
            "metadata": {"annotations": {"hapax.dev/rotate-services": "1", "hapax.dev/rotate-clients": "1"}}})
        for each, old in before.items():
            wait_until(
                lambda each=each, old=old: issuers(cluster, each) and not issuers(cluster, each) & old,  # type: ignore[misc]
                f"end of the old issuer: {each}", 180, every_s=0.5)
        done = work.committed
        wait_until(lambda: work.committed > done + 20, "transactions after it", 60)
        wait_until(lambda: profile(namespace, "certified")["ssl.keystore.key"] != former["ssl.keystore.key"],
                   "a certificate of the new authority for the User", 60, every_s=0.5)
        with Admin(profile(namespace, "certified")) as admin:
            assert [each.name for each in admin.list_topics()] == ["orders"]
    finally:
        pods.close()
        work.close()
    assert not pods.failures and not work.failures, (pods.failures, work.failures)
    assert pods.rolls >= 2, "the members of etcd did not start again"
    fresh = settings_of(cluster)
    assert fresh["ssl.truststore.certificates"] != settings["ssl.truststore.certificates"]
    with Consumer({**fresh, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(consumer.partitions("orders"))
        seen: list[bytes | None] = []
        wait_until(lambda: bool(seen.extend(each.value for each in consumer.poll()) or len(seen) >= work.committed),
                   "all records", 60)
    assert seen == [b"%d" % number for number in range(len(seen))]


def issuers(cluster: ByHand, authority: str) -> set[str]:
    state = json.loads((cluster.secret(f"{NAME}-issuers") or {})["state.json"])
    return {each["id"] for each in state["issuers"][authority]}


class Work(threading.Thread):
    """One transaction after the other. It has the trust store that it began with, as a client outside."""

    def __init__(self, settings: dict[str, object]) -> None:
        super().__init__()
        self.committed = 0
        self.failures: list[BaseException] = []
        self._settings = settings
        self._end = threading.Event()

    def run(self) -> None:
        try:
            with Producer({**self._settings, "transactional.id": "work"}) as producer:
                while not self._end.wait(0.05):
                    with producer.transaction():
                        producer.send("orders", b"%d" % self.committed)
                    self.committed += 1
        except BaseException as error:
            self.failures.append(error)

    def close(self) -> None:
        self._end.set()
        self.join()


class Kubelet(threading.Thread):
    """Brings Secrets to the pods, and starts the member of etcd again when its workload says so."""

    def __init__(self, cluster: ByHand) -> None:
        super().__init__()
        self.rolls = 0
        self.failures: list[BaseException] = []
        self._cluster = cluster
        self._mark = cluster.etcd_mark()
        self._end = threading.Event()

    def run(self) -> None:
        try:
            while not self._end.wait(0.3):
                self._cluster.sync()
                mark = self._cluster.etcd_mark()
                if mark != self._mark:
                    self._cluster.restart_etcd(f"{NAME}-etcd-0")
                    self._cluster.report_etcd(settled=True)
                    self._mark = mark
                    self.rolls += 1
        except BaseException as error:
            self.failures.append(error)

    def close(self) -> None:
        self._end.set()
        self.join()

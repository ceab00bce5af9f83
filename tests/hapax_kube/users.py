"""A real cluster whose clients log in on two listeners, with passwords or tokens, and with certificates, and what its
operator is told of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from clients.logins import AUDIENCE, Logins
from clients.secured import SECOND
from hapax.client import NewTopic
from hapax.client.blocking import Admin, Consumer, Producer
from hapax.client.errors import HapaxError
from hapax.client.properties import parse_properties
from hapax.core.errors import ErrorCode
from hapax.local.authority import key_pem
from hapax.local.cluster import LocalCluster
from hapax_kube.operator import Namespace

ISSUER: Final = "https://kubernetes.default.svc"
"""Of the tests' API server."""
CERTIFIED: Final = SECOND
"""From the first port of the listener with passwords to that of the one with certificates."""
RULES: Final = [{
    "names": ["*"], "topics": ["{namespace}.*"], "groups": ["{namespace}.*"], "transactionalIds": ["{namespace}.*"],
    "users": ["{namespace}.*"], "quotas": {"producer_byte_rate": 1_000_000}}]
SETTINGS: Final = ("authorizer.class.name=acl", "super.users=User:ANONYMOUS", "num.partitions=1")


def cluster_settings(users: Logins) -> list[str]:
    """Of a local cluster. The listener of the nodes is open, and the authoriser is on."""
    port = users.tls.port
    others = [each for each in users.settings(*SETTINGS) if not each.startswith((
        "listeners=", "sasl.oauthbearer.expected.issuer="))]
    return [
        *others, f"listeners=SASL_SSL://127.0.0.1:{port}+node.id,CERTIFIED://127.0.0.1:{port + CERTIFIED}+node.id",
        "listener.security.protocol.map=CERTIFIED:SSL", "listener.name.certified.ssl.client.auth=required",
        f"ssl.truststore.location={users.tls.folder / 'ca.crt'}",
        f"sasl.oauthbearer.expected.issuer={ISSUER}"]


def write_authority(users: Logins) -> Path:
    """A folder with the authority of clients' certificates, which the listener trusts."""
    folder = users.tls.folder / "clients-ca"
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(users.tls.authority.certificate)
    (folder / "ca.key").write_bytes(key_pem(users.tls.authority._key))
    return folder


def operator_arguments(users: Logins, folder: Path, **changes: Any) -> list[str]:
    """`changes`: of the operator's file; `clients` is merged."""
    document = {"namespaces": RULES, **changes, "clients": {
        "bootstrapServers": users.bootstrap, "securityProtocol": "SASL_SSL",
        "tlsBootstrapServers": f"127.0.0.1:{users.tls.port + CERTIFIED}",
        "caFile": str(users.tls.folder / "ca.crt"), **changes.get("clients", {})}}
    path = folder / "access.json"
    path.write_text(json.dumps(document))
    return ["--access", str(path), *(word for each in SETTINGS[:2] for word in ("--set", each))]


def profile(namespace: Namespace, name: str) -> dict[str, str]:
    """The settings of a native client, as they stand in the Secret; empty: there is none."""
    secret = namespace.secret(name)
    return parse_properties(secret["client.properties"]) if secret else {}


def topics(hapax: LocalCluster, *names: str) -> None:
    with Admin({"bootstrap.servers": hapax.bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 1, 1) for name in names])


def write(settings: Mapping[str, str], topic: str) -> str:
    """The code of the error with which a record is refused; empty: it is stored."""
    try:
        with Producer({**settings, "delivery.timeout.ms": 20_000}) as producer:
            producer.send(topic, b"x").result(30)
    except HapaxError as error:
        return ErrorCode(error.code).name if error.code else repr(error)
    return ""


def read_one(settings: Mapping[str, str], topic: str, group: str) -> int:
    """The number of records that a member of the group gets, of a topic that has some. Raises HapaxError."""
    with Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        while not (found := consumer.poll(30_000)):
            pass
        return len(found)


def service_account_token(namespace: Namespace, account: str) -> str:
    """A real one, as a pod of the account has it."""
    path = f"/api/v1/namespaces/{namespace.name}/serviceaccounts"
    namespace.api.create(path, {"metadata": {"name": account}})
    granted = namespace.api.create(f"{path}/{account}/token", {
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": [AUDIENCE], "expirationSeconds": 600}})
    return str(granted["status"]["token"])

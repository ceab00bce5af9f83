"""The file by which the chart tells the keeper of certificates what to keep, and what follows from it. Pure.

    {"cluster": "hapax", "namespace": "prod", "labels": {...}, "issuers": "demo-hapax-issuers",
     "certManager": false, "certificateDays": 90, "authorityDays": 1825,
     "overlapSeconds": {"services": 900, "clients": 2592000},
     "secrets": [
       {"name": "demo-hapax-broker-tls", "first": 0, "count": 7, "workload": "demo-hapax-broker", "spare": 4,
        "leaves": [{"name": "{id}", "authority": "services", "subject": "CN=hapax-broker",
                    "names": ["spiffe://hapax/broker/{id}"], "use": "both"}, ...]},
       {"name": "demo-hapax-admin", "user": "admin", "early": true, "leaves": [...]}],
     "etcd": {"endpoints": ["..."], "workload": "demo-hapax-etcd", "secret": "demo-hapax-etcd-tls"},
     "outside": {"bootstrap": "demo-hapax-external", "nodes": {"0": "demo-hapax-broker-0-external"}},
     "clients": {"bootstrap": "...", "folder": "/etc/hapax/client"}}

A leaf with `signs` is an authority of its own. A Secret with `count` has its leaves once for each node id from
`first` on. With `workload`, the number follows that StatefulSet's, with `spare` more, so that certificates of new
pods are there before the pods. With `tokens`, it also has the API server's keys for the tokens of service accounts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hapax_operator.plan_certificates import AUTHORITIES, Holder, Leaf

_DAY_S: Final = 86_400
_ID: Final = "{id}"
_OUTSIDE: Final = "{outside}"
"""Among the names of a node's leaf: the addresses that load balancers in `outside` have, its own and bootstrap's."""
_USES: Final = ("server", "client", "both")


class BadSpec(ValueError):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class SecretSpec:
    name: str
    leaves: tuple[Leaf, ...]
    user: str = ""
    first: int = 0
    count: int = 0
    """0: its leaves do not name nodes."""
    workload: str = ""
    spare: int = 0
    early: bool = False
    """Whether it is made before etcd is set up."""
    tokens: bool = False
    """Whether it has the API server's keys for tokens of service accounts."""

    def holder(
        self, replicas: Mapping[str, int], outside: Mapping[int, frozenset[str]], bootstrap: frozenset[str]
    ) -> Holder:
        """`replicas`: of StatefulSets, by name. `outside`: node -> the addresses of its load balancers. `bootstrap`:
        that of the one which leads to any node."""
        count = max(self.count, replicas.get(self.workload, 0) + self.spare) if self.workload else self.count
        leaves = self.leaves
        if self.count:
            leaves = tuple(
                _numbered(leaf, node_id, outside.get(node_id, frozenset()) | bootstrap)
                for node_id in range(self.first, self.first + count) for leaf in self.leaves)
        return Holder(self.name, leaves, self.user, self.early, self.tokens)


@dataclass(frozen=True, slots=True)
class EtcdSpec:
    endpoints: tuple[str, ...]
    """`host:port` of each member."""
    workload: str
    """Its StatefulSet; empty: it is none of the release's, and its users are not the keeper's."""
    secret: str
    """The holder with etcd's certificates and that of its user `root`."""
    folder: str
    """Where the certificate for an etcd is that is none of the release's: ca.crt, and tls.crt and tls.key unless it has
    a login."""
    login_folder: str
    """Where the login is: username and password. Empty: there is none."""


@dataclass(frozen=True, slots=True)
class Spec:
    cluster: str
    namespace: str
    labels: Mapping[str, str]
    issuers: str
    """The Secret with the issuers' certificates and keys, and the state of the keeper. No pod mounts it."""
    cert_manager: bool
    certificate_s: int
    authority_s: int
    overlap_s: Mapping[str, int]
    secrets: tuple[SecretSpec, ...]
    etcd: EtcdSpec
    bootstrap: str
    client_folder: str
    """Where pods mount the Secret of a user."""
    outside: Mapping[int, str]
    """Node -> the Service that leads clients outside to it."""
    outside_bootstrap: str
    """The Service at which they begin; empty: there is none."""

    @property
    def workloads(self) -> list[str]:
        """StatefulSets whose numbers of pods count."""
        return sorted({each.workload for each in self.secrets if each.workload})

    @property
    def services(self) -> list[str]:
        """Those whose load balancers' addresses certificates shall have."""
        return sorted({*self.outside.values(), *filter(None, (self.outside_bootstrap,))})

    def holders(self, replicas: Mapping[str, int], addresses: Mapping[str, str] | None = None) -> list[Holder]:
        """`addresses`: of load balancers, by Service; those that have none yet are missing."""
        addresses = addresses or {}
        outside = {
            node: frozenset({addresses[service]}) for node, service in self.outside.items() if service in addresses}
        # It also leads to nodes that have no Service of their own, such as brokers that a person has added.
        bootstrap = frozenset(filter(None, (addresses.get(self.outside_bootstrap),)))
        # The chart asks cert-manager for as many as the file says.
        return [each.holder({} if self.cert_manager else replicas, outside, bootstrap) for each in self.secrets]


def offer_name(holder: str, leaf: str) -> str:
    """The Secret in which cert-manager puts a leaf."""
    return f"{holder}-{leaf}"


def parse_spec(text: str) -> Spec:
    """Raises BadSpec."""
    try:
        return _spec(json.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise BadSpec(f"the description of certificates cannot be used: {error!r}") from None


def _spec(found: Mapping[str, Any]) -> Spec:
    etcd, outside = found["etcd"], found.get("outside") or {}
    for authority in AUTHORITIES:
        if 3 * int(found["overlapSeconds"][authority]) >= int(found["authorityDays"]) * _DAY_S:
            raise ValueError(
                f"the authority of {authority} would end before the next one may sign: authorityDays must be more"
                " than three times the overlap")
    return Spec(
        cluster=str(found["cluster"]), namespace=str(found["namespace"]), labels=dict(found["labels"]),
        issuers=str(found["issuers"]), cert_manager=bool(found["certManager"]),
        certificate_s=int(found["certificateDays"]) * _DAY_S, authority_s=int(found["authorityDays"]) * _DAY_S,
        overlap_s={each: int(found["overlapSeconds"][each]) for each in AUTHORITIES},
        secrets=tuple(map(_secret, found["secrets"])),
        etcd=EtcdSpec(
            tuple(map(str, etcd["endpoints"])), str(etcd.get("workload", "")), str(etcd.get("secret", "")),
            str(etcd.get("folder", "")), str(etcd.get("loginFolder", ""))),
        bootstrap=str(found["clients"]["bootstrap"]), client_folder=str(found["clients"]["folder"]),
        outside={int(node): str(service) for node, service in (outside.get("nodes") or {}).items()},
        outside_bootstrap=str(outside.get("bootstrap", "")))


def _secret(found: Mapping[str, Any]) -> SecretSpec:
    return SecretSpec(
        str(found["name"]), tuple(map(_leaf, found.get("leaves", ()))), str(found.get("user", "")),
        int(found.get("first", 0)), int(found.get("count", 0)), str(found.get("workload", "")),
        int(found.get("spare", 0)), bool(found.get("early", False)), bool(found.get("tokens", False)))


def _leaf(found: Mapping[str, Any]) -> Leaf:
    use, authority = found.get("use", "both"), str(found["authority"])
    if use not in _USES or authority not in AUTHORITIES:
        raise ValueError(f"{found['name']}: {use}, {authority}")
    return Leaf(
        str(found["name"]), authority, str(found["subject"]), frozenset(map(str, found.get("names", ()))), use,
        bool(found.get("signs", False)))


def _numbered(leaf: Leaf, node_id: int, outside: frozenset[str]) -> Leaf:
    number = str(node_id)
    return leaf._replace(
        name=leaf.name.replace(_ID, number), subject=leaf.subject.replace(_ID, number),
        names=frozenset(each.replace(_ID, number) for each in leaf.names if each != _OUTSIDE) | (
            outside if _OUTSIDE in leaf.names else frozenset()))


# --- settings of clients ------------------------------------------------------------------------------------------


def client_settings(spec: Spec, user: str, password: str, chain: str, key: str, authorities: str) -> str:
    """A file of client settings that is complete by itself, for any client that knows KIP-651. `chain`, `key` and
    `authorities`: PEM."""
    return _settings(spec, user, password, (
        f"ssl.truststore.certificates={_one_line(authorities)}",
        f"ssl.keystore.certificate.chain={_one_line(chain)}",
        f"ssl.keystore.key={_one_line(key)}",
    ))


def mounted_settings(spec: Spec, user: str, password: str) -> str:
    """The same for programs of this project in pods that mount the Secret. They follow its changes."""
    return _settings(spec, user, password, (
        f"ssl.truststore.location={spec.client_folder}/clients-ca.crt",
        f"ssl.certificate.location={spec.client_folder}/user.crt",
        f"ssl.key.location={spec.client_folder}/user.key",
    ))


def _settings(spec: Spec, user: str, password: str, tls: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in (
        f"bootstrap.servers={spec.bootstrap}",
        "security.protocol=SASL_SSL",
        "ssl.truststore.type=PEM",
        "ssl.keystore.type=PEM",
        *tls,
        "sasl.mechanism=SCRAM-SHA-512",
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{user}" password="{password}";',
    ))


def _one_line(pem: str) -> str:
    return pem.strip().replace("\n", "\\n")

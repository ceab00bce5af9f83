"""Certificates by cert-manager: what the chart asks it for, checked by a real API server with its own resource
definitions; the keeper, with what cert-manager would have issued; and both with cert-manager's own controllers, where
they are built (`make cert-manager-test`)."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from hapax.local.authority import Authority
from hapax_kube.api import KubeApi
from hapax_kube.by_hand import ByHand
from hapax_kube.cert_manager import controllers, definitions
from hapax_kube.certificates import KINDS, NAME, VALUES, Keeper
from hapax_kube.operator import Namespace
from integration.etcd_process import dies_with_parent
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
BY = ('tls.issuer="cert-manager"',)
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def known(kube_api: KubeApi) -> Iterator[None]:
    folder = definitions()
    if folder is None:
        pytest.skip("cert-manager's definitions come from its Go module, and there is no Go toolchain")
    kinds = ("certificates", "certificaterequests", "issuers", "clusterissuers")
    paths = [str(folder / f"cert-manager.io_{each}.yaml") for each in kinds]
    words = [word for path in paths for word in ("-f", path)]
    done = kube_api.kubectl("apply", "--server-side", *words)
    assert done.returncode == 0, done.stderr
    done = kube_api.kubectl("wait", "--for=condition=Established", "--timeout=30s", *words)
    assert done.returncode == 0, done.stderr
    yield
    kube_api.kubectl("delete", *words)


def certificates(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Certificate"}


@pytest.mark.usefixtures("known")
def test_its_api_takes_every_resource(kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path) -> None:
    for number, values in enumerate((
        BY, (*BY, "admin.enabled=true", 'admin.tokensSecret="t"', 'tls.names=["203.0.113.9","*.example.com"]',
             'tls.issuerRefs.clients={"name":"public","kind":"ClusterIssuer","group":"cert-manager.io"}'),
    )):
        objects = [each for each in render(*values, namespace=namespace.name)
                   if each["apiVersion"].startswith("cert-manager.io/")]
        assert len(certificates(objects)) > 20
        rendered = tmp_path / f"{number}.yaml"
        rendered.write_text(yaml.safe_dump_all(objects))
        done = kube_api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(rendered))
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr


def test_it_is_asked_only_where_it_is_wanted(render: Render) -> None:
    assert not certificates(render()) and not certificates(render('tls.issuer="operator"'))
    assert certificates(render(*BY)) and not certificates(render(*BY, "security.enabled=false"))


def test_what_it_is_asked_for(render: Render) -> None:
    found = certificates(render(*BY, 'tls.names=["203.0.113.9"]', "tls.certificateDays=30", "broker.replicas=2"))
    own, public = found["demo-hapax-broker-tls-1"], found["demo-hapax-broker-tls-1-public"]
    assert own["uris"] == ["spiffe://hapax/broker/1"] and own["commonName"] == "hapax-broker"
    assert set(own["usages"]) == {"digital signature", "server auth", "client auth"}
    assert "uris" not in public and set(public["usages"]) == {"digital signature", "server auth"}
    assert {"203.0.113.9", "127.0.0.1"} == set(public["ipAddresses"])
    assert "demo-hapax-broker-1.demo-hapax-broker.prod.svc.cluster.local" in public["dnsNames"]
    assert (own["duration"], own["renewBefore"]) == ("720h", "240h")
    assert own["issuerRef"]["name"] == "demo-hapax-services" and public["issuerRef"]["name"] == "demo-hapax-clients"
    assert all(each["privateKey"]["rotationPolicy"] == "Always" for each in found.values())
    assert all(each["privateKey"]["algorithm"] == "ECDSA" for each in found.values())
    assert {name for name, each in found.items() if each.get("isCA")} == {
        "demo-hapax-clients-ca", "demo-hapax-services-ca", "demo-hapax-users-authority-ca"}
    users = found["demo-hapax-users-authority-ca"]
    assert set(users["usages"]) == {"cert sign", "crl sign", "client auth"}, "it may sign no server's certificate"
    assert users["duration"] == found["demo-hapax-clients-ca"]["duration"] == f"{24 * 1825}h"
    assert all(each["secretName"] == name for name, each in found.items())
    given = certificates(render(*BY, 'tls.issuerRefs.clients={"name":"public","kind":"ClusterIssuer"}'))
    assert given["demo-hapax-admin-user"]["issuerRef"] == {"name": "public", "kind": "ClusterIssuer"}
    assert "demo-hapax-clients-ca" not in given and "demo-hapax-services-ca" in given


class Issuing:
    """Issues as cert-manager does: each certificate into a Secret of its name, with its issuer's certificate."""

    def __init__(self, api: KubeApi, namespace: str, wanted: dict[str, dict[str, Any]]) -> None:
        self._path = f"/api/v1/namespaces/{namespace}/secrets"
        self._api = api
        self._wanted = {name: each for name, each in wanted.items() if not each["issuerRef"]["name"].endswith("-root")}
        self.authorities: dict[str, Authority] = {}

    def issue(self, generation: int) -> None:
        for name, each in self._wanted.items():
            issuer = each["issuerRef"]["name"]
            authority = self.authorities.setdefault(f"{issuer}-{generation}", Authority.make(issuer))
            both = {"server auth", "client auth"} <= set(each["usages"])
            issued = authority.issue(
                f"CN={each['commonName']}",
                [*each.get("dnsNames", ()), *each.get("ipAddresses", ()), *each.get("uris", ())],
                use="both" if both else "server" if "server auth" in each["usages"] else "client",
                valid=timedelta(days=30), signs=each.get("isCA", False))
            files = {"tls.crt": issued.certificate, "tls.key": issued.key, "ca.crt": authority.certificate}
            data = {key: base64.b64encode(value).decode() for key, value in files.items()}
            if self._api.exists(f"{self._path}/{name}"):
                self._api.patch(f"{self._path}/{name}", {"data": data})
            else:
                self._api.create(self._path, {"metadata": {"name": name}, "type": "kubernetes.io/tls", "data": data})


def test_the_keeper_hands_out_what_it_issues_and_a_new_issuer_only_once_all_trust_it(
    kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path
) -> None:
    objects = render(*VALUES, *BY, namespace=namespace.name)
    applied = tmp_path / "objects.yaml"
    applied.write_text(yaml.safe_dump_all(each for each in objects if each["kind"] in (*KINDS, "StatefulSet")))
    done = kube_api.kubectl("apply", "-f", str(applied))
    assert done.returncode == 0, done.stderr
    (tmp_path / "pods").mkdir()
    release = ByHand(kube_api, namespace.name, objects, tmp_path / "pods")
    release.report_etcd(settled=True)
    issuing = Issuing(kube_api, namespace.name, certificates(objects))
    keeper = Keeper(release, tmp_path, kube_api.kubeconfig_of(namespace.name, f"{NAME}-certificates"))
    keeper.start()
    try:
        issuing.issue(1)
        wait_until(lambda: release.start("StatefulSet", "etcd", f"{NAME}-etcd-0") is not None, "etcd", 60, every_s=0.2)
        wait_until(keeper.ready.exists, "Secrets", 90)
        first = issuing.authorities["demo-hapax-clients-1"].certificate
        assert (release.secret(f"{NAME}-trust") or {})["clients-ca.crt"] == first
        before = (release.secret(f"{NAME}-broker-tls") or {})["0-public.crt"]
        issuing.issue(2)
        second = issuing.authorities["demo-hapax-clients-2"].certificate
        held: list[bytes] = []

        def taken() -> bool:
            trusted = (release.secret(f"{NAME}-trust") or {})["clients-ca.crt"]
            held.append((release.secret(f"{NAME}-broker-tls") or {})["0-public.crt"])
            if held[-1] == before:
                return False
            assert second in trusted, "taken before it is trusted"
            return True

        wait_until(taken, f"certificates of the new issuer: {keeper.log[-2000:]}", 150, every_s=0.2)
        assert first in (release.secret(f"{NAME}-trust") or {})["clients-ca.crt"]
    finally:
        keeper.close()
        release.close()
        kube_api.kubectl("delete", "--wait=false", "-f", str(applied))


@pytest.mark.usefixtures("known")
def test_its_own_controllers_issue_what_the_keeper_hands_out(
    kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path
) -> None:
    program = controllers()
    if not program.exists():
        pytest.skip("cert-manager's controllers are not built: make cert-manager-test")
    objects = render(*VALUES, *BY, namespace=namespace.name)
    applied = tmp_path / "objects.yaml"
    kinds = (*KINDS, "StatefulSet", "Issuer", "Certificate")
    applied.write_text(yaml.safe_dump_all(each for each in objects if each["kind"] in kinds))
    done = kube_api.kubectl("apply", "-f", str(applied))
    assert done.returncode == 0, done.stderr
    (tmp_path / "pods").mkdir()
    release = ByHand(kube_api, namespace.name, objects, tmp_path / "pods")
    release.report_etcd(settled=True)
    keeper = Keeper(release, tmp_path, kube_api.kubeconfig_of(namespace.name, f"{NAME}-certificates"))
    keeper.start()
    log = tmp_path / "cert-manager.log"
    with open(log, "wb") as said:
        issuing = subprocess.Popen(
            dies_with_parent([str(program), str(kube_api.kubeconfig)]), stdout=said, stderr=said)
    try:
        wait_until(lambda: release.start("StatefulSet", "etcd", f"{NAME}-etcd-0") is not None, "etcd", 120, every_s=0.2)
        wait_until(keeper.ready.exists, f"Secrets: {log.read_text()[-2000:]}", 120)
        trusted = (release.secret(f"{NAME}-trust") or {})["clients-ca.crt"]
        held = (release.secret(f"{NAME}-broker-tls") or {})
        before = held["0-public.crt"]
        issued_by(trusted, before)
        assert name_in(held["0.crt"]) == "CN=hapax-broker"
        # As `cmctl renew` does: cert-manager issues it once more, and the keeper takes it over.
        again = f"{NAME}-broker-tls-0-public"
        kube_api.delete(f"/api/v1/namespaces/{namespace.name}/secrets/{again}")
        wait_until(
            lambda: (release.secret(f"{NAME}-broker-tls") or {})["0-public.crt"] != before,
            f"renewed certificate: {keeper.log[-2000:]}", 120, every_s=0.2)
        issued_by((release.secret(f"{NAME}-trust") or {})["clients-ca.crt"],
                  (release.secret(f"{NAME}-broker-tls") or {})["0-public.crt"])
        assert issuing.poll() is None, log.read_text()[-2000:]
    finally:
        issuing.kill()
        issuing.wait()
        keeper.close()
        release.close()
        kube_api.kubectl("delete", "--wait=false", "-f", str(applied))


def issued_by(authority: bytes, certificate: bytes) -> None:
    """Raises InvalidSignature, ValueError."""
    leaf, *_ = x509.load_pem_x509_certificates(certificate)
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))


def name_in(certificate: bytes) -> str:
    return x509.load_pem_x509_certificates(certificate)[0].subject.rfc4514_string()

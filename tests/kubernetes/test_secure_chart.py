"""The chart is closed unless it is told otherwise: what its pods are given, and what the keeper is told."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax.core.access.services import ServiceName
from hapax.runtime.etcd_users import user_of
from hapax.runtime.settings import load
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace
from hapax_operator.access_file import read_file
from hapax_operator.certificates_secrets import TOKENS
from hapax_operator.certificates_spec import BadSpec, Spec, parse_spec
from hapax_operator.plan_certificates import CLIENTS
from integration.waiting import wait_until

CHART = ROOT / "charts" / "hapax"
Objects = list[dict[str, Any]]
Render = Callable[..., Objects]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]
ALL = ("admin.enabled=true", 'admin.tokensSecret="t"', "load.enabled=true", "external.enabled=true",
       'external.host="log.example.com"')
LEAVES = {  # the node id of a process; those without one of their own bring it along
    "broker": "0", "coordinator": "100", "pid": "200", "operator": "300", "admin": "0"}
ROLES = {"operator": "controller"}


def spec_of(objects: Objects) -> Spec:
    (found,) = (each for each in objects if each["kind"] == "ConfigMap" and "spec.json" in each["data"])
    return parse_spec(found["data"]["spec.json"])


def pods(objects: Objects) -> dict[str, dict[str, Any]]:
    found = {}
    for each in objects:
        if each["kind"] in ("StatefulSet", "Deployment", "Job"):
            found[each["metadata"]["name"]] = each["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            found[each["metadata"]["name"]] = each["spec"]
    return found


def settings_of(pod: dict[str, Any], node_id: str) -> Any:
    given = {each["name"]: each["value"] for each in pod["containers"][0]["env"] if "value" in each}
    given["HAPAX_NODE_ID"] = given.get("HAPAX_NODE_ID", node_id)
    for name, value in (("HAPAX_NODE_ID", node_id), ("POD_NAME", "p"), ("POD_IP", "10.1.2.3")):
        given = {key: each.replace(f"$({name})", value) for key, each in given.items()}
    return load(environment=given)


@pytest.mark.parametrize("component", list(LEAVES))
def test_settings_of_every_process_want_tls_logins_and_permissions(render: Render, component: str) -> None:
    objects = render(*ALL)
    settings = settings_of(pods(objects)[f"demo-hapax-{component}"], LEAVES[component])
    assert settings.security_inter_broker_protocol == settings.public_rpc_security_protocol == "SSL"
    assert settings.http_security_protocol == "SSL" and settings.etcd_over_tls
    assert settings.authorizer_class_name == "acl"
    assert settings.super_users.split(";") == ["User:admin", "User:operator", "User:rest"]
    if component in ("broker", "coordinator"):
        assert settings.security_protocols == {
            "INTERNAL": "SSL", "CLIENTS": "SASL_SSL", "CERTIFICATES": "SSL", "EXTERNAL": "SASL_SSL"}
        assert settings.of_listener("CERTIFICATES").ssl_client_auth == "required"
        assert [settings.of_listener(each).ssl_client_auth for each in ("CLIENTS", "EXTERNAL")] == ["none", "none"]
    if component == "admin":
        assert settings.admin_security_protocol == "SSL" and settings.ssl_client_auth == "none"
    else:
        assert settings.ssl_client_auth == "required", "public gRPC calls have no login"


@pytest.mark.parametrize("component", list(LEAVES))
def test_a_process_finds_in_its_secret_what_its_settings_name(render: Render, component: str) -> None:
    """And the certificates there name the process, its user of etcd, and all names that it is called by."""
    objects = render(*ALL)
    pod = pods(objects)[f"demo-hapax-{component}"]
    settings = settings_of(pod, LEAVES[component])
    spec = spec_of(objects)
    volumes = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in pod["containers"][0]["volumeMounts"]
              if each["name"] in volumes}
    (secret,) = (each for each in spec.holders({}) if each.name == mounts["/etc/hapax/tls"])
    files = {f"{leaf.name}.{kind}": leaf for leaf in secret.leaves for kind in ("crt", "key")}
    own = files[Path(settings.service_ssl_certificate_location).name]
    public = files[Path(settings.ssl_certificate_location).name]
    assert Path(settings.service_ssl_key_location).name in files and Path(settings.ssl_key_location).name in files
    assert (own.authority, own.use) == ("services", "both") and (public.authority, public.use) == ("clients", "server")
    role = ROLES.get(component, component)
    (name,) = (ServiceName.parse(each) for each in own.names if "://" in each)
    assert name.stands_for(ServiceName(settings.cluster_id, role, settings.node_id))
    assert own.subject == f"CN={user_of(role)}"
    if component in ("broker", "coordinator"):
        number = settings.node_id
        assert {f"demo-hapax-{component}-{number}.demo-hapax-{component}.prod.svc.cluster.local",
                "demo-hapax.prod.svc.cluster.local", "demo-hapax", "log.example.com", "localhost"} <= public.names
    elif component != "admin":
        assert settings.public_rpc_advertised.partition("@")[0] in public.names
    assert not [each for each in public.names if "://" in each], "what clients see must not pass for a process"


def test_keys_are_files_that_the_group_reads_and_never_in_the_environment(render: Render) -> None:
    for name, pod in pods(render(*ALL, 'load.tokenSecret="t"')).items():
        for volume in pod["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440, name
                assert not volume["secret"].get("optional"), "a pod waits for its Secrets"
        for container in pod["containers"]:
            for each in container.get("env", ()):
                assert "secretKeyRef" not in each.get("valueFrom", {}), f"{name}: {each['name']}"
            assert not container.get("envFrom"), name
            secrets = {each["name"] for each in pod["volumes"] if "secret" in each}
            for mount in container["volumeMounts"]:
                if mount["name"] in secrets:
                    assert mount["readOnly"] and "subPath" not in mount, "a single file would not follow its Secret"


def test_every_secret_that_a_pod_mounts_is_the_keeper_s(render: Render) -> None:
    objects = render(*ALL)
    kept = {each.name for each in spec_of(objects).holders({})}
    mounted = {volume["secret"]["secretName"] for pod in pods(objects).values() for volume in pod["volumes"]
               if "secret" in volume}
    assert mounted - {"t"} <= kept
    assert spec_of(objects).issuers not in mounted, "the keys that sign are for no pod"
    assert not [each for each in objects if each["kind"] == "Secret"], "no key is in the release"


def test_the_keeper_may_touch_its_own_secrets_alone(render: Render) -> None:
    objects = render(*ALL)
    (role,) = (each for each in objects if each["kind"] == "Role"
               and each["metadata"]["name"] == "demo-hapax-certificates")
    spec = spec_of(objects)
    for rule in role["rules"]:
        if rule["resources"] == ["secrets"] and rule["verbs"] != ["create"]:
            assert set(rule["resourceNames"]) == {spec.issuers, *(each.name for each in spec.holders({}))}
            assert rule["verbs"] == ["get", "update"]
        if rule["resources"] == ["statefulsets"]:
            assert rule["verbs"] == ["get"] or rule["resourceNames"] == ["demo-hapax-etcd"]


def test_the_operator_reads_no_secret_of_the_release_where_users_live_elsewhere(render: Render) -> None:
    objects = render(*ALL, 'users.namespaces=["shop"]')
    readers = {each["metadata"]["namespace"] for each in objects if each["kind"] in ("Role", "ClusterRole")
               and "-operator" in each["metadata"]["name"]
               for rule in each["rules"] if "secrets" in rule["resources"]}
    assert readers == {"shop"}


def test_the_operator_changes_secrets_of_users_alone(
    kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path
) -> None:
    """Its rights name no Secret, since it cannot know them beforehand."""
    applied = tmp_path / "objects.yaml"
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
             "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    applied.write_text(yaml.safe_dump_all(
        each for each in render(namespace=namespace.name) if each["kind"] in kinds))
    done = kube_api.kubectl("apply", "-f", str(applied))
    assert done.returncode == 0, done.stderr
    account = kube_api.kubeconfig_of(namespace.name, "demo-hapax-operator")
    user = namespace.user("app")  # a real one: what belongs to none is removed as garbage
    owner = {"apiVersion": "hapax.dev/v1alpha1", "kind": "User", "name": "app", "uid": user["metadata"]["uid"]}
    secrets = f"/api/v1/namespaces/{namespace.name}/secrets"

    def secret(name: str, kind: str = "Opaque", **metadata: Any) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": name, **metadata}}

    def asked(*words: str) -> str:
        """What it is answered; empty: it may."""
        return kube_api.kubectl(f"--kubeconfig={account}", "-n", namespace.name, *words, "--dry-run=server").stderr

    def create(body: dict[str, Any]) -> str:
        (tmp_path / "secret.json").write_text(json.dumps(body))
        return asked("create", "-f", str(tmp_path / "secret.json"))

    own = {"ownerReferences": [owner]}
    token = {"annotations": {"kubernetes.io/service-account.name": "demo-hapax-certificates"}}
    kube_api.create(secrets, secret("demo-hapax-issuers"))
    kube_api.create(secrets, secret("app", **own))
    try:
        wait_until(lambda: "Secrets of Users alone" in create(secret("other")), "policy", 60, every_s=0.3)
        assert create(secret("more", **own)) == ""
        for forbidden in (
            secret("token", "kubernetes.io/service-account-token", **own, **token),
            secret("foreign", ownerReferences=[{**owner, "apiVersion": "apps/v1"}]),
        ):
            assert "Secrets of Users alone" in create(forbidden)
        for verb, *more in (("patch", "--type=merge", "-p", '{"data":{"a":"Yg=="}}'), ("delete",)):
            assert asked(verb, "secret", "app", *more) == ""
            assert "Secrets of Users alone" in asked(verb, "secret", "demo-hapax-issuers", *more), verb
    finally:
        kube_api.kubectl("delete", "--wait=false", "-f", str(applied))


def test_users_log_in_with_passwords_and_certificates_without_any_value(render: Render, helm: Helm) -> None:
    objects = render()
    (told,) = (each for each in objects if each["kind"] == "ConfigMap" and "access.json" in each["data"])
    listeners = read_file(json.loads(told["data"]["access.json"])).listeners
    service = "demo-hapax.prod.svc.cluster.local"
    assert (listeners.bootstrap, listeners.tls_bootstrap) == (f"{service}:9092", f"{service}:9098")
    (holder,) = (each for each in spec_of(objects).holders({}) if each.name == "demo-hapax-users-authority")
    (leaf,) = holder.leaves
    assert leaf.signs and leaf.use == "client" and leaf.authority == CLIENTS
    operator = pods(objects)["demo-hapax-operator"]
    mounts = {each["name"]: each["mountPath"] for each in operator["containers"][0]["volumeMounts"]}
    (volume,) = (each for each in operator["volumes"] if each.get("secret", {}).get("secretName") == holder.name)
    assert mounts[volume["name"]] == listeners.authority_folder
    for name, pod in pods(objects).items():
        if name != "demo-hapax-operator":
            assert holder.name not in json.dumps(pod), "the operator alone signs"
    brokers = settings_of(pods(objects)["demo-hapax-broker"], "0")
    assert set(listeners.mechanisms) <= set(brokers.sasl_enabled_mechanisms.split(",")), "no listener takes it"
    kept = {each.name for each in spec_of(objects).holders({}) if each.tokens}
    assert kept == {"demo-hapax-broker-tls", "demo-hapax-coordinator-tls"}
    assert brokers.sasl_oauthbearer_jwks_endpoint_url == f"file:///etc/hapax/tls/{TOKENS}"
    none = render('users.mechanisms=["SCRAM-SHA-512"]')
    assert "OAUTHBEARER" not in settings_of(pods(none)["demo-hapax-broker"], "0").sasl_enabled_mechanisms
    # An issuer that is not the chart's may not sign an authority: the operator must not wait for one for ever.
    foreign = render('tls.issuer="cert-manager"', 'tls.issuerRefs.clients={"name":"corporate","kind":"ClusterIssuer"}')
    assert "users-authority" not in json.dumps(foreign)
    theirs = render('users.authoritySecret="theirs"')
    assert "users-authority" not in json.dumps(theirs) and '"secretName": "theirs"' in json.dumps(theirs)


def test_audit_is_on_and_the_values_may_change_it(render: Render) -> None:
    def destinations(*values: str) -> set[str]:
        objects = render(*ALL, *values)
        return {settings_of(pods(objects)[f"demo-hapax-{component}"], number).audit_log_destination
                for component, number in LEAVES.items()}

    assert destinations() == {"stdout"}
    assert destinations('settings={"audit.log.destination": "none"}') == {"none"}
    assert destinations('broker.settings={"audit.log.destination": "none"}') == {"stdout", "none"}
    assert destinations("security.enabled=false") == {"none"}


def test_an_authority_outlives_the_overlap_with_the_next_one(render: Render) -> None:
    with pytest.raises(BadSpec, match="authorityDays must be more than three times the overlap"):
        spec_of(render("tls.authorityDays=90"))
    assert spec_of(render("tls.authorityDays=91")).authority_s == 91 * 86_400


def test_etcd_takes_members_and_users_by_their_certificates_alone(render: Render) -> None:
    pod = pods(render())["demo-hapax-etcd"]
    (start,) = (each for each in pod["initContainers"] if each["name"] == "member")
    given = {each["name"]: each.get("value", "") for each in start["env"]}
    said = json.loads(given["SETTINGS"])
    assert said["client-transport-security"]["client-cert-auth"] and said["peer-transport-security"]["client-cert-auth"]
    assert said["peer-transport-security"]["allowed-cn"] == ["etcd"]
    for name in ("listen-client-urls", "advertise-client-urls", "listen-peer-urls", "initial-advertise-peer-urls"):
        assert said[name].startswith("https://"), name
    assert all(each.startswith("https://") for each in given["PEERS"].split(","))


def test_what_decides_who_comes_in_is_no_mere_setting(helm: Helm) -> None:
    for words in ('settings={"super.users": "User:eve"}', 'broker.settings={"authorizer.class.name": ""}',
                  'admin.settings={"admin.security.protocol": "PLAINTEXT"}'):
        done = helm("template", "demo", str(CHART), "--set-json", words, "--set",
                    "admin.enabled=true,admin.tokensSecret=t")
        assert done.returncode != 0 and "security.superUsers" in done.stderr, words
    more = helm("template", "demo", str(CHART), "--set-json", 'security.superUsers=["User:platform"]').stdout
    assert "User:admin;User:operator;User:platform" in more
    plain = helm("template", "demo", str(CHART), "--set", "etcd.enabled=false,etcd.external.endpoints={e:2379}")
    assert plain.returncode != 0 and "does not begin with https://" in plain.stderr


def test_an_open_release_has_no_trace_of_keys(render: Render) -> None:
    objects = render("security.enabled=false", *ALL)
    assert not [each for each in objects if "certificates" in each["metadata"]["name"]]
    for name, pod in pods(objects).items():
        secrets = {each["secret"]["secretName"] for each in pod.get("volumes", ()) if "secret" in each}
        assert secrets <= {"t"}, name
    for component in LEAVES:
        settings = settings_of(pods(objects)[f"demo-hapax-{component}"], LEAVES[component])
        assert settings.security_inter_broker_protocol == "PLAINTEXT" and not settings.authorizer_class_name


@pytest.mark.parametrize(("was", "becomes"), [("false", "true"), ("true", "false")])
def test_an_upgrade_never_turns_security_on_or_off_by_itself(
    kube_api: KubeApi, namespace: Namespace, helm: Helm, was: str, becomes: str
) -> None:
    where = ("--namespace", namespace.name, "--kubeconfig", str(kube_api.kubeconfig))
    # What matters of a release that is there.
    words = ("template", "demo", str(CHART), *where[:2], "--set", f"security.enabled={was}")
    (broker,) = (each for each in yaml.safe_load_all(helm(*words).stdout)
                 if each and (each["kind"], each["metadata"]["name"]) == ("StatefulSet", "demo-hapax-broker"))
    if was == "false":  # an earlier version of the chart did not say
        del broker["metadata"]["annotations"]["hapax.dev/security"]
    kube_api.create(f"/apis/apps/v1/namespaces/{namespace.name}/statefulsets", broker)

    def upgrade(*sets: str) -> subprocess.CompletedProcess[str]:
        flags = [word for each in (*sets, "crds.install=false") for word in ("--set", each)]
        return helm("install", "demo", str(CHART), *where, "--dry-run=server", *flags)

    refused = upgrade(f"security.enabled={becomes}")
    assert refused.returncode != 0 and f"installed with security.enabled={was}" in refused.stderr, refused.stderr
    for fine in ((f"security.enabled={was}",), (f"security.enabled={becomes}", "security.migrate=true")):
        assert "installed with security.enabled" not in upgrade(*fine).stderr


def test_the_keeper_s_file_is_what_it_reads(render: Render) -> None:
    spec = spec_of(render('tls.certificateDays=30', 'tls.spareNodes=2', 'broker.replicas=3'))
    assert (spec.certificate_s, spec.overlap_s["clients"]) == (30 * 86_400, 30 * 86_400)
    holders = {each.name: each for each in spec.holders({"demo-hapax-broker": 7})}
    numbers = {int(each.name) for each in holders["demo-hapax-broker-tls"].leaves if each.name.isdigit()}
    assert numbers == set(range(9))
    first = {each.name for each in holders.values() if each.first}
    assert first == {"demo-hapax-etcd-tls", "demo-hapax-admin", "demo-hapax-operator-client"}
    assert json.dumps(sorted(spec.workloads)) == '["demo-hapax-broker", "demo-hapax-coordinator"]'

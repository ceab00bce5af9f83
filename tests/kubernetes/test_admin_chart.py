"""The chart's REST API: what it renders, what it refuses, what a real API server says to it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from hapax.runtime.settings import load
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace

CHART = ROOT / "charts" / "hapax"
Render = Callable[..., list[dict[str, Any]]]
WITH = ("admin.enabled=true", 'admin.tokensSecret="rest-tokens"')


def admin_objects(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        each["kind"]: each for each in objects
        if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "admin"
        or each["metadata"]["name"].endswith("-admin")}


def test_it_comes_when_asked_for_and_never_without_tokens_by_mistake(
    render: Render, helm: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert admin_objects(render()) == {}
    assert set(admin_objects(render(*WITH))) == {
        "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"}
    lacking = helm("template", "demo", str(CHART), "--set", "admin.enabled=true")
    assert lacking.returncode != 0 and "admin.tokensSecret must name a Secret" in lacking.stderr
    assert helm("template", "demo", str(CHART), "--set", "admin.enabled=true,admin.auth=off").returncode != 0
    for without in ("none", "passwords,certificates"):
        for values, volumes in (((), ["tmp", "tls", "client"]), (("security.enabled=false",), ["tmp"])):
            objects = admin_objects(render("admin.enabled=true", f'admin.auth="{without}"', *values))
            pod = objects["Deployment"]["spec"]["template"]["spec"]
            assert [each["name"] for each in pod["volumes"]] == volumes


def test_its_pod_is_confined_and_its_settings_are_real(render: Render) -> None:
    objects = admin_objects(render(*WITH, 'settings={"log.level": "DEBUG"}',
                                   'admin.settings={"admin.request.timeout.ms": 7000}'))
    spec = objects["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"] and "cpu" not in container["resources"]["limits"]
    settings = load(environment={each["name"]: each["value"] for each in container["env"]})
    assert (settings.admin_request_timeout_ms, settings.log_level, settings.admin_auth) == (7000, "DEBUG", "tokens")
    assert len(settings.etcd_addresses) == 3
    (mounted,) = (each for each in container["volumeMounts"] if each["name"] == "tokens")
    assert settings.admin_tokens_file == f"{mounted['mountPath']}/tokens" and "subPath" not in mounted
    (secret,) = (each["secret"] for each in pod["volumes"] if each["name"] == "tokens")
    assert (secret["secretName"], secret["defaultMode"]) == ("rest-tokens", 0o440)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"rest": settings.admin_address.port, "http": settings.http_address.port}
    paths = [container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "liveness", "readiness")]
    assert paths == ["/healthz", "/healthz", "/readyz"]
    assert pod["terminationGracePeriodSeconds"] * 1000 >= settings.drain_timeout_ms + 5_000 + 10_000
    labels = spec["template"]["metadata"]["labels"]
    assert objects["Service"]["spec"]["selector"].items() <= labels.items()
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        selector = objects[kind]["spec"].get("selector") or objects[kind]["spec"]["podSelector"]
        assert selector["matchLabels"].items() <= labels.items()


def test_who_may_come_is_the_operator_s_to_say(render: Render) -> None:
    open_ = admin_objects(render(*WITH))["NetworkPolicy"]["spec"]
    assert open_["ingress"] == [{"ports": [{"port": 8090, "protocol": "TCP"}]}]
    peers = [{"namespaceSelector": {"matchLabels": {"team": "platform"}}}]
    narrow = admin_objects(render(*WITH, 'admin.clients=[{"namespaceSelector":{"matchLabels":{"team":"platform"}}}]'))
    assert narrow["NetworkPolicy"]["spec"]["ingress"][0]["from"] == peers
    outside = admin_objects(render(
        *WITH, "etcd.enabled=false", 'etcd.external.endpoints=["https://etcd.example:2379"]',
        'etcd.external.tls.secret="e"'))
    assert {"ports": [{"port": 2379}]} in outside["NetworkPolicy"]["spec"]["egress"]


def test_a_real_api_server_takes_it(
    kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path
) -> None:
    rendered = tmp_path / "admin.yaml"
    objects = admin_objects(render(*WITH, 'admin.clients=[{"namespaceSelector":{}}]', namespace=namespace.name))
    rendered.write_text(yaml.safe_dump_all(objects.values()))
    done = kube_api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(rendered))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr

"""The chart's load: what it renders, what it refuses, that its words are hapax_load's, what an API server says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hapax_load.__main__ import parser
from hapax_load.pods import FOLDER, in_turn

from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace

CHART = ROOT / "charts" / "hapax"
Render = Callable[..., list[dict[str, Any]]]
ON = ("load.enabled=true", 'image.repository="registry.example/hapax"', 'image.tag="7"')


def of_load(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{each['kind']} {each['metadata']['name']}": each for each in objects
            if each["metadata"]["name"].startswith("demo-hapax-load")}


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_a_master_and_its_workers_come_when_asked_for(render: Render) -> None:
    assert of_load(render()) == {}
    found = of_load(render(*ON, "load.workers=3", "load.minutes=5", 'load.usersOf=["produce","copy"]'))
    assert sorted(found) == ["Job demo-hapax-load-1", "Job demo-hapax-load-workers-1",
                             "NetworkPolicy demo-hapax-load-master", "NetworkPolicy demo-hapax-load-worker",
                             "Service demo-hapax-load", "ServiceAccount demo-hapax-load"]
    master, workers = found["Job demo-hapax-load-1"], found["Job demo-hapax-load-workers-1"]
    assert (master["spec"]["backoffLimit"], workers["spec"]["parallelism"], workers["spec"]["completions"]) == (0, 3, 3)
    said = parser().parse_args(container(master)["args"])
    assert (said.expect_workers, said.minutes, said.users_of, said.replace, said.out) == (
        3, 5, "produce,copy", True, FOLDER)
    probe = container(master)["readinessProbe"]["httpGet"]
    ports = {each["name"]: each["containerPort"] for each in container(master)["ports"]}
    assert ports == {"workers": said.master_port, "report": said.serve} and probe["path"] == "/verdict.json"
    theirs = parser().parse_args(container(workers)["args"])
    assert theirs.worker_of == "demo-hapax-load.prod.svc.cluster.local"
    assert (theirs.bootstrap, theirs.users_of, theirs.expect_workers) == (said.bootstrap, said.users_of, 3)
    service = found["Service demo-hapax-load"]["spec"]
    assert service["selector"].items() <= master["spec"]["template"]["metadata"]["labels"].items()
    assert not service["selector"].items() <= workers["spec"]["template"]["metadata"]["labels"].items()
    assert service["publishNotReadyAddresses"]
    for job in (master, workers):
        pod = job["spec"]["template"]["spec"]
        assert container(job)["image"] == "registry.example/hapax-load:7"
        assert container(job)["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False and pod["restartPolicy"] == "Never"


def test_users_of_the_rest_api_need_one(render: Render, helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    rest = (*ON, 'load.usersOf=["rest"]')
    lacking = helm("template", "demo", str(CHART), "--set", "load.enabled=true,load.usersOf={rest}")
    assert lacking.returncode != 0 and "set admin.enabled" in lacking.stderr
    found = of_load(render(*rest, "admin.enabled=true", 'admin.tokensSecret="t"', 'load.tokenSecret="mine"'))
    for name in ("Job demo-hapax-load-1", "Job demo-hapax-load-workers-1"):
        said = parser().parse_args(container(found[name])["args"])
        assert said.rest == "https://demo-hapax-admin.prod.svc.cluster.local"
        mounts = {each["mountPath"]: each["name"] for each in container(found[name])["volumeMounts"]}
        volumes = {each["name"]: each.get("secret", {}) for each in found[name]["spec"]["template"]["spec"]["volumes"]}
        assert volumes[mounts[str(said.rest_token_file.parent)]]["secretName"] == "mine"
        assert volumes[mounts["/etc/hapax/client"]]["secretName"] == "demo-hapax-admin"
        assert said.command_config == "/etc/hapax/client/mounted.properties"


@pytest.mark.parametrize("words", ["load.shape=soak", "load.usersOf={read}", "load.workers=0", "load.minuets=3"])
def test_what_is_no_value_is_refused(helm: Callable[..., subprocess.CompletedProcess[str]], words: str) -> None:
    assert helm("template", "demo", str(CHART), "--set", f"load.enabled=true,{words}").returncode != 0


def test_a_real_api_server_takes_it(kube_api: KubeApi, namespace: Namespace, render: Render, tmp_path: Path) -> None:
    rendered = tmp_path / "load.yaml"
    rendered.write_text(yaml.safe_dump_all(of_load(render(*ON, namespace=namespace.name)).values()))
    done = kube_api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(rendered))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


def test_pods_are_killed_role_by_role() -> None:
    def pod(name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": {"app.kubernetes.io/component": name.split("-")[1]}}}

    names = ["h-broker-0", "h-broker-1", "h-broker-2", "h-coordinator-100", "h-coordinator-101", "h-pid-200"]
    assert in_turn([pod(name) for name in names]) == [
        "h-broker-0", "h-coordinator-100", "h-pid-200", "h-broker-1", "h-coordinator-101", "h-broker-2"]

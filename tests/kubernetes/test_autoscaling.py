"""The recipe for autoscaling: as KEDA's own definitions and scalers, Prometheus, and Kubernetes take it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapax_kube import go_modules
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT
from hapax_kube.operator import Namespace
from tidy.test_metrics import _declared as declared
from tidy.test_monitoring import tool

RECIPE = ROOT / "charts" / "hapax" / "examples" / "autoscaling.yaml"


@pytest.fixture(scope="module")
def keda() -> Path:
    found = go_modules.folder(*go_modules.KEDA)
    if found is None:
        pytest.skip("KEDA's definitions come from its Go module, which cannot be had here")
    return found


def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(RECIPE.read_text()))


def triggers() -> list[dict[str, Any]]:
    return [trigger for each in objects() if each["kind"] == "ScaledObject" for trigger in each["spec"]["triggers"]]


def queries() -> list[str]:
    return [each["metadata"]["query"] for each in triggers() if each["type"] == "prometheus"]


def test_kubernetes_takes_it_with_keda_s_definitions(
    kube_api: KubeApi, namespace: Namespace, keda: Path, tmp_path: Path
) -> None:
    definitions = [keda / "config" / "crd" / "bases" / f"keda.sh_{kind}.yaml"
                   for kind in ("scaledobjects", "triggerauthentications")]
    words = [word for each in definitions for word in ("-f", str(each))]
    # They are too large for the note that `kubectl apply` leaves.
    done = kube_api.kubectl("create", *words)
    assert done.returncode == 0, done.stderr
    try:
        for kind in ("scaledobjects", "triggerauthentications"):
            done = kube_api.kubectl("wait", "--for=condition=Established", f"crd/{kind}.keda.sh", "--timeout=60s")
            assert done.returncode == 0, done.stderr
        here = tmp_path / "here.yaml"
        here.write_text(re.sub(r"namespace: (hapax|shop)\b", f"namespace: {namespace.name}", RECIPE.read_text()))
        done = kube_api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(here))
        assert done.returncode == 0, done.stderr
        here.write_text(here.read_text().replace("minReplicaCount", "minReplicas"))
        done = kube_api.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(here))
        assert done.returncode != 0 and "minReplicas" in done.stderr, "what KEDA does not know is found"
    finally:
        kube_api.kubectl("delete", "--wait=false", *words)


def test_each_trigger_says_only_what_keda_s_scaler_reads(keda: Path) -> None:
    for each in triggers():
        source = (keda / "pkg" / "scalers" / f"{each['type']}_scaler.go").read_text()
        patterns = (r'keda:"name=(\w+)', r'TriggerMetadata\["(\w+)"\]', r'\w+MetricName += "(\w+)"')
        read = {name for pattern in patterns for name in re.findall(pattern, source)}
        assert set(each["metadata"]) <= read, (each["type"], set(each["metadata"]) - read)
        if each["type"] == "kafka":
            for name in ("scram_sha512", "enable"):
                assert f'"{name}"' in source


def test_the_brokers_grow_by_their_pool_and_do_not_shrink_by_themselves() -> None:
    brokers = next(each for each in objects() if each["metadata"]["name"] == "hapax-broker")
    target = brokers["spec"]["scaleTargetRef"]
    definition = yaml.safe_load((ROOT / "charts/hapax/files/crds/brokerpools.yaml").read_text())
    assert target["kind"] == definition["spec"]["names"]["kind"]
    version = next(each for each in definition["spec"]["versions"]
                   if f"hapax.dev/{each['name']}" == target["apiVersion"])
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector"}
    behaviour = brokers["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behaviour["scaleDown"] == {"selectPolicy": "Disabled"}
    assert int(brokers["spec"]["triggers"][0]["metadata"]["threshold"]) == 0.7 * 20 * 2**30
    values = yaml.safe_load((ROOT / "charts/hapax/values.yaml").read_text())
    assert values["broker"]["storage"]["size"] == "20Gi"


def test_its_queries_are_of_metrics_that_there_are() -> None:
    for each in queries():
        names = set(re.findall(r"\bhapax_\w+", each))
        assert names and names <= set(declared()), names


def test_prometheus_understands_its_queries_and_what_they_are(tmp_path: Path) -> None:
    promtool = tool("promtool")
    rules = [{"record": f"recipe:{number}", "expr": each} for number, each in enumerate(queries())]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "recipe", "rules": rules}]}))
    log, lag = "hapax_broker_log_bytes", "hapax_client_records_lag_max"
    series = [
        (f'{log}{{namespace="hapax",pod="hapax-broker-0"}}', 10),
        (f'{log}{{namespace="hapax",pod="hapax-broker-1"}}', 20),
        (f'{log}{{namespace="hapax",pod="hapax-broker-1",job="twice"}}', 20),
        (f'{log}{{namespace="o",pod="hapax-broker-0"}}', 99),
        (f'{lag}{{namespace="shop",pod="shipping-a"}}', 7), (f'{lag}{{namespace="shop",pod="shipping-b"}}', 5),
        (f'{lag}{{namespace="shop",pod="other-a"}}', 99)]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [{
        "input_series": [{"series": name, "values": f"{value}x3"} for name, value in series],
        "promql_expr_test": [
            {"expr": f"recipe:{number}", "eval_time": "2m",
             "exp_samples": [{"labels": f"recipe:{number}", "value": value}]}
            for number, value in ((0, 30), (1, 12))]}]}))
    for command in (("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"), ("test", "rules", "test.yaml")):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

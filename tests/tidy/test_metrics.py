"""docs/metrics.md says what the processes tell."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import yaml

from hapax.broker import metrics as broker_metrics
from hapax.runtime import process_metrics
from hapax.runtime.metrics import Metric, declared_in

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = [
    *(f"hapax.{path.parent.name}.metrics" for path in sorted((ROOT / "services/hapax").glob("*/metrics.py"))
      if path.parent.name != "runtime"),
    "hapax.runtime.process_metrics", "hapax_operator.metrics",
]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _declared() -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for name in MODULES:
        for metric in declared_in(importlib.import_module(name)):
            assert metric.name not in found, f"{metric.name} is declared twice"
            found[metric.name] = metric
    return found


def test_the_page_is_current() -> None:
    generated = _generator().metrics_page()
    assert (ROOT / "docs" / "metrics.md").read_text() == generated, "run `make docs`"


def test_the_page_has_every_metric_of_every_service() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert process_metrics.BUILD.name in page
    assert [name for name in _declared() if f"| `{name}` |" not in page] == []


def test_metrics_are_declared_in_the_modules_that_the_page_is_made_from() -> None:
    declaring = re.compile(r"^from hapax\.runtime\.metrics import .*\b(counter|gauge|histogram)\b", re.M)
    allowed = {"metrics.py", "process_metrics.py"}
    strays = [
        path for folder in ("services", "operator", "spark") for path in (ROOT / folder).rglob("*.py")
        if path.name not in allowed and declaring.search(path.read_text())]
    assert strays == []


def test_every_declared_metric_is_told() -> None:
    """The constant is used somewhere beside its declaration and its imports, or its declaration says how it is read."""
    read_when_scraped = {*broker_metrics.EACH_PARTITION, *broker_metrics.SUMS_OF_PARTITIONS, *broker_metrics.OF_BROKER}
    sources = "\n".join(
        path.read_text() for folder in ("services", "operator") for path in (ROOT / folder).rglob("*.py")
        if "/gen/" not in str(path))
    sources = re.sub(r"^from .* import (\([^)]*\)|.*)$", "", sources, flags=re.M)
    words = Counter(re.findall(r"\b[A-Z][A-Z_]+\b", sources))
    untold = []
    for name in MODULES:
        for constant, value in vars(importlib.import_module(name)).items():
            if isinstance(value, Metric) and value not in read_when_scraped and words[constant] < 2:
                untold.append(value.name)
    assert untold == []


_MONITORING = ROOT / "charts/hapax/files/monitoring"
_SUFFIX = re.compile(r"_(bucket|count|sum)$")


def _used_by_monitoring() -> dict[str, set[str]]:
    """Name -> labels that are selected, grouped by, or shown."""
    used: dict[str, set[str]] = {}
    rules = yaml.safe_load((_MONITORING / "rules.yaml").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((_MONITORING / "dashboard.json").read_text())
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    expressions += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    for expression in expressions:
        labels = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
        for name, selected in re.findall(r"\b(hapax_\w+)(?:\{([^}]*)\})?", expression):
            own = set(re.findall(r"(\w+)=", selected))
            used.setdefault(name, set()).update(own | labels)
    return used


def test_dashboard_and_alerts_use_metrics_that_there_are() -> None:
    declared, used = _declared(), _used_by_monitoring()
    # By Prometheus, by histograms, and by the chart's PodMonitor of copiers.
    added = {"job", "instance", "namespace", "pod", "le", "mirror"}
    assert len(used) > 30
    for name, labels in used.items():
        metric = declared.get(name) or declared[_SUFFIX.sub("", name)]
        assert metric.name == name or metric.kind == "histogram", name
        if len(set(metric.labels)) or labels - added:
            unknown = labels - added - {label for each in used for label in (
                declared.get(each) or declared[_SUFFIX.sub("", each)]).labels}
            assert not unknown, f"{name} has no {unknown}"


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    rules = yaml.safe_load((_MONITORING / "rules.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    tests = yaml.safe_load((_MONITORING / "rules_test.yaml").read_text())
    fired = {
        each["alertname"] for test in tests["tests"] for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert {alert["alert"] for alert in alerts} == fired
    for alert in alerts:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"]["summary"].endswith(".") and alert["annotations"]["description"].endswith(".")

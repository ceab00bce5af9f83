"""The chart's alert rules and its dashboard, as the tools that lint them see them: Prometheus' promtool and Grafana's
dashboard-linter, which scripts/monitoring builds (`make monitoring-lint`); without them these tests skip and say so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
MONITORING = ROOT / "charts" / "hapax" / "files" / "monitoring"


def tool(name: str) -> str:
    done = subprocess.run(
        [ROOT / "scripts/monitoring/build.sh", "--find", name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{name} is not built: `make monitoring-lint` builds it where there is a Go toolchain")
    return done.stdout.strip()


def run(*command: str, cwd: Path = MONITORING) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_rules_are_sound() -> None:
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    count = sum(len(group["rules"]) for group in rules["groups"])
    assert f"{count} rules found" in run(tool("promtool"), "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    assert "SUCCESS" in run(tool("promtool"), "test", "rules", "rules_test.yaml")


def test_a_rule_that_fires_at_the_wrong_time_is_found(tmp_path: Path) -> None:
    promtool = tool("promtool")
    text = (MONITORING / "rules.yaml").read_text()
    (tmp_path / "rules.yaml").write_text(text.replace("hapax_controller_acting) < 1", "hapax_controller_acting) < 9"))
    (tmp_path / "rules_test.yaml").write_text((MONITORING / "rules_test.yaml").read_text())
    done = subprocess.run(
        [promtool, "test", "rules", "rules_test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "HapaxNoController" in done.stdout + done.stderr


def test_the_dashboard_is_sound() -> None:
    run(tool("dashboard-linter"), "lint", "--strict", "dashboard.json")

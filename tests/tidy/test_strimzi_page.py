"""What docs/kubernetes.md names under "Coming from Strimzi" exists: values, fields, annotations, settings, commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hapax.runtime.settings import SETTING_NAMES
from hapax_operator.certificates_secrets import ROTATE

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts" / "hapax"
NOT_OURS: Final = frozenset({
    "kubectl delete pod", "/metrics", "Scram", "Tls", "WorkloadIdentity", "Delete", "NodePort", "LoadBalancer"})
"""Words of these columns that are no names: values of the field before them, and others' commands."""


def rows() -> Iterator[str]:
    """The right column of each row."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    found = re.search(r"^## Coming from Strimzi\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    for line in found[1].splitlines():
        cells = [each.strip() for each in line.strip("|").split(" | ")]
        if line.startswith("| ") and not line.startswith("|---") and cells[1].strip(" |") != "here":
            assert len(cells) == 2, line
            yield cells[1]


def names() -> list[str]:
    return sorted({name for row in rows() for name in re.findall(r"`([^`]+)`", row)} - NOT_OURS)


def definitions() -> dict[str, Any]:
    found = {}
    for path in (CHART / "files" / "crds").glob("*.yaml"):
        body = yaml.safe_load(path.read_text())
        found[body["spec"]["names"]["kind"]] = body["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]
    return found


def below(schema: Any, path: list[str]) -> bool:
    """Whether a field is described; one of a list's items counts as the list's."""
    for name in path:
        while "items" in schema:
            schema = schema["items"]
        if "$ref" in schema:
            return True
        if name not in schema.get("properties", {}):
            return False
        schema = schema["properties"][name]
    return True


def exists(name: str) -> bool:
    kinds = definitions()
    first, *path = name.split(".")
    if first in kinds:
        return below(kinds[first], path)
    if name.startswith("hapax.dev/"):
        code = [each.read_text() for folder in ("operator", "charts", "services/hapax")
                for each in (ROOT / folder).rglob("*") if each.suffix in (".py", ".yaml", ".tpl")]
        written = {name, ROTATE} if name in (f"{ROTATE}services", f"{ROTATE}clients") else {name}
        return any(f'"{each}"' in text or f"{each}:" in text or f"['{each}']" in text
                   for text in code for each in written)
    if name.startswith("hapax "):
        words = name.split()[1:]
        done = subprocess.run(
            [sys.executable, "-m", "hapax.cli.main", *words, "--help"], capture_output=True, text=True, check=False)
        return done.returncode == 0
    values = json.loads((CHART / "values.schema.json").read_text())
    return below(values, name.split(".")) or name in SETTING_NAMES


@pytest.mark.parametrize("name", names())
def test_a_name_on_the_page_exists(name: str) -> None:
    assert exists(name), f"{name}: no value, field, annotation, setting or command"


def test_the_page_names_many_and_a_wrong_one_is_noticed() -> None:
    assert len(names()) > 50
    for wrong in ("broker.storage.sice", "Topic.spec.replicas", "hapax.dev/paused", "hapax reassign plan", "Kafka"):
        assert not exists(wrong), wrong

"""The operator's file: what it says, and that what cannot be meant is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hapax.core.access.resources import ResourceType
from hapax_operator.access_file import AccessFile, Listeners, load, read_file
from hapax_operator.main import main
from hapax_operator.namespace_policy import UNRESTRICTED, BadPolicy


def test_it_has_a_policy_and_listeners(tmp_path: Path) -> None:
    file = tmp_path / "access.json"
    file.write_text(json.dumps({
        "namespaces": [{"names": ["shop"], "topics": ["{namespace}.*"]}],
        "clients": {
            "bootstrapServers": "hapax:9093", "mechanisms": ["SCRAM-SHA-512"], "caFile": "/etc/ca.crt"}}))
    read = load(file)
    assert read.policy.owns("shop", ResourceType.TOPIC, "shop.a")
    assert not read.policy.owns("pay", ResourceType.TOPIC, "pay.a")
    assert read.listeners == Listeners("hapax:9093", "SASL_SSL", ("SCRAM-SHA-512",), "", "/etc/ca.crt")


def test_without_a_file_there_is_one_tenant() -> None:
    assert AccessFile().policy is UNRESTRICTED and AccessFile().listeners.bootstrap == ""


@pytest.mark.parametrize(("document", "sentence"), [
    (None, "must be an object"),
    ({"namespaces": [], "client": {}}, "unknown key 'client'"),
    ({"clients": {}}, "namespaces must be a list of rules"),
    ({"namespaces": [], "clients": []}, ""),
    ({"namespaces": [], "clients": "x"}, "clients must be an object"),
    ({"namespaces": [], "clients": {"bootstrap": "x"}}, "unknown key 'bootstrap'"),
    ({"namespaces": [], "clients": {"bootstrapServers": 1}}, "must be a string"),
    ({"namespaces": [], "clients": {"securityProtocol": "PLAINTEXT"}}, "SASL_SSL or SASL_PLAINTEXT"),
    ({"namespaces": [], "clients": {"mechanisms": ["PLAIN"]}}, "clients.mechanisms are some of"),
])
def test_what_cannot_be_meant_is_refused_with_a_sentence(document: Any, sentence: str) -> None:
    if not sentence:
        assert read_file(document).listeners == Listeners()
        return
    with pytest.raises(BadPolicy) as refused:
        read_file(document)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("text", [
    "namespaces: [", '{"namespaces": [{"names": ["a"], "topics": ["{namespace}-*"]}]}', None])
def test_a_bad_file_ends_the_operator_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    file = tmp_path / "access.json"
    if text is not None:
        file.write_text(text)
    assert main(["--access", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"bad --access: {file}" if text else "bad --access: ")

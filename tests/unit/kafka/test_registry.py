"""The modules of `kafka/api` keep to the form by which the table finds them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hapax.kafka.registry import API_MODULES
from hapax.kafka.table import Role
from hapax.wire import messages


def test_no_two_modules_serve_one_key() -> None:
    keys = [module.ROW.key for module in API_MODULES]
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("module", API_MODULES, ids=lambda module: module.ROW.name)
def test_a_module_declares_its_row(module: Any) -> None:
    row = module.ROW
    request = getattr(messages, f"{row.name}Request")
    assert module.__name__.rpartition(".")[2] == re.sub(r"(?<!^)(?=[A-Z])", "_", row.name).lower()
    assert row.key == request.API_KEY
    assert row.versions[1] <= request.max_version
    for version in range(request.min_version, request.max_version + 1):
        assert request.flexible_version_q(version) == (version >= row.flexible_from)
    assert callable(module.register)
    assert (row.elsewhere is None) == (row.answered_by is Role.EVERY_NODE)
    assert row.elsewhere is None or callable(module.refused)

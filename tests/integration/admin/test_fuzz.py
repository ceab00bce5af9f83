"""The REST API under schemathesis: whatever its own document allows or forbids is answered as the document says.

A cluster of its own: what is made up may drain a broker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from conftest import end_cluster, start_cluster
from hapax.admin.app import make_app
from hapax.admin.context import Context
from hapax.runtime.settings import Settings
from integration.admin_process import ADMIN_TOKEN, AdminProcess

EXAMPLES = int(os.environ.get("HAPAX_TEST_FUZZ_EXAMPLES", "6"))
"""Of each operation: for a longer hunt, HAPAX_TEST_FUZZ_EXAMPLES=500."""
FEW_PARTITIONS = 3


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminProcess]:
    cluster = start_cluster(tmp_path_factory.mktemp("fuzzed"))
    rest = AdminProcess(cluster, tmp_path_factory.mktemp("admin"), admin_request_timeout_ms=5000).start()
    assert rest.call("POST", "/v1/topics", {"name": "flights", "partitions": 2}).status == 201
    yield rest
    text = rest.log.read_text()
    assert rest.close() == 0
    end_cluster(cluster)
    assert "a handler failed" not in text, text


def document() -> Any:
    """The OpenAPI document, without a service: what is collected depends on it."""
    nothing: Any = None
    context = Context(nothing, Settings(), nothing, nothing, nothing, nothing)
    return make_app(context).openapi()


schema = schemathesis.openapi.from_dict(document())


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """A million partitions would be made as asked."""
    if isinstance(body, dict) and isinstance(body.get("partitions"), int) and body["partitions"] > FEW_PARTITIONS:
        return body | {"partitions": FEW_PARTITIONS}
    return body


def keeping_its_word(label: str) -> Callable[..., None]:
    """A test of one operation, such as `GET /v1/topics`. schemathesis makes tests of all of them from one function, but
    of one name, and of tests of one name pytest-xdist runs one."""
    @schema.include(name=label).parametrize()
    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate], database=None,
    )
    def test(case: Any, fuzzed: AdminProcess) -> None:
        # What a schema allows may still make no sense: partitions can only grow, a cursor is one that was given out.
        excluded = [positive_data_acceptance]
        parameters = case.operation.definition.raw.get("parameters", [])
        if any(each.get("schema", {}).get("type") == "array" for each in parameters):
            excluded.append(negative_data_rejection)  # a list of one number reads like a list of one word
        case.call_and_validate(
            base_url=f"http://127.0.0.1:{fuzzed.port}", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}, timeout=30,
            excluded_checks=excluded)

    return test


for found in schema.get_all_operations():
    operation = found.ok()
    globals()[f"test_the_document_is_kept_by_{operation.label}"] = keeping_its_word(operation.label)

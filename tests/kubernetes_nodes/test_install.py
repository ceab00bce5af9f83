"""The chart on machines: it comes up in time, and `helm test` has produced, transacted and consumed."""

from __future__ import annotations

import json

import pytest

from hapax_kube.tools import Release

pytestmark = pytest.mark.timeout(600)

INSTALLED_S = 90.0


def test_it_is_installed_in_time(release: Release, figures: dict[str, float]) -> None:
    assert figures["helm install until every pod is ready"] <= INSTALLED_S


def test_the_rest_api_answers(release: Release) -> None:
    ask = "import urllib.request as http; print(http.urlopen('http://hapax-admin/v1/nodes?role=broker').read().decode())"
    said = release.tools.kubectl("exec", "hapax-broker-0", "-n", release.namespace, "--", "python3", "-c", ask)
    assert {each["node_id"] for each in json.loads(said)["items"]} == {0, 1, 2}

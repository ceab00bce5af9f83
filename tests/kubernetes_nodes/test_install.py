"""The chart on machines: it comes up in time, and does what `helm test` asks of it."""

from __future__ import annotations

import pytest

from hapax_kube.tools import Release

pytestmark = pytest.mark.timeout(600)

INSTALLED_S = 90.0


def test_every_pod_is_ready_in_time(release: Release, figures: dict[str, float]) -> None:
    assert figures["helm install until every pod is ready"] <= INSTALLED_S


def test_helm_test_passes(release: Release) -> None:
    said = release.tools.helm("test", release.name, "--namespace", release.namespace, "--logs", timeout_s=180)
    assert "were read once" in said, said

"""The chart on machines: it comes up in time, and `helm test` has produced, transacted and consumed."""

from __future__ import annotations

import pytest

from hapax_kube.tools import Release

pytestmark = pytest.mark.timeout(600)

INSTALLED_S = 90.0


def test_it_is_installed_in_time(release: Release, figures: dict[str, float]) -> None:
    assert figures["helm install until every pod is ready"] <= INSTALLED_S

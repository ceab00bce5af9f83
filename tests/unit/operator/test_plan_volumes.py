"""`plan_volumes`: claims are expanded where that is possible, never made smaller, and pods restarted at most once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from hapax_operator.plan_volumes import (
    BadQuantity,
    ClaimSeen,
    Refusal,
    SetSize,
    VolumesPlan,
    VolumesSeen,
    claims_of,
    plan_volumes,
    quantity,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OLD = NOW - timedelta(days=3)


def claim(ordinal: int, **changed: Any) -> ClaimSeen:
    return ClaimSeen(f"data-b-{ordinal}", f"u{ordinal}", f"{ordinal}", ordinal, "20Gi", "20Gi", "fast")._replace(
        **changed)


def planned(wanted: str, *claims: ClaimSeen, **changed: Any) -> VolumesPlan:
    return plan_volumes(VolumesSeen(wanted, claims, {each.ordinal: OLD for each in claims}, **changed), NOW)


def shown(plan: VolumesPlan) -> tuple[str, str]:
    return plan.grown.status, plan.grown.reason


@pytest.mark.parametrize(("text", "bytes_"), [
    ("20Gi", 20 << 30), ("1.5Ki", 1536), ("2k", 2000), ("3M", 3_000_000), ("1e3", 1000), ("5", 5), ("1E", 10**18),
    ("1500m", Decimal("1.5")),
])
def test_quantities(text: str, bytes_: int) -> None:
    assert quantity(text) == bytes_


@pytest.mark.parametrize("text", ["", "20 Gi", "-1Gi", "1K", "Gi", "1e"])
def test_no_quantities(text: str) -> None:
    with pytest.raises(BadQuantity):
        quantity(text)
    assert shown(planned(text, claim(0))) == ("False", "BadQuantity")


def test_all_that_are_smaller_are_expanded() -> None:
    plan = planned("40Gi", claim(0), claim(1), claim(2, asked="40960Mi", has="40Gi"))
    assert plan.steps == (SetSize("data-b-0", "u0", "0", "40Gi"), SetSize("data-b-1", "u1", "1", "40Gi"))
    assert shown(plan) == ("False", "Expanding") and plan.notes[0].type == "Normal"
    grows = planned("40Gi", claim(0, asked="40Gi"), claim(1, asked="40Gi", has="40Gi"))
    assert grows.steps == () and shown(grows) == ("False", "Expanding")
    assert shown(planned("40Gi", claim(0, asked="40Gi", has="40Gi"))) == ("True", "AsDescribed")


def test_a_volume_that_is_larger_than_its_request_is_enough() -> None:
    """As a volume that was made by hand may be."""
    assert shown(planned("40Gi", claim(0, has="100Gi"))) == ("True", "AsDescribed")


def test_a_claim_without_a_volume_waits_for_one() -> None:
    plan = planned("40Gi", claim(0, has=""), claim(1, asked="40Gi", has="40Gi"))
    assert plan.steps == () and shown(plan) == ("False", "NotBound")


def test_a_class_that_does_not_allow_it_is_told() -> None:
    plan = planned("40Gi", claim(0, expandable=False), claim(1, asked="40Gi", has="40Gi"))
    assert plan.steps == () and shown(plan) == ("False", "NotExpandable")
    assert "data-b-0" in plan.grown.message and "fast" in plan.grown.message and plan.notes[0].type == "Warning"
    # Where the class cannot be read, the API server judges.
    assert len(planned("40Gi", claim(0, expandable=None)).steps) == 1


def test_no_volume_is_made_smaller() -> None:
    plan = planned("10Gi", claim(0), claim(1, asked="10Gi", has="10Gi"))
    assert plan.steps == () and shown(plan) == ("False", "LargerThanDescribed")
    assert "data-b-0" in plan.grown.message and "data-b-1" not in plan.grown.message
    assert plan.notes[0].type == "Warning"


def test_what_the_storage_cannot_give_is_taken_back() -> None:
    full = claim(0, asked="90Ti", failed="the quota of disks is exceeded")
    plan = planned("90Ti", full)
    assert plan.steps == () and shown(plan) == ("False", "Failed") and "quota of disks" in plan.grown.message
    assert planned("40Gi", full).steps == (SetSize("data-b-0", "u0", "0", "40Gi"),)
    # Below what the volume has already, it is only told; and so while the expansion has not failed.
    assert shown(planned("10Gi", full)) == ("False", "LargerThanDescribed")
    assert planned("40Gi", full._replace(failed="")).steps == ()


def test_what_the_api_server_refused_is_tried_again_after_a_minute() -> None:
    def at(seconds: int, size: str = "40Gi") -> VolumesPlan:
        refused = {"u0": Refusal(size, int(NOW.timestamp() - seconds) * 1000, "403: no more disks")}
        return planned("40Gi", claim(0), refused=refused)

    assert at(59).steps == () and shown(at(59)) == ("False", "Refused") and "no more disks" in at(59).grown.message
    assert len(at(60).steps) == 1 and len(at(1, "30Gi").steps) == 1


def test_a_pause_stops_everything() -> None:
    plan = planned("40Gi", claim(0), claim(1, asked="40Gi", waits_since=OLD), paused=True)
    assert plan.steps == () and plan.restart == frozenset() and shown(plan) == ("False", "Paused")
    assert shown(planned("20Gi", claim(0), paused=True)) == ("True", "AsDescribed")


def test_a_file_system_that_does_not_grow_while_it_is_mounted_restarts_its_pod_once() -> None:
    waits = claim(1, asked="40Gi", waits_since=NOW - timedelta(seconds=120))

    def restarts(claim: ClaimSeen, created: datetime) -> frozenset[int]:
        return plan_volumes(VolumesSeen("40Gi", (claim,), {1: created}), NOW).restart

    assert restarts(waits, OLD) == {1}
    assert shown(planned("40Gi", waits)) == ("False", "NeedsRestart")
    assert restarts(waits._replace(waits_since=NOW - timedelta(seconds=119)), OLD) == frozenset()
    assert restarts(waits, NOW - timedelta(seconds=119)) == frozenset(), "it has been restarted for this"
    assert plan_volumes(VolumesSeen("40Gi", (waits,), {}), NOW).restart == frozenset(), "it has no pod"


# --- bodies -------------------------------------------------------------------------------------------------------


def body(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": "7"},
            "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "20Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "20Gi"}, **status}}


def test_claims_are_read_by_the_names_of_their_pods() -> None:
    gone = body("data-b-2")
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    plain = body("data-b-0")
    del plain["spec"]["storageClassName"]
    found = claims_of({"metadata": {"name": "b"}}, range(3), [
        body("data-b-1"), plain, gone, body("data-b-3"), body("data-b-x"), body("data-other-b-1"), body("b-1")],
        {"fast": True})
    assert [(each.name, each.expandable) for each in found] == [("data-b-0", False), ("data-b-1", True)]
    (pending,) = claims_of({"metadata": {"name": "b"}}, [0], [body("data-b-0", phase="Pending")], {})
    assert pending.has == "" and pending.expandable is None


def test_conditions_of_claims() -> None:
    def seen(kind: str, status: str = "True", **more: Any) -> ClaimSeen:
        (found,) = claims_of({"metadata": {"name": "b"}}, [0], [body("data-b-0", conditions=[{
            "type": kind, "status": status, "lastTransitionTime": "2026-01-01T12:00:00Z", "message": "why"}], **more)],
            {})
        return found

    assert seen("FileSystemResizePending").waits_since == NOW
    assert seen("FileSystemResizePending", "False").waits_since is None
    assert seen("ControllerResizeError").failed == seen("NodeResizeError").failed == "why"
    stage = {"storage": "ControllerResizeInfeasible"}
    assert seen("Resizing", allocatedResourceStatuses=stage).failed == stage["storage"]
    assert seen("Resizing", allocatedResourceStatuses={"storage": "NodeResizeInProgress"}).failed == ""

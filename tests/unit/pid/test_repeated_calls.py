"""Calls to the allocator that are repeated because their answers were lost."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.producer.leases import MAX_NAME_LENGTH
from hapax.pid.leases import Leases
from hapax.runtime.audit_events import EVENTS
from unit.pid.test_pid_service import Lab, in_lab


@pytest.mark.parametrize("careful", [False, True])
def test_a_call_whose_answer_was_lost_is_repeated_without_harm(careful: bool) -> None:
    async def scenario(lab: Lab) -> None:
        mine = {"holder": "a", "unless_held": careful, "call_id": b"mine"}
        first = await lab.lease(0, **mine)
        again = await lab.lease(0, **mine)
        assert again == first
        assert lab.write(again, 0, 3)
        late = await lab.lease(0, **mine)  # one that was on its way all the time
        assert late.partitions[0].generation == first.partitions[0].generation
        assert lab.write(again, 0, 3)
        assert (await lab.lease(0, holder="a", unless_held=True, call_id=b"other")).error == ErrorCode.INVALID_REQUEST
        other = await lab.lease(0, holder="b", call_id=b"other")
        assert (other.partitions[0].generation, other.former_holder) == (first.partitions[0].generation + 1, "a")
        assert not lab.write(again, 0, 1)
        named = [await lab.lease(1, name="", call_id=b"new") for _ in range(2)]
        assert named[0] == named[1] and named[0].name
        assert (await lab.lease(0, call_id=bytes(65))).error == ErrorCode.INVALID_REQUEST

    in_lab(scenario)


def test_a_take_over_is_in_the_audit_log_once() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, holder="a", call_id=b"mine")
        for _ in range(2):  # the answer was lost
            await lab.lease(0, holder="b", call_id=b"other")
        ((_, _, _, told),) = [each for each in lab.world.audit.events if each[0] == "lease_taken_over"]
        assert told == {
            "call": "LeasePid", "outcome": "done", "lease": "loader", "old": {"holder": "a"}, "new": {
                "holder": "b", "producer_id": first.partitions[0].producer_id, "generation": 1}}
        assert set(told) == set(EVENTS["lease_taken_over"].fields)

    in_lab(scenario)


async def test_a_name_that_no_lease_can_have_is_not_looked_up() -> None:
    """etcd answers a key of megabytes like a member that is away: each such call would be repeated on all of them."""
    unused: Any = None
    leases = Leases(
        unused, unused, unused, unused, unused, max_expire_ms=1000, rest_after_ms=1, forget_after_ms=1,
        fence_timeout_s=1, taken_over=unused)
    name = "n" * (MAX_NAME_LENGTH + 1)
    assert await leases.find(name) is None
    for call in (leases.renew(name, 1, 1, 1), leases.release(name, 1, 1), leases.progress(name, ())):
        with pytest.raises(Refusal) as told:
            await call
        assert told.value.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING

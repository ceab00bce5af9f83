"""A fence that hanging asks for is meant for one transaction, not for the instance's next one."""

from __future__ import annotations

import pytest

from hapax.client.errors import FatalError
from hapax.client.identities import Identities
from hapax.core.errors import ErrorCode
from hapax_operator.apply import apply_fence
from hapax_operator.plan_producer import Fence
from unit.operator.test_plan_producer import resource


class Coordinator(Identities):
    def __init__(self, open_serial: int) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1"})
        self.open_serial = open_serial

    async def fence(self, transactional_id: str, instance: str, by: str, host: str = "", serial: int = 0) -> int:
        if serial and serial != self.open_serial:
            raise FatalError("not open", code=ErrorCode.INVALID_TXN_STATE)
        return 9


async def test_a_transaction_that_ended_meanwhile_costs_its_producer_nothing() -> None:
    hanging = Fence("loader", 3, "one", None, "open for longer than 300 s", serial=17)
    assert await apply_fence(Coordinator(17), resource(), hanging) == 9
    assert await apply_fence(Coordinator(18), resource(), hanging) is None


async def test_a_request_is_for_the_instance() -> None:
    asked = Fence("loader", 3, "one", 2, "requested by spec.fence")
    assert await apply_fence(Coordinator(18), resource(), asked) == 9


async def test_other_refusals_are_told() -> None:
    class Refusing(Coordinator):
        async def fence(self, *_: object, **__: object) -> int:
            raise FatalError("not allowed", code=ErrorCode.INVALID_REQUEST)

    with pytest.raises(FatalError):
        await apply_fence(Refusing(1), resource(), Fence("loader", 3, "one", None, "", serial=1))

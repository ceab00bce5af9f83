"""What the reconciler remembers of resources, whatever order it is told in."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hapax.runtime import telemetry
from hapax.runtime.clock import SystemClock
from hapax_operator.conditions import Condition
from hapax_operator.plan_topic import Verdict
from hapax_operator.reconciler import Reconciler
from hapax_operator.resources import TOPICS, Ref

REF = Ref(TOPICS, "team", "orders")


def body(uid: str, partitions: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": "orders", "uid": uid, "generation": partitions},
        "spec": {"partitions": partitions}}


class View:
    policies = ()


class Api:
    """Takes no status, and has this resource."""

    def __init__(self, found: Mapping[str, Any] | None) -> None:
        self.found = found

    async def put_status(self, *_: Any) -> None:
        return None

    async def get(self, ref: Ref) -> Mapping[str, Any] | None:
        assert ref == REF
        return self.found


@asynccontextmanager
async def reconciler(api: Any = None) -> AsyncIterator[Reconciler]:
    view: Any = View()
    made = Reconciler(view, view, api, SystemClock(), random.Random(1), telemetry.Metrics(), view)
    yield made
    await made.close()


async def test_the_end_of_one_resource_is_not_that_of_another_with_its_name() -> None:
    async with reconciler() as made:
        made.seen(TOPICS, body("1"))
        made.seen(TOPICS, body("2"))
        made.gone(REF, "1")
        (left,) = made.resources.claimants("orders")
        assert left.meta.uid == "2"
        made.gone(REF, "2")
        assert REF not in made.resources


@pytest.mark.parametrize(("found", "left"), [(body("1", 3), ("1", 3)), (body("2", 3), ("2", 3)), (None, None)])
async def test_a_status_that_was_not_taken_is_no_reason_to_forget_the_resource(
    found: dict[str, Any] | None, left: tuple[str, int] | None
) -> None:
    async with reconciler(Api(found)) as made:
        made.seen(TOPICS, body("1"))
        (resource,) = made.resources.claimants("orders")
        await made._write(resource, Verdict(conditions=(Condition("Ready", "True", "Made", ""),), status={}))
        known = made.resources.claimants("orders")
        assert [(each.meta.uid, each.partitions) for each in known] == ([] if left is None else [left])

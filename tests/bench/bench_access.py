"""What an authoriser costs a request: the check by itself, beside 10,000 ACLs, and a change of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from bench.figures import record
from hapax.core.access.bindings import Binding
from hapax.core.access.index import AccessIndex, Policy
from hapax.core.access.principals import ANONYMOUS, user
from hapax.core.access.resources import WRITE_TOPIC, Operation, Pattern, Permission, ResourceType
from hapax.kafka.needs import rights_of
from hapax.runtime.access import Access
from hapax.runtime.access_image import AccessImage

ACLS = 10_000
CHECKS = 10_000
ROUNDS = 100


def binding(number: int) -> Binding:
    return Binding(
        ResourceType.TOPIC, f"topic-{number}", Pattern.PREFIXED if number % 10 == 0 else Pattern.LITERAL,
        user(f"app-{number % 100}"), "*", Operation.WRITE, Permission.ALLOW)


def best_us(work: Callable[[], object], times: int) -> float:
    """Microseconds of one, in the fastest of the rounds: other programs of the computer disturb the rest."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, time.perf_counter() - began)
    return best / times * 1e6


async def measure() -> None:
    image = AccessImage()
    image.swap()
    image.index = AccessIndex({str(number): binding(number) for number in range(ACLS)})
    view: Any = SimpleNamespace(access=image)
    access = Access(view, Policy(), frozenset())
    ctx: Any = SimpleNamespace(
        session=SimpleNamespace(principal=user("app-7"), rights=None), host="10.0.0.1", principal=ANONYMOUS)

    def check() -> None:
        rights_of(access, ctx).may(WRITE_TOPIC, "topic-7")

    record("access_check", best_us(check, CHECKS), "us", at_most=1)
    rights = rights_of(access, ctx)
    assert rights.may(WRITE_TOPIC, "topic-7")
    record("access_first_check", best_us(lambda: rights.decide(WRITE_TOPIC, "topic-7"), 1_000), "us", at_most=50)
    added = {"more": binding(ACLS + 1)}
    record("access_change", best_us(lambda: image.index.changed(added), 5) / 1000, "ms", at_most=50)


def main() -> None:
    asyncio.run(measure())


if __name__ == "__main__":
    main()

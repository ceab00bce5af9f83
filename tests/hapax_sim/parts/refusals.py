"""An administrator who takes permissions away from all programs, one at a time and for a moment, and gives them back.
What a program is refused is nowhere, and what it had acknowledged stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from hapax.client import Admin, HapaxError
from hapax.core.access.bindings import Filter
from hapax.core.access.resources import Permission
from hapax.runtime.access import Access
from hapax_sim import logins
from hapax_sim.clients import Life, Program
from hapax_sim.parts.part import PartTopic

_EVERY_S = (0.5, 5.0)
_FOR_S = (0.05, 2.5)
_NAME = "permissions-0"


class Refusals:
    topics: Mapping[str, PartTopic] = {}
    lasting = (_NAME,)
    """However it ends, its next life gives everything back."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def programs(self) -> dict[str, Program]:
        return {_NAME: self.change}

    async def change(self, life: Life) -> None:
        settings = {"bootstrap.servers": logins.without(life.settings()["bootstrap.servers"]),
                    "default.api.timeout.ms": "5000"}
        async with Admin(settings, ports=life.ports) as admin:
            await self._give_back(admin)
            while not life.stopping():
                await asyncio.sleep(life.rng.uniform(*_EVERY_S))
                right = life.rng.choice(logins.RIGHTS)
                with contextlib.suppress(HapaxError):
                    if life.rng.random() < 0.5:
                        await admin.delete_acls(Filter(*logins.binding(*right, Permission.ALLOW)))
                    else:
                        await admin.create_acls([logins.binding(*right, Permission.DENY)])
                    life.recorder.counts["permissions taken"] += 1
                await asyncio.sleep(life.rng.uniform(*_FOR_S))
                await self._give_back(admin)

    async def _give_back(self, admin: Admin) -> None:
        async def give() -> None:
            for right in logins.RIGHTS:
                await admin.delete_acls(Filter(*logins.binding(*right, Permission.DENY)))
            await admin.create_acls([logins.binding(*right, Permission.ALLOW) for right in logins.RIGHTS])

        await _until_done(give)

    async def finish(self, life: Life) -> None: ...

    def judge(self) -> list[str]:
        return [] if self.seen["refused"] else ["nothing was refused"]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While this context is active, counts what the services' own code refuses."""
        note = Access.note_refusal

        def noting(access: Access, *args: Any) -> None:
            self.seen["refused"] += 1
            note(access, *args)

        Access.note_refusal = noting  # type: ignore[method-assign]
        try:
            yield
        finally:
            Access.note_refusal = note  # type: ignore[method-assign]


async def _until_done(call: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await call()
        except HapaxError:
            await asyncio.sleep(0.2)

"""An administrator who sets the password of all programs again, with another salt: their sessions end, and the next
login succeeds. No program may see any of it. Sessions also end by themselves, every few seconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from hapax.client import HapaxError
from hapax.kafka.sasl_session import SaslSession
from hapax_sim import logins
from hapax_sim.clients import Life, Program
from hapax_sim.parts.part import PartTopic

_EVERY_S = (0.5, 6.0)


class Renewals:
    topics: Mapping[str, PartTopic] = {}

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def programs(self) -> dict[str, Program]:
        return {"administrator-0": self.change}

    async def change(self, life: Life) -> None:
        servers = logins.without(life.settings()["bootstrap.servers"])
        while not life.stopping():
            with contextlib.suppress(HapaxError):
                await logins.create_user(servers, life.ports)
                life.recorder.counts["passwords set"] += 1
            await asyncio.sleep(life.rng.uniform(*_EVERY_S))

    async def finish(self, life: Life) -> None: ...

    def judge(self) -> list[str]:
        found = [] if self.seen["renewed"] else ["no login was renewed"]
        return found + [f"a good login was refused {count} times: {reason}"
                        for reason, count in sorted(self.seen.items()) if reason != "renewed"]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While this context is active, notes what becomes of logins, in the services' own code."""
        welcome, failed = SaslSession._welcome, SaslSession._failed

        def noting_welcome(session: SaslSession, *args: Any) -> Any:
            self.seen["renewed"] += session._logged_in_at > 0
            return welcome(session, *args)

        def noting_failed(session: SaslSession, reason: str) -> None:
            self.seen[reason] += 1
            failed(session, reason)

        SaslSession._welcome = noting_welcome  # type: ignore[method-assign]
        SaslSession._failed = noting_failed  # type: ignore[method-assign]
        try:
            yield
        finally:
            SaslSession._welcome = welcome  # type: ignore[method-assign]
            SaslSession._failed = failed  # type: ignore[method-assign]

"""Events of resources. They are only for display: one that cannot be recorded is logged and not tried again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hapax.runtime import telemetry
from hapax_operator.api import KubeRefused, KubeUnavailable
from hapax_operator.conditions import Note

if TYPE_CHECKING:
    from hapax_operator.api import KubeApi
    from hapax_operator.resources import Meta

log = telemetry.logger("events")


class EventWriter:
    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._told: dict[str, tuple[Note, ...]] = {}
        """Uid -> what the last look told."""

    def forget(self, uid: str) -> None:
        self._told.pop(uid, None)

    async def tell(self, meta: Meta, notes: Sequence[Note]) -> None:
        """What a look finds that the status does not have yet. The next looks find it too, until the status is written:
        they do not repeat it."""
        told = self._told.pop(meta.uid, ())
        if notes:
            self._told[meta.uid] = tuple(notes)
        for note in notes:
            if note not in told:
                await self.record(meta, note)

    async def record(self, meta: Meta, note: Note) -> None:
        try:
            await self._api.record(meta, note)
        except (KubeUnavailable, KubeRefused) as error:
            log.warning("an event was not recorded", reason=note.reason, error=error)

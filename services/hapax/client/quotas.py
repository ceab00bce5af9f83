"""The admin client's calls for client quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hapax.client.connected import Connected
from hapax.client.errors import from_code
from hapax.core.quota.entities import Entity, Match, entity_of, entity_text
from hapax.wire import messages

EntityNames = Mapping[str, str | None]
"""`user`, `client-id` or `ip` -> its name; None: the default. A user and a client id may stand together."""


class QuotaAdmin(Connected):
    async def list_quotas(
        self, exact: EntityNames | None = None, any_of: Sequence[str] = (), *, strict: bool = False
    ) -> dict[Entity, dict[str, float]]:
        """Quotas by entity and key, in order. `exact`: only entities with these names; `any_of`: only those that have
        these types; `strict`: only those without further types."""
        Component = messages.DescribeClientQuotasRequest.ComponentData
        components = [
            Component(entity_type=kind, match_type=Match.DEFAULT if name is None else Match.EXACT, match=name)
            for kind, name in (exact or {}).items()]
        components += [Component(entity_type=kind, match_type=Match.ANY, match=None) for kind in any_of]

        async def attempt() -> dict[Entity, dict[str, float]]:
            answer: Any = await self._cluster.call_any(
                lambda: messages.DescribeClientQuotasRequest(components=components, strict=strict))
            if answer.error_code:
                raise from_code(answer.error_code, "listing quotas", answer.error_message)
            found = {
                entity_of({each.entity_type: each.entity_name for each in entry.entity}):
                    {value.key: value.value for value in entry.values}
                for entry in answer.entries}
            return dict(sorted(found.items(), key=lambda each: repr(each[0])))

        return await self._cluster.within(self._timeout, "listing quotas", attempt)

    async def alter_quotas(self, names: EntityNames, changes: Mapping[str, float | None]) -> None:
        """Sets quotas of one entity; None removes one. Others keep their values."""
        Entry = messages.AlterClientQuotasRequest.EntryData
        what = f"changing the quotas of {entity_text(entity_of(names))}"
        entry = Entry(
            entity=[Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()],
            ops=[Entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()])

        async def attempt() -> None:
            answer: Any = await self._cluster.call_any(
                lambda: messages.AlterClientQuotasRequest(entries=[entry], validate_only=False))
            (result,) = answer.entries
            if result.error_code:
                raise from_code(result.error_code, what, result.error_message)

        await self._cluster.within(self._timeout, what, attempt)

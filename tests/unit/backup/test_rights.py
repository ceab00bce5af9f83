"""ACLs and quotas survive a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hapax.backup import manifests
from hapax.backup.restoring import Restorer
from hapax.backup.store import FolderStore
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import user
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.quota.entities import Entity, entity_of
from unit.backup.history import History

BINDING = Binding(
    ResourceType.TOPIC, "orders", Pattern.PREFIXED, user("alice"), "*", Operation.READ, Permission.ALLOW)
QUOTAS: dict[Entity, dict[str, float]] = {
    entity_of({"user": "alice", "client-id": None}): {"producer_byte_rate": 1024.5},
    entity_of({"ip": "10.0.0.1"}): {"connection_creation_rate": 3.0},
}


class WithRights(History):
    async def list_acls(self) -> list[Any]:
        return [BINDING]

    async def list_quotas(self) -> dict[Any, Any]:
        return QUOTAS


class Target:
    def __init__(self) -> None:
        self.bindings: list[Binding] = []
        self.quotas: dict[Entity, dict[str, float]] = {}

    async def create_acls(self, bindings: list[Binding]) -> None:
        self.bindings += bindings

    async def alter_quotas(self, names: dict[str, str | None], values: dict[str, float]) -> None:
        self.quotas[entity_of(names)] = values


async def test_they_are_restored_as_they_were(tmp_path: Path) -> None:
    history, store, target = WithRights(1), FolderStore(tmp_path), Target()
    taken = (await history.backup(store)).manifest
    manifest = manifests.read(store, taken.backup)
    await Restorer(target, store, manifest)._access()  # type: ignore[arg-type]
    assert target.bindings == [BINDING] and target.quotas == QUOTAS

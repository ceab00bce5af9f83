"""ACLs, quotas and the settings of groups survive a manifest. So do the names of users, without their passwords."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hapax.backup import manifests
from hapax.backup.restoring import Restorer
from hapax.backup.store import FolderStore
from hapax.client.admin import ConfigValue
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

    async def configured_groups(self) -> list[str]:
        return ["readers"]

    async def group_config(self, group: str) -> dict[str, ConfigValue]:
        assert group == "readers"
        return {
            "consumer.session.timeout.ms": ConfigValue("50000", "group", "45000", ""),
            "consumer.heartbeat.interval.ms": ConfigValue("5000", "default", "5000", "")}

    async def users(self) -> tuple[tuple[str, str], ...]:
        return ("alice", "SCRAM-SHA-256"), ("alice", "SCRAM-SHA-512"), ("bob", "SCRAM-SHA-512")


class Target:
    def __init__(self) -> None:
        self.bindings: list[Binding] = []
        self.quotas: dict[Entity, dict[str, float]] = {}
        self.groups: dict[str, dict[str, str]] = {}

    async def create_acls(self, bindings: list[Binding]) -> None:
        self.bindings += bindings

    async def alter_quotas(self, names: dict[str, str | None], values: dict[str, float]) -> None:
        self.quotas[entity_of(names)] = values

    async def alter_group_config(self, group: str, changes: dict[str, str]) -> None:
        self.groups[group] = changes

    async def users(self) -> tuple[tuple[str, str], ...]:
        return ("alice", "SCRAM-SHA-512"), ("bob", "SCRAM-SHA-512"), ("admin", "SCRAM-SHA-512")


async def test_they_are_restored_as_they_were(tmp_path: Path) -> None:
    history, store, target = WithRights(1), FolderStore(tmp_path), Target()
    taken = (await history.backup(store)).manifest
    manifest = manifests.read(store, taken.backup)
    restorer = Restorer(target, store, manifest)  # type: ignore[arg-type]
    await restorer._access()
    assert target.bindings == [BINDING] and target.quotas == QUOTAS
    assert target.groups == {"readers": {"consumer.session.timeout.ms": "50000"}}
    assert await restorer._without_password() == ("alice",)

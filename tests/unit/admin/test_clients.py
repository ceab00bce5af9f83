"""The service's own clients follow a cluster whose nodes all move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hapax.admin import context
from hapax.admin.context import Clients
from hapax.admin.problems import Problem


class Client:
    def __init__(self, options: dict[str, str], ports: Any) -> None:
        self.knows = options["bootstrap.servers"]
        self.closed = False

    async def start(self) -> Client:
        return self

    async def close(self) -> None:
        self.closed = True


class View:
    port = 1
    alive = True

    def nodes(self, role: str) -> list[Any]:
        return [SimpleNamespace(host="h", port=self.port)] if self.alive and role == "broker" else []


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> tuple[Clients, View]:
    monkeypatch.setattr(context, "Admin", Client)
    monkeypatch.setattr(context, "Leases", Client)
    view, nothing = View(), None
    return Clients(nothing, view, 1000), view  # type: ignore[arg-type]


@pytest.mark.parametrize("first", ["admin", "leases"])
async def test_both_clients_are_made_again_where_all_nodes_have_moved(
    world: tuple[Clients, View], first: str
) -> None:
    clients, view = world
    before: list[Any] = [await clients.admin(), await clients.leases()]
    view.port = 2
    for name in (first, "admin", "leases"):
        found: Any = await getattr(clients, name)()
        assert found.knows == "h:2", name
    await clients.close()
    assert all(each.closed for each in before)


async def test_a_client_stays_where_no_node_is_seen(world: tuple[Clients, View]) -> None:
    clients, view = world
    view.alive = False
    with pytest.raises(Problem):
        await clients.leases()
    view.alive = True
    made = await clients.leases()
    view.alive = False
    assert await clients.leases() is made

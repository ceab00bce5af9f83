"""`RackKeeper`: what it writes, and under which conditions."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from hapax.codec.metadata import Keys, RacksRecord
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Compare, Put
from hapax_operator.racks import RackKeeper
from hapax_sim.metadata import MemoryMetadata, MetadataModel

KEYS = Keys("c")


class Api:
    """Nodes and the racks that their label says."""

    def __init__(self, **racks: str) -> None:
        self.racks = racks
        self.asked: list[str] = []

    async def metadata(self, path: str) -> Mapping[str, Any] | None:
        machine = path.rpartition("/")[2]
        self.asked.append(machine)
        return {"labels": {"zone": self.racks[machine]}} if machine in self.racks else None


@asynccontextmanager
async def keeper(api: Api, *machines: str) -> AsyncIterator[tuple[RackKeeper, MetadataModel, list[bool]]]:
    """Of brokers on these machines."""
    model, calls = MetadataModel(), list[bool]()
    leads = model.txn([], [Put("/leads", b"")]).revision
    store = MemoryMetadata(model)
    view = ClusterView(store, "c", random.Random(1))
    await view.start()
    made: Any = api
    found = RackKeeper(
        view, made, random.Random(1), store, [Compare("/leads", "mod_revision", leads)], "n", "b", "zone",
        lambda: calls.append(True))
    for ordinal, machine in enumerate(machines):
        found._saw("ADDED", pod(ordinal, machine))
    try:
        yield found, model, calls
    finally:
        await view.close()


def pod(ordinal: int, machine: str) -> dict[str, Any]:
    return {"metadata": {"name": f"b-{ordinal}"}, "spec": {"nodeName": machine}}


def stored(model: MetadataModel) -> RacksRecord | None:
    kv = model.get(KEYS.racks)
    return None if kv is None else RacksRecord.decode(kv.value)


async def test_it_writes_only_what_is_new_and_asks_about_a_few_machines_at_a_time() -> None:
    found = {f"m{each}": "a" for each in range(5)}
    api = Api(**found)
    async with keeper(api, *found) as (racks, model, calls):
        await racks.look()
        assert stored(model) == RacksRecord("zone", found) and not calls
        kv = model.get(KEYS.racks)
        assert kv is not None
        api.asked.clear()
        await racks.look()
        after = model.get(KEYS.racks)
        assert after is not None and after.mod_revision == kv.mod_revision and len(api.asked) == 3


async def test_a_pod_that_comes_to_another_machine_is_asked_about_at_once() -> None:
    api = Api(m0="a", m1="b", m2="c")
    async with keeper(api, "m0", "m1") as (racks, model, calls):
        await racks.look()
        racks._saw("DELETED", pod(1, "m1"))
        racks._saw("ADDED", pod(1, ""))
        racks._saw("MODIFIED", pod(1, "m2"))
        assert racks._wake.is_set()
        await racks.look()
        assert stored(model) == RacksRecord("zone", {"m0": "a", "m1": "b", "m2": "c"})
        racks._saw("MODIFIED", pod(0, "m9"))
        await racks.look()
        assert calls and racks.unknown == {0: "b-0: node m9 is not known"}


async def test_an_operator_that_no_longer_leads_writes_nothing() -> None:
    async with keeper(Api(m0="a"), "m0") as (racks, model, _):
        model.txn([], [Put("/leads", b"another")])
        await racks.look()
        assert stored(model) is None


async def test_what_another_one_wrote_meanwhile_is_not_written_over() -> None:
    """As when the view is late: the next look is made from what the store has."""
    api = Api(m0="a")
    async with keeper(api, "m0") as (racks, model, _):
        model.txn([], [Put(KEYS.racks, RacksRecord("zone", {"m7": "x"}).encode())])
        assert await racks.look() < 5
        assert stored(model) == RacksRecord("zone", {"m7": "x"})
        api.racks["m7"] = "x"
        await racks._view.wait_for(lambda view: view.racks_revision, 5)
        await racks.look()
        assert stored(model) == RacksRecord("zone", {"m0": "a", "m7": "x"})

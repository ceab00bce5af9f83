"""`AddressKeeper` and its plan: which addresses clients outside are told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from hapax.codec.metadata import Keys, OutsideRecord
from hapax.core.types import NodeId
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Compare, Delete, Put, TxnResult
from hapax_operator.outside import AddressKeeper
from hapax_operator.plan_outside import ServiceSeen, addresses_condition, plan_outside, service_seen
from hapax_sim.metadata import MemoryMetadata, MetadataModel

KEYS = Keys("c")


def service(
    node: int, ingress: list[dict[str, Any]] | None = None, port: int = 9095, uid: str = "", **metadata: str
) -> dict[str, Any]:
    return {"metadata": {"name": f"s-{node}", "uid": uid or f"u-{node}",
                         "labels": {"hapax.dev/outside-node": str(node)}, **metadata},
            "spec": {"ports": [{"port": port}]},
            "status": {"loadBalancer": {} if ingress is None else {"ingress": ingress}}}


def seen(node: int, address: tuple[str, int] | None = None, name: str = "", **more: Any) -> ServiceSeen:
    return ServiceSeen(NodeId(node), name or f"s-{node}", address, **{"uid": f"u-{node}", **more})


def record(**addresses: tuple[str, int]) -> OutsideRecord:
    """Of the Services of `seen`, by n and the node's id."""
    nodes = {NodeId(int(name[1:])): address for name, address in addresses.items()}
    return OutsideRecord(nodes, {node: f"u-{node}" for node in nodes})


@pytest.mark.parametrize(("ingress", "host"), [
    (None, None), ([], None), ([{}], None), ([{"ip": "192.0.2.1"}], "192.0.2.1"),
    ([{"hostname": "a.example"}], "a.example"), ([{"hostname": "a.example", "ip": "192.0.2.1"}], "a.example"),
    ([{"ip": "192.0.2.1", "ports": [{"port": 9095, "protocol": "TCP"}]}, {"ip": "192.0.2.2"}], "192.0.2.1"),
    ([{"ip": "2001:db8::1"}], "2001:db8::1"),
])
def test_an_address_is_a_load_balancer_s_name_or_else_its_first_ip(
    ingress: list[dict[str, Any]] | None, host: str | None
) -> None:
    address = None if host is None else (host, 443)
    assert service_seen(service(7, ingress, 443)) == seen(7, address)
    assert service_seen({"metadata": {"name": "bootstrap", "labels": {}}, "spec": {"ports": [{"port": 1}]}}) is None


def test_an_address_stays_while_the_service_does() -> None:
    former = record(n0=("a", 1), n1=("b", 1), n2=("c", 1))
    services = [seen(0), seen(1, ("new", 2)), seen(3)]
    assert plan_outside(services, former) == record(n0=("a", 1), n1=("new", 2))
    waits = addresses_condition(services)
    assert (waits.status, waits.reason) == ("False", "WaitingForLoadBalancer") and "s-0, s-3" in waits.message
    assert addresses_condition(services[1:2]).status == "True"
    bare = addresses_condition(services[1:2], {1, 4})
    assert (bare.status, bare.reason) == ("False", "NoService") and bare.message.endswith(": 4")
    assert addresses_condition(services[1:3], {3}).reason == "WaitingForLoadBalancer"
    many = addresses_condition([seen(each) for each in range(7)])
    assert many.message.endswith(", and 2 more")


def test_of_several_services_of_a_node_one_that_has_an_address_counts() -> None:
    """A person may have made another one with the same label."""
    former = OutsideRecord({NodeId(0): ("former", 1)}, {NodeId(0): "a"})
    services = [seen(0, name="a", uid="a"), seen(0, ("new", 2), name="b", uid="b"), seen(0, name="c", uid="c")]
    for given in (services, services[::-1]):
        assert plan_outside(given, former) == OutsideRecord({NodeId(0): ("new", 2)}, {NodeId(0): "b"})
        assert plan_outside([each for each in given if each.address is None], former) == former


def test_a_service_of_the_same_name_does_not_take_over_the_former_one_s_address() -> None:
    """`external.enabled` was switched off and on again before the operator noticed. The former address is nobody's, or
    another's, who would get the clients' passwords."""
    former = record(n0=("former", 1))
    assert plan_outside([seen(0, uid="another")], former) == OutsideRecord()
    assert plan_outside([seen(0)], OutsideRecord(former.nodes)) == former, "a former operator stored no uids"


def test_a_service_that_is_being_deleted_leads_to_no_node() -> None:
    """Its finalizer waits for the cloud to end the load balancer."""
    going = seen(0, ("former", 1), deleting=True)
    assert plan_outside([going], record(n0=("former", 1))) == OutsideRecord()
    condition = addresses_condition([going, seen(1, ("b", 1))], {0})
    assert condition.reason == "NoService" and "these Services are being deleted, wait for that first: s-0" in (
        condition.message)
    assert addresses_condition([going, seen(0, ("new", 2), uid="another")]).status == "True"


class Api:
    """A watch of Services."""

    def __init__(self, *listed: Mapping[str, Any]) -> None:
        self._listed = listed
        self.events: asyncio.Queue[tuple[str, Mapping[str, Any]]] = asyncio.Queue()
        self.asked: list[tuple[str, str]] = []

    async def follow(self, collection: str, selector: str) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        self.asked.append((collection, selector))
        yield "LISTED", {"items": list(self._listed)}
        while True:
            yield await self.events.get()


class Store(MemoryMetadata):
    """Tells of each attempt to write."""

    def __init__(self, model: MetadataModel) -> None:
        super().__init__(model)
        self.tried: asyncio.Queue[bool] = asyncio.Queue()

    async def txn(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TxnResult:
        result = await super().txn(compares, writes)
        self.tried.put_nowait(result.succeeded)
        return result


async def test_what_is_seen_is_written_while_this_operator_leads() -> None:
    model = MetadataModel()
    leads = model.txn([], [Put("/leads", b"")]).revision
    store = Store(model)
    view = ClusterView(store, "c", random.Random(1))
    await view.start()
    api, looks = Api(service(0, [{"ip": "192.0.2.1"}]), service(1)), asyncio.Queue[bool]()
    made: Any = api
    keeper = AddressKeeper(
        view, made, random.Random(1), store, [Compare("/leads", "mod_revision", leads)], "n", "release=r",
        lambda: looks.put_nowait(True))

    async def told(**addresses: tuple[str, int]) -> None:
        """`addresses`: by n and the node's id."""
        wanted = {NodeId(int(name[1:])): address for name, address in addresses.items()}
        assert await view.wait_for(lambda view: dict(view.outside.nodes) == wanted, 10)

    keeper.start()
    try:
        await told(n0=("192.0.2.1", 9095))
        assert api.asked == [("/api/v1/namespaces/n/services", "hapax.dev/outside-node,release=r")]
        assert [each.address for each in keeper.services] == [("192.0.2.1", 9095), None] and looks.get_nowait()
        api.events.put_nowait(("MODIFIED", service(1, [{"hostname": "b.example"}])))
        await told(n0=("192.0.2.1", 9095), n1=("b.example", 9095))
        api.events.put_nowait(("MODIFIED", service(0)))  # it stays, which needs no write
        api.events.put_nowait(("MODIFIED", service(
            0, [{"ip": "192.0.2.1"}], deletionTimestamp="2026-01-01T00:00:00Z")))
        await told(n1=("b.example", 9095))
        assert [each.deleting for each in keeper.services] == [True, False]
        api.events.put_nowait(("DELETED", service(0)))
        api.events.put_nowait(("ADDED", service(0, uid="another")))
        await told(n1=("b.example", 9095))
        assert [await store.tried.get() for _ in range(3)] == [True] * 3 and store.tried.empty()
        model.txn([], [Put("/leads", b"another")])
        api.events.put_nowait(("MODIFIED", service(1, [{"hostname": "c.example"}])))
        assert not await asyncio.wait_for(store.tried.get(), 10)
        kv = model.get(KEYS.outside)
        assert kv is not None and OutsideRecord.decode(kv.value) == record(n1=("b.example", 9095))
    finally:
        await keeper.close()
        await view.close()


async def test_addresses_of_former_load_balancers_go_when_there_are_none() -> None:
    """`external.enabled` off and on again: new load balancers lead to the same nodes, and have no address at first."""
    model = MetadataModel()
    leads = model.txn([], [Put("/leads", b"")]).revision
    model.txn([], [Put(KEYS.outside, OutsideRecord({NodeId(0): ("192.0.2.1", 9095)}).encode())])
    store = Store(model)
    view = ClusterView(store, "c", random.Random(1))
    await view.start()
    fences = [Compare("/leads", "mod_revision", leads)]

    def keeper(api: Any, selector: str) -> AddressKeeper:
        return AddressKeeper(view, api, random.Random(1), store, fences, "n", selector, lambda: None)

    another = Api(service(0, [{"ip": "192.0.2.1"}]))  # of a neighbour
    off = keeper(another, "")
    off.start()
    try:
        assert await view.wait_for(lambda view: not view.outside.nodes, 10) and not another.asked
    finally:
        await off.close()
    api = Api(service(0))
    on = keeper(api, "release=r")
    on.start()
    try:
        api.events.put_nowait(("MODIFIED", service(0, [{"ip": "192.0.2.9"}])))
        assert await view.wait_for(lambda view: bool(view.outside.nodes), 10)
        assert dict(view.outside.nodes) == {NodeId(0): ("192.0.2.9", 9095)}
    finally:
        await on.close()
        await view.close()

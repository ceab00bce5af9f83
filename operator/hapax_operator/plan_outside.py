"""Where clients outside reach each node, as load balancers say once they have an address. Pure.

A node keeps its address while its Service is there. A load balancer that shows none for a moment is not known to be
gone, and without an address clients would lose the node. A Service that is being deleted is there no more: its load
balancer ends at any moment, and the address may then be another's. So may that of a former Service of the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from hapax.codec.metadata import OutsideRecord
from hapax.core.types import NodeId
from hapax_operator.conditions import Condition

NODE: Final = "hapax.dev/outside-node"
"""A label of the Service that leads clients outside to one node: its id."""
_NAMED: Final = 5


class ServiceSeen(NamedTuple):
    node: NodeId
    name: str
    address: tuple[str, int] | None
    """None: it has none yet."""
    uid: str
    deleting: bool = False


def service_seen(body: Mapping[str, Any]) -> ServiceSeen | None:
    """None: it is of no node."""
    number = str((body["metadata"].get("labels") or {}).get(NODE, ""))
    ports = body["spec"].get("ports") or ()
    if not number.isdigit() or not ports:
        return None
    host, metadata = address_of(body), body["metadata"]
    return ServiceSeen(
        NodeId(int(number)), str(metadata["name"]), (host, int(ports[0]["port"])) if host else None,
        str(metadata["uid"]), "deletionTimestamp" in metadata)


def address_of(body: Mapping[str, Any]) -> str:
    """A load balancer's name or IP address; empty: it has none yet."""
    shown = ((body.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    return next((str(each.get("hostname") or each.get("ip")) for each in shown
                 if each.get("hostname") or each.get("ip")), "")


def plan_outside(services: Iterable[ServiceSeen], former: OutsideRecord) -> OutsideRecord:
    """Of several Services of one node, the first by name that has an address counts."""
    nodes: dict[NodeId, tuple[str, int]] = {}
    uids: dict[NodeId, str] = {}
    staying = (each for each in services if not each.deleting)
    for each in sorted(staying, key=lambda each: (each.address is None, each.name)):
        address = each.address
        if address is None and former.services.get(each.node, each.uid) == each.uid:
            address = former.nodes.get(each.node)
        if address is not None and each.node not in nodes:
            nodes[each.node], uids[each.node] = address, each.uid
    return OutsideRecord(nodes, uids)


def addresses_condition(seen: Iterable[ServiceSeen], untold: Collection[int] = ()) -> Condition:
    """`untold`: the live nodes of which clients outside are told no address."""
    known = list(seen)
    services = [each for each in known if not each.deleting]
    going = [each for each in known if each.deleting]
    waits = sorted(each.name for each in services if each.address is None)
    bare = sorted(set(untold) - {int(each.node) for each in services})
    if not waits and not bare:
        return Condition("AddressesKnown", "True", "Balanced", "clients outside are told an address of each node")
    phrases = []
    if bare:
        phrases.append(
            f"no Service leads clients outside to these nodes, which the values do not count, or whose Services were"
            f" deleted, so that `helm upgrade` makes them again: {_some(map(str, bare))}")
    if going and bare:
        phrases.append(f"these Services are being deleted, wait for that first:"
                       f" {_some(sorted(each.name for each in going))}")
    if waits:
        phrases.append(f"these Services have no address, so that clients outside are led to their nodes only by"
                       f" a former one: {_some(waits)}")
    return Condition(
        "AddressesKnown", "False", "NoService" if bare else "WaitingForLoadBalancer", "; ".join(phrases))


def _some(names: Iterable[str]) -> str:
    found = list(names)
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{more}"

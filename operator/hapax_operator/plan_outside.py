"""Where clients outside reach each node, as load balancers say once they have an address. Pure.

A node keeps its address while its Service is there. A load balancer that shows none for a moment is not known to be
gone, and without an address clients would lose the node.
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


def service_seen(body: Mapping[str, Any]) -> ServiceSeen | None:
    """None: it is of no node."""
    number = str((body["metadata"].get("labels") or {}).get(NODE, ""))
    ports = body["spec"].get("ports") or ()
    if not number.isdigit() or not ports:
        return None
    host = address_of(body)
    return ServiceSeen(
        NodeId(int(number)), str(body["metadata"]["name"]), (host, int(ports[0]["port"])) if host else None)


def address_of(body: Mapping[str, Any]) -> str:
    """A load balancer's name or IP address; empty: it has none yet."""
    shown = ((body.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    return next((str(each.get("hostname") or each.get("ip")) for each in shown
                 if each.get("hostname") or each.get("ip")), "")


def plan_outside(services: Iterable[ServiceSeen], former: OutsideRecord) -> OutsideRecord:
    """Of several Services of one node, the first by name that has an address counts."""
    nodes: dict[NodeId, tuple[str, int]] = {}
    named = sorted(services, key=lambda each: (each.address is None, each.name))
    for each in named:
        address = each.address or former.nodes.get(each.node)
        if address is not None:
            nodes.setdefault(each.node, address)
    return OutsideRecord(nodes)


def addresses_condition(services: Iterable[ServiceSeen], untold: Collection[int] = ()) -> Condition:
    """`untold`: the live nodes of which clients outside are told no address."""
    services = list(services)
    waits = sorted(each.name for each in services if each.address is None)
    bare = sorted(set(untold) - {int(each.node) for each in services})
    if not waits and not bare:
        return Condition("AddressesKnown", "True", "Balanced", "clients outside are told an address of each node")
    phrases = []
    if bare:
        phrases.append(f"no Service leads clients outside to these nodes, which the values do not count:"
                       f" {_some(map(str, bare))}")
    if waits:
        phrases.append(f"these Services have no address, so that clients outside are led to their nodes only by"
                       f" a former one: {_some(waits)}")
    return Condition(
        "AddressesKnown", "False", "NoService" if bare else "WaitingForLoadBalancer", "; ".join(phrases))


def _some(names: Iterable[str]) -> str:
    found = list(names)
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{more}"

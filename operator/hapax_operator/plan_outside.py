"""Where clients outside reach each node, as load balancers say once they have an address. Pure.

A node keeps its address while its Service is there. A load balancer that shows none for a moment is not known to be
gone, and without an address clients would lose the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    nodes = {}
    for each in services:
        address = each.address or former.nodes.get(each.node)
        if address is not None:
            nodes[each.node] = address
    return OutsideRecord(nodes)


def addresses_condition(services: Iterable[ServiceSeen]) -> Condition:
    waits = sorted(each.name for each in services if each.address is None)
    if not waits:
        return Condition("AddressesKnown", "True", "Balanced", "clients outside are told an address of each node")
    more = f", and {len(waits) - _NAMED} more" if len(waits) > _NAMED else ""
    return Condition(
        "AddressesKnown", "False", "WaitingForLoadBalancer",
        f"these Services have no address yet, so that clients outside are not led to their nodes:"
        f" {', '.join(waits[:_NAMED])}{more}")

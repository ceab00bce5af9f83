"""Names of the cluster's own processes, and which of them may make which call.

A process proves its name by a certificate with an alternative name (URI) in the form of SPIFFE:
`spiffe://CLUSTER/ROLE/ID`, such as `spiffe://shop/broker/0`. A role whose processes take any free id
(`node.id.generation.enable`) may leave the id out: `spiffe://shop/pid`. Brokers and coordinators may not, since what is
stored belongs to an id.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from hapax.core.access.principals import Principal

BROKER: Final = "broker"
COORDINATOR: Final = "coordinator"
PID: Final = "pid"
CONTROLLER: Final = "controller"
ADMIN: Final = "admin"
ROLES: Final = (BROKER, COORDINATOR, PID, CONTROLLER, ADMIN)
_NUMBERED: Final = frozenset({BROKER, COORDINATOR})
SERVICE: Final = "Service"
"""The type of these principals. No login and no client's certificate gives it."""

_NAME: Final = re.compile(r"spiffe://(?P<cluster>[A-Za-z0-9_-]{1,64})/(?P<role>[a-z]+)(?:/(?P<id>0|[1-9][0-9]{0,9}))?")

_INTERNAL: Final = "/hapax.internal.v1."
_ADMINISTRATORS: Final = frozenset({BROKER, COORDINATOR, CONTROLLER})
"""Nodes pass on what their clients ask for, after they have checked the clients' rights. The operator, whose process is
a candidate for the controller, may not be the acting one."""
CALLERS: Final[dict[str, frozenset[str]]] = {
    f"{_INTERNAL}PartitionBroker/WriteMarkers": frozenset({COORDINATOR}),
    f"{_INTERNAL}PartitionBroker/DescribeProducers": frozenset({COORDINATOR, PID}),
    f"{_INTERNAL}PartitionBroker/FenceProducer": frozenset({PID}),
    f"{_INTERNAL}PartitionBroker/FetchSnapshot": frozenset({BROKER}),
    f"{_INTERNAL}TxnCoordinator/VerifyPartitions": frozenset({BROKER, COORDINATOR}),
    f"{_INTERNAL}TxnCoordinator/AbortHanging": frozenset({BROKER, COORDINATOR}),
    f"{_INTERNAL}GroupCoordinator/WriteOffsetsMarkers": frozenset({COORDINATOR}),
    f"{_INTERNAL}PidAllocator/AllocateBlock": frozenset({BROKER, COORDINATOR}),
    f"{_INTERNAL}Controller/CreateTopics": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/DeleteTopics": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/CreatePartitions": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/AlterTopicConfigs": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/AlterGroupConfigs": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/AlterReassignments": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/ElectLeaders": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/SetReplication": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/AlterAcls": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/AlterQuotas": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/AlterScramCredentials": _ADMINISTRATORS,
    f"{_INTERNAL}Controller/TakeMutations": frozenset({BROKER, COORDINATOR}),
    # A controller asks nodes without a Kafka listener, and its own candidates, whether they are alive.
    "/grpc.health.v1.Health/Check": frozenset({CONTROLLER}),
}
"""Method of a service port -> the roles that may call it. What is not here, no role may call."""


class ServiceName(NamedTuple):
    """Which process of which cluster."""

    cluster_id: str
    role: str
    node_id: int = -1
    """-1: any process of the role."""

    def __str__(self) -> str:
        number = "" if self.node_id < 0 else f"/{self.node_id}"
        return f"spiffe://{self.cluster_id}/{self.role}{number}"

    @classmethod
    def parse(cls, uri: str) -> ServiceName:
        """Raises ValueError for any other text."""
        found = _NAME.fullmatch(uri)
        if found is None or found["role"] not in ROLES:
            raise ValueError(f"{uri!r} is not spiffe://CLUSTER/ROLE/ID with a role of " + ", ".join(ROLES))
        if found["id"] is None and found["role"] in _NUMBERED:
            raise ValueError(f"{uri!r} names no {found['role']}: its node.id must follow")
        return cls(found["cluster"], found["role"], -1 if found["id"] is None else int(found["id"]))

    @property
    def principal(self) -> Principal:
        return Principal(f"{SERVICE}:{self.role}" + ("" if self.node_id < 0 else f"/{self.node_id}"))

    def stands_for(self, wanted: ServiceName) -> bool:
        """Whether who proves this name may act as `wanted`. An id that one of the two leaves out may be any."""
        return self[:2] == wanted[:2] and (self.node_id in (wanted.node_id, -1) or wanted.node_id < 0)


def may_call(role: str, method: str) -> bool:
    return role in CALLERS.get(method, ())

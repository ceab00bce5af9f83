"""Calls between this release and the one before gRPC listeners of their own (its last commit is a76baed), while a
cluster is upgraded from one to the other: `rpc.former.calls`.

A node of that release has one listener for calls. Its frames are those of `rpc_frames`, with these differences: there
is no greeting, a status is an index into `STATUSES`, some methods have other names, and only some requests name the
cluster, in a field of their own. This module has those differences; nothing else in the code knows of that release.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

from hapax.runtime.ports import FrameConnection, RpcError, RpcHandler, RpcStatus
from hapax.runtime.rpc import AT, FORMER, check_cluster
from hapax.runtime.rpc_links import FrameLink, LinkChannel

if TYPE_CHECKING:
    from hapax.runtime.network import TcpNetwork

STATUSES: Final = (
    "OK", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INVALID_ARGUMENT", "FAILED_PRECONDITION",
    "NOT_FOUND", "ABORTED", "INTERNAL",
)
_INDEX: Final = {name: index for index, name in enumerate(STATUSES)}
_LONGEST_VARINT: Final = 63
"""Bits before the last byte of the largest number that an encoded message may have."""

_ADMIN: Final = "/hapax.internal.v1.CoordinatorAdmin/"
_BROKER: Final = "/hapax.internal.v1.PartitionBroker/"
_MOVED: Final = {
    _ADMIN + "DeleteOffsets": "/hapax.v1.Groups/DeleteOffsets",
    _ADMIN + "DescribeGroup": "/hapax.v1.Groups/DescribeGroup",
    _ADMIN + "ListGroups": "/hapax.v1.Groups/ListGroups",
    _ADMIN + "DescribeShards": "/hapax.v1.Shards/DescribeShards",
    _BROKER + "DescribeOffsets": "/hapax.v1.Partitions/DescribeOffsets",
    _BROKER + "DescribeReplicas": "/hapax.v1.Partitions/DescribeReplicas",
}
"""The former release's name of a method -> today's. The messages have the same fields under the same numbers."""

_CONTROLLER: Final = "/hapax.internal.v1.Controller/"
_LEASES: Final = "/hapax.v1.ProducerLeases/"
_CLUSTER_FIELD: Final = {
    _CONTROLLER + "CreateTopics": 4, _CONTROLLER + "DeleteTopics": 4, _CONTROLLER + "CreatePartitions": 6,
    _CONTROLLER + "AlterTopicConfigs": 3, _CONTROLLER + "AlterReassignments": 3, _CONTROLLER + "ElectLeaders": 4,
    _CONTROLLER + "SetReplication": 4, "/hapax.internal.v1.PidAllocator/AllocateBlock": 4, _LEASES + "LeasePid": 8,
    _LEASES + "RenewLease": 5, _LEASES + "ReleaseLease": 4, _LEASES + "ListLeases": 2,
    _LEASES + "GetProducerProgress": 4,
}
"""The number of the request's field that names the cluster, of methods whose former requests had one."""


def former_handlers(handlers: Mapping[str, RpcHandler], cluster_id: str) -> dict[str, RpcHandler]:
    """What callers of the former release find: today's handlers under its names. A request that names another cluster
    is refused, as that release did."""
    found = {
        **handlers, **{former: handlers[method] for former, method in _MOVED.items() if method in handlers}}
    for method, number in _CLUSTER_FIELD.items():
        if method in found:
            found[method] = _of_cluster(cluster_id, number, found[method])
    return found


def _of_cluster(own: str, number: int, handler: RpcHandler) -> RpcHandler:
    async def answer(payload: bytes, peer: object) -> bytes:
        check_cluster(own, text_field(payload, number) or own)
        return await handler(payload, peer)  # type: ignore[arg-type]

    return answer


def text_field(message: bytes, number: int) -> str:
    """The last value of a length-delimited field of an encoded message; empty where it is absent. Raises RpcError."""
    found, at = b"", 0
    try:
        while at < len(message):
            key, at = _varint(message, at)
            match key & 7:
                case 0:
                    _, at = _varint(message, at)
                case 1:
                    at += 8
                case 2:
                    size, at = _varint(message, at)
                    if key >> 3 == number:
                        found = message[at : at + size]
                    at += size
                case 5:
                    at += 4
                case _:
                    raise IndexError
            if at > len(message):
                raise IndexError
        return found.decode()
    except (IndexError, UnicodeDecodeError):
        raise RpcError("INVALID_ARGUMENT", "not a request") from None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _LONGEST_VARINT:
            raise IndexError


def former_index(status: str) -> int:
    """A status as the former release writes it. A status that it does not know becomes one that a handler answers."""
    return _INDEX.get(status, _INDEX["FAILED_PRECONDITION"])


class _FormerLink(FrameLink):
    def settled(self, call_id: int, status: int, message: bytes) -> None:
        self.settle(call_id, cast(RpcStatus, STATUSES[status]), message)


class FormerChannel(LinkChannel):
    """To a node of the former release."""

    def __init__(self, network: TcpNetwork, address: str, forget: Callable[[], object]) -> None:
        super().__init__(network, address.removeprefix(FORMER).rpartition(AT)[2], forget)

    def _opened(self, connection: FrameConnection) -> FrameLink:
        return _FormerLink(connection)

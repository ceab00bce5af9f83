"""What the public gRPC calls (`hapax.v1`) need the permission for, checked before any handler.

A call is refused as a whole, with PERMISSION_DENIED. Kafka has no such calls; each needs what the Kafka call that comes
nearest to it needs. A lease is used by those who may write to all of its partitions, also to those that it holds
already: who takes it over fences its holder there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from hapax.core.access.resources import (
    ALTER_CLUSTER,
    ALTER_GROUP_CONFIGS,
    ALTER_TOPIC,
    ALTER_TOPIC_CONFIGS,
    CLUSTER_NAME,
    CREATE_IN_CLUSTER,
    CREATE_TOPIC,
    DELETE_GROUP,
    DELETE_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    DESCRIBE_TRANSACTIONAL_ID,
    IDEMPOTENT_WRITE,
    READ_TOPIC,
    WRITE_TOPIC,
    WRITE_TRANSACTIONAL_ID,
    Action,
)
from hapax.core.producer.leases import name_of
from hapax.rpc.gen.hapax.v1 import (
    cluster_admin_pb2,
    groups_pb2,
    lease_pb2,
    partitions_pb2,
    restore_pb2,
    transactions_pb2,
)
from hapax.runtime.access import Access
from hapax.runtime.ports import RpcError, RpcHandler, RpcPeer

Right = tuple[Action, str]
Needed = Iterable[tuple[Right, ...]]
"""Of each tuple one right."""
LeaseTopics = Callable[[str], Awaitable[Iterable[bytes]]]
"""A lease's name -> the ids of the topics that it holds partitions of."""


class Call(NamedTuple):
    request: Any
    """The message's class."""
    needed: Callable[[Any, Access], Needed]
    names_lease: bool = False
    action: Action = WRITE_TOPIC
    """On the topics of the lease that the request names."""
    shown: Callable[[bytes, Callable[[str], bool]], bytes] | None = None
    """Takes the topics that the caller may not describe out of the answer."""


_TXN: Final = "/hapax.v1.Transactions/"
_ADMIN: Final = "/hapax.v1.ClusterAdmin/"
_LEASES: Final = "/hapax.v1.ProducerLeases/"
_PARTITIONS: Final = "/hapax.v1.Partitions/"
_GROUPS: Final = "/hapax.v1.Groups/"
_RESTORE: Final = "/hapax.v1.Restore/"


def _cluster(action: Action) -> Callable[[Any, Access], Needed]:
    return lambda request, access: [((action, CLUSTER_NAME),)]


def _id(action: Action) -> Callable[[Any, Access], Needed]:
    return lambda request, access: [((action, request.transactional_id),)]


def _group(action: Action) -> Callable[[Any, Access], Needed]:
    return lambda request, access: [((action, request.group_id),)]


def _topics(action: Action) -> Callable[[Any, Access], Needed]:
    """Of the partitions that the request names."""
    return lambda request, access: [((action, name),) for name in dict.fromkeys(p.topic for p in request.partitions)]


def _topic_ids(action: Action) -> Callable[[Any, Access], Needed]:
    """An id that no topic has passes: the handler says so."""

    def needed(request: Any, access: Access) -> Iterator[tuple[Right, ...]]:
        for topic_id in dict.fromkeys(p.topic_id for p in request.partitions):
            name = access.name_of_topic(topic_id)
            if name is not None:
                yield ((action, name),)

    return needed


def _joining(request: transactions_pb2.JoinTransactionRequest, access: Access) -> Needed:
    """Joining registers the partition that the member will write first."""
    yield ((WRITE_TRANSACTIONAL_ID, request.transactional_id),)
    if request.HasField("partition"):
        yield ((WRITE_TOPIC, request.partition.topic),)


def _creating(request: cluster_admin_pb2.CreateTopicsRequest, access: Access) -> Needed:
    return [((CREATE_IN_CLUSTER, CLUSTER_NAME), (CREATE_TOPIC, topic.name)) for topic in request.topics]


def _deleting(request: cluster_admin_pb2.DeleteTopicsRequest, access: Access) -> Needed:
    names = [*request.names, *map(access.name_of_topic, request.topic_ids)]
    return [((DELETE_TOPIC, name),) for name in names if name is not None]


def _deleting_offsets(request: groups_pb2.DeleteOffsetsRequest, access: Access) -> Needed:
    """As OffsetDelete; all of a group's, as DeleteGroups."""
    yield ((DELETE_GROUP, request.group_id),)
    if not request.all:
        for name in dict.fromkeys(each.topic for each in request.partitions):
            yield ((READ_TOPIC, name),)


def _shown_group(answer: bytes, may_describe: Callable[[str], bool]) -> bytes:
    group = groups_pb2.DescribeGroupResponse.FromString(answer)
    for listed in (group.offsets, *(member.assigned for member in group.described)):
        _keep(listed, may_describe)
    return group.SerializeToString()


def _shown_transaction(answer: bytes, may_describe: Callable[[str], bool]) -> bytes:
    transaction = transactions_pb2.DescribeTransactionalIdResponse.FromString(answer)
    _keep(transaction.partitions, may_describe)
    return transaction.SerializeToString()


def _keep(listed: Any, may_describe: Callable[[str], bool]) -> None:
    """Of entries that name a topic."""
    kept = [each for each in listed if may_describe(each.topic)]
    if len(kept) < len(listed):
        del listed[:]
        listed.extend(kept)


CALLS: Final[Mapping[str, Call]] = {
    _TXN + "JoinTransaction": Call(transactions_pb2.JoinTransactionRequest, _joining),
    _TXN + "RenewTransaction": Call(transactions_pb2.RenewTransactionRequest, _id(WRITE_TRANSACTIONAL_ID)),
    _TXN + "EndTransaction": Call(transactions_pb2.EndTransactionRequest, _id(WRITE_TRANSACTIONAL_ID)),
    _TXN + "GetCommitToken": Call(transactions_pb2.GetCommitTokenRequest, _id(WRITE_TRANSACTIONAL_ID)),
    _TXN + "DescribeTransactionalId": Call(
        transactions_pb2.DescribeTransactionalIdRequest, _id(DESCRIBE_TRANSACTIONAL_ID), shown=_shown_transaction),
    _TXN + "EnsureTransactionalId": Call(transactions_pb2.EnsureTransactionalIdRequest, _id(WRITE_TRANSACTIONAL_ID)),
    _TXN + "FenceProducer": Call(transactions_pb2.FenceProducerRequest, _cluster(ALTER_CLUSTER)),
    _TXN + "CommitPrepared": Call(transactions_pb2.CommitPreparedRequest, _cluster(ALTER_CLUSTER)),
    _LEASES + "LeasePid": Call(lease_pb2.LeasePidRequest, _topics(WRITE_TOPIC), names_lease=True),
    _LEASES + "RenewLease": Call(lease_pb2.RenewLeaseRequest, lambda request, access: (), names_lease=True),
    _LEASES + "ReleaseLease": Call(lease_pb2.ReleaseLeaseRequest, lambda request, access: (), names_lease=True),
    _LEASES + "ListLeases": Call(lease_pb2.ListLeasesRequest, _cluster(DESCRIBE_CLUSTER)),
    _LEASES + "GetProducerProgress": Call(
        lease_pb2.GetProducerProgressRequest, _topics(DESCRIBE_TOPIC), names_lease=True, action=DESCRIBE_TOPIC),
    _PARTITIONS + "DescribeProducers": Call(partitions_pb2.DescribeProducersRequest, _topic_ids(READ_TOPIC)),
    _PARTITIONS + "DescribeReplicas": Call(partitions_pb2.DescribeReplicasRequest, _cluster(DESCRIBE_CLUSTER)),
    _PARTITIONS + "DescribeOffsets": Call(partitions_pb2.DescribeOffsetsRequest, _topic_ids(DESCRIBE_TOPIC)),
    _GROUPS + "ListGroups": Call(groups_pb2.ListGroupsRequest, _cluster(DESCRIBE_CLUSTER)),
    _GROUPS + "DescribeGroup": Call(groups_pb2.DescribeGroupRequest, _group(DESCRIBE_GROUP), shown=_shown_group),
    _GROUPS + "DeleteOffsets": Call(groups_pb2.DeleteOffsetsRequest, _deleting_offsets),
    "/hapax.v1.Shards/DescribeShards": Call(groups_pb2.DescribeShardsRequest, _cluster(DESCRIBE_CLUSTER)),
    _ADMIN + "CreateTopics": Call(cluster_admin_pb2.CreateTopicsRequest, _creating),
    _ADMIN + "DeleteTopics": Call(cluster_admin_pb2.DeleteTopicsRequest, _deleting),
    _ADMIN + "CreatePartitions": Call(
        cluster_admin_pb2.CreatePartitionsRequest,
        lambda request, access: [((ALTER_TOPIC, name),) for name in request.total_by_topic]),
    _ADMIN + "AlterTopicConfigs": Call(
        cluster_admin_pb2.AlterTopicConfigsRequest,
        lambda request, access: [((ALTER_TOPIC_CONFIGS, change.topic),) for change in request.changes]),
    _ADMIN + "AlterGroupConfigs": Call(
        cluster_admin_pb2.AlterGroupConfigsRequest,
        lambda request, access: [((ALTER_GROUP_CONFIGS, change.group),) for change in request.changes]),
    _ADMIN + "AlterReassignments": Call(cluster_admin_pb2.AlterReassignmentsRequest, _cluster(ALTER_CLUSTER)),
    _ADMIN + "ElectLeaders": Call(cluster_admin_pb2.ElectLeadersRequest, _cluster(ALTER_CLUSTER)),
    _ADMIN + "SetReplication": Call(cluster_admin_pb2.SetReplicationRequest, _cluster(ALTER_CLUSTER)),
    _RESTORE + "ImportBatches": Call(restore_pb2.ImportBatchesRequest, _cluster(ALTER_CLUSTER)),
    _RESTORE + "ImportTransactionalId": Call(restore_pb2.ImportTransactionalIdRequest, _cluster(ALTER_CLUSTER)),
    _RESTORE + "ReserveProducerIds": Call(restore_pb2.ReserveProducerIdsRequest, _cluster(ALTER_CLUSTER)),
    _RESTORE + "ImportLease": Call(restore_pb2.ImportLeaseRequest, _cluster(ALTER_CLUSTER)),
    _RESTORE + "NoteBackup": Call(restore_pb2.NoteBackupRequest, _cluster(ALTER_CLUSTER)),
}


def guarded_calls(
    access: Access | None, handlers: dict[str, RpcHandler], lease_topics: LeaseTopics | None = None
) -> dict[str, RpcHandler]:
    """The handlers behind their needs; the same ones where the cluster has no authoriser. `lease_topics`: of the
    service that has the leases. Raises KeyError for a call that declares none."""
    if access is None:
        return handlers
    return {method: _guarded(access, method, CALLS[method], handler, lease_topics)
            for method, handler in handlers.items()}


def _guarded(
    access: Access, method: str, call: Call, handler: RpcHandler, lease_topics: LeaseTopics | None
) -> RpcHandler:
    async def handle(payload: bytes, peer: RpcPeer) -> bytes:
        request = call.request.FromString(payload)
        needed = list(call.needed(request, access))
        lease = name_of(request.name, getattr(request, "call_id", b"")) if call.names_lease else ""
        if lease and lease_topics is not None:
            held = map(access.name_of_topic, await lease_topics(lease))
            needed += [((call.action, name),) for name in held if name is not None]
        rights = access.rights(peer.principal, peer.address.rpartition(":")[0].strip("[]"))
        if call.request is lease_pb2.LeasePidRequest and not needed and not rights.may_any(WRITE_TOPIC):
            needed = [((IDEMPOTENT_WRITE, CLUSTER_NAME),)]  # as InitProducerId without a transactional id (KIP-679)
        for alternatives in needed:
            if not any(rights.may(*right) for right in alternatives):
                action, name = alternatives[-1]
                access.note_refusal(rights, action, name, method.rpartition("/")[2])
                raise RpcError("PERMISSION_DENIED", f"the call needs {action} {name!r}")
        answer = await handler(payload, peer)
        return answer if call.shown is None else call.shown(answer, partial(rights.may, DESCRIBE_TOPIC))

    return handle

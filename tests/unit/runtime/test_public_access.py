"""The public gRPC calls: each declares what it needs, and a caller without it reaches no handler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pytest

from hapax.core.access.index import Policy
from hapax.core.access.principals import ANONYMOUS, user
from hapax.rpc.gen.hapax.v1 import groups_pb2, lease_pb2, partitions_pb2, transactions_pb2
from hapax.runtime.access import Access
from hapax.runtime.ports import RpcError, RpcPeer
from hapax.runtime.public_access import CALLS, guarded_calls
from unit.kafka.test_needs import SECRET, FakeView

ALICE = RpcPeer("10.0.0.1:5000", principal=user("alice"))
CLUSTER_CALLS = {"ListLeases", "DescribeReplicas", "ListGroups", "DescribeShards", "FenceProducer", "CommitPrepared",
                 "ImportBatches", "ImportTransactionalId", "ReserveProducerIds", "ImportLease", "NoteBackup",
                 "AlterReassignments", "ElectLeaders", "SetReplication"}


def naming(method: str) -> Any:
    """A request that names something."""
    request = CALLS[method].request()
    fields = request.DESCRIPTOR.fields_by_name
    for field in ("transactional_id", "name", "group_id"):
        if field in fields:
            setattr(request, field, "x")
    if "partitions" in fields and fields["partitions"].message_type.name == "Partition":
        request.partitions.add(topic="x")
    elif "partitions" in fields and "topic_id" in fields["partitions"].message_type.fields_by_name:
        request.partitions.add(topic_id=bytes(16))
    if "total_by_topic" in fields:
        request.total_by_topic["x"] = 3
    if "topics" in fields:
        request.topics.add(name="x")
    if "names" in fields:
        request.names.append("x")
    if "changes" in fields:
        request.changes.add()
    return request


LEASE = "/hapax.v1.ProducerLeases/LeasePid"


async def holds(name: str) -> Iterable[bytes]:
    return [bytes(16)]


def access(acls: str = "") -> Access:
    view = FakeView()
    view.put(acls)
    return Access(view, Policy(), frozenset())  # type: ignore[arg-type]


class Handlers:
    def __init__(self, acls: str = "") -> None:
        self.called: list[str] = []
        self.guarded = guarded_calls(access(acls), {method: self._handler(method) for method in CALLS}, holds)

    def _handler(self, method: str) -> Any:
        async def handle(payload: bytes, peer: RpcPeer) -> bytes:
            self.called.append(method)
            return b""

        return handle


def test_every_public_call_of_the_contract_declares_what_it_needs() -> None:
    from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2, groups_pb2, restore_pb2

    declared = set()
    for module in (cluster_admin_pb2, groups_pb2, lease_pb2, partitions_pb2, restore_pb2, transactions_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            declared |= {
                (f"/{service.full_name}/{method.name}", method.input_type.name) for method in service.methods}
    assert {(method, call.request.DESCRIPTOR.name) for method, call in CALLS.items()} == declared


@pytest.mark.parametrize("method", CALLS)
async def test_a_caller_without_rights_reaches_no_handler(method: str) -> None:
    handlers = Handlers()
    with pytest.raises(RpcError) as refused:
        await handlers.guarded[method](naming(method).SerializeToString(), ALICE)
    assert refused.value.status == "PERMISSION_DENIED"
    assert not handlers.called


@pytest.mark.parametrize("method", CALLS)
async def test_a_caller_who_may_everything_reaches_the_handler(method: str) -> None:
    handlers = Handlers("; ".join(
        f"allow * all {kind} {name}" for kind, name in (
            ("topic", "*"), ("group", "*"), ("transactional_id", "*"), ("cluster", "kafka-cluster"))))
    await handlers.guarded[method](naming(method).SerializeToString(), ALICE)
    assert handlers.called == [method]


@pytest.mark.parametrize("name", sorted(CLUSTER_CALLS))
async def test_rights_on_topics_and_ids_do_not_open_the_cluster(name: str) -> None:
    handlers = Handlers("allow * all topic *; allow * all group *; allow * all transactional_id *")
    (method,) = [each for each in CALLS if each.endswith(f"/{name}")]
    with pytest.raises(RpcError, match="kafka-cluster"):
        await handlers.guarded[method](naming(method).SerializeToString(), ALICE)


@pytest.mark.parametrize("name", ["LeasePid", "RenewLease", "ReleaseLease", "GetProducerProgress"])
async def test_a_lease_is_used_by_those_alone_who_may_use_all_that_it_holds(name: str) -> None:
    """A caller that takes a lease over fences its holder, on the partitions that it holds already."""
    method = f"/hapax.v1.ProducerLeases/{name}"
    with pytest.raises(RpcError, match=SECRET):
        await Handlers("allow * all topic x").guarded[method](naming(method).SerializeToString(), ALICE)
    await Handlers(f"allow * all topic x; allow * all topic {SECRET}").guarded[method](
        naming(method).SerializeToString(), ALICE)


async def test_a_lease_that_is_named_by_a_call_s_id_is_that_lease() -> None:
    """Its name is `lease-` and the id. A client that sends the id alone took over, and fenced, a lease of others."""
    request = lease_pb2.LeasePidRequest(call_id=b"\x01", partitions=[lease_pb2.Partition(topic="x")])
    asked: list[str] = []

    async def held(name: str) -> Iterable[bytes]:
        asked.append(name)
        return await holds(name)

    async def handle(payload: bytes, peer: RpcPeer) -> bytes:
        raise AssertionError("it was not refused")

    guarded = guarded_calls(access("allow * all topic x"), {LEASE: handle}, held)
    with pytest.raises(RpcError, match=SECRET):
        await guarded[LEASE](request.SerializeToString(), ALICE)
    assert asked == ["lease-01"]


@pytest.mark.parametrize(("acls", "permitted"), [
    ("", False), ("allow * read topic x", False), ("allow * write topic x", True),
    ("allow * idempotent_write cluster kafka-cluster", True),
])
async def test_a_lease_of_nothing_needs_what_a_producer_id_needs(acls: str, permitted: bool) -> None:
    """Otherwise who may do nothing leaves any number of leases in etcd, and takes any number of ids."""
    handled: list[bytes] = []

    async def handle(payload: bytes, peer: RpcPeer) -> bytes:
        handled.append(payload)
        return b""

    async def nothing(name: str) -> Iterable[bytes]:
        return []

    guarded = guarded_calls(access(acls), {LEASE: handle}, nothing)
    for request in (lease_pb2.LeasePidRequest(), lease_pb2.LeasePidRequest(name="mine")):
        with contextlib.nullcontext() if permitted else pytest.raises(RpcError, match="IdempotentWrite"):
            await guarded[LEASE](request.SerializeToString(), ALICE)
    assert len(handled) == 2 * permitted


async def test_a_member_needs_the_partition_that_it_registers() -> None:
    method = "/hapax.v1.Transactions/JoinTransaction"
    request = transactions_pb2.JoinTransactionRequest(transactional_id="x", partition=lease_pb2.Partition(topic="t"))
    handlers = Handlers("allow * write transactional_id x")
    with pytest.raises(RpcError, match="Write Topic"):
        await handlers.guarded[method](request.SerializeToString(), ALICE)


async def test_offsets_are_deleted_by_those_who_may_read_their_topics() -> None:
    """As in the Kafka call. All of a group's go with a right to the group, as where the group is deleted."""
    method = "/hapax.v1.Groups/DeleteOffsets"
    named = groups_pb2.DeleteOffsetsRequest(group_id="g", partitions=[groups_pb2.OffsetName(topic=SECRET)])
    handlers = Handlers("allow * delete group g")
    with pytest.raises(RpcError, match=SECRET):
        await handlers.guarded[method](named.SerializeToString(), ALICE)
    await handlers.guarded[method](
        groups_pb2.DeleteOffsetsRequest(group_id="g", all=True).SerializeToString(), ALICE)
    await Handlers(f"allow * delete group g; allow * read topic {SECRET}").guarded[method](
        named.SerializeToString(), ALICE)


async def test_a_description_shows_no_hidden_topic() -> None:
    group = groups_pb2.DescribeGroupResponse(
        offsets=[groups_pb2.GroupOffset(topic=name, offset=5) for name in ("mine", SECRET)],
        described=[groups_pb2.GroupMember(
            member_id="m", assigned=[groups_pb2.OffsetName(topic=name) for name in ("mine", SECRET)])])
    transaction = transactions_pb2.DescribeTransactionalIdResponse(
        state="Ongoing", partitions=[lease_pb2.Partition(topic=name) for name in ("mine", SECRET)])
    rights = access("allow * describe group *; allow * describe transactional_id *; allow * read topic mine")

    async def described(method: str, answer: Any) -> Any:
        async def handle(payload: bytes, peer: RpcPeer) -> bytes:
            return bytes(answer.SerializeToString())

        guarded = guarded_calls(rights, {method: handle})
        return type(answer).FromString(await guarded[method](naming(method).SerializeToString(), ALICE))

    shown = await described("/hapax.v1.Groups/DescribeGroup", group)
    assert [each.topic for each in shown.offsets] == ["mine"]
    assert [[each.topic for each in member.assigned] for member in shown.described] == [["mine"]]
    shown = await described("/hapax.v1.Transactions/DescribeTransactionalId", transaction)
    assert (shown.state, [each.topic for each in shown.partitions]) == ("Ongoing", ["mine"])


async def test_the_host_and_the_principal_are_the_callers() -> None:
    method = "/hapax.v1.Transactions/EndTransaction"
    payload = naming(method).SerializeToString()
    handlers = Handlers("allow alice write transactional_id x from 10.0.0.1")
    await handlers.guarded[method](payload, ALICE)
    for other in (ALICE._replace(address="10.0.0.2:5000"), ALICE._replace(principal=ANONYMOUS)):
        with pytest.raises(RpcError):
            await handlers.guarded[method](payload, other)


def test_without_an_authoriser_the_handlers_are_the_services_own() -> None:
    handlers: dict[str, Any] = {"/x/Y": object()}
    assert guarded_calls(None, handlers) is handlers


async def test_a_call_that_declares_nothing_is_not_served() -> None:
    with pytest.raises(KeyError):
        guarded_calls(access(), {"/hapax.v1.New/Call": object()})  # type: ignore[dict-item]

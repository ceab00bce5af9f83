"""Logins and refusals of a listener in the audit log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hapax.core.access.principals import user
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.api import delete_groups, delete_records, offset_delete
from hapax.kafka.registry import all_apis
from hapax.kafka.security import Unauthenticated
from hapax.kafka.table import ApiTable
from hapax.runtime.asker import Asker
from hapax.runtime.audit_events import EVENTS
from hapax.wire import messages
from unit.control_world import Recorded
from unit.kafka.test_needs import Guarded
from unit.kafka.test_sasl import Node, Peer

offset_topic = messages.OffsetDeleteRequest.OffsetDeleteRequestTopic
offset_partition = offset_topic.OffsetDeleteRequestPartition
record_topic = messages.DeleteRecordsRequest.DeleteRecordsTopic
record_partition = record_topic.DeleteRecordsPartition


async def test_a_login_and_a_failed_one() -> None:
    node = Node()
    recorded = node.server.audit = Recorded()
    assert node.connect("10.0.0.1:5000").log_in().error_code == 0
    assert node.connect("10.0.0.2:5000").log_in(password="wrong").error_code == 58
    assert recorded.events == [
        ("login", "User:alice", "10.0.0.1",
         {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "renewed": False}),
        ("login_failed", None, "10.0.0.2", {
            "listener": "SASL", "mechanism": "SCRAM-SHA-256",
            "reason": "the password is wrong or the user 'alice' unknown"}),
    ]  # fmt: skip


async def test_a_refusal_names_the_rule_and_a_permitted_request_writes_nothing() -> None:
    guarded = Guarded(acls="deny alice delete topic t")
    recorded = Recorded()
    guarded.table.access._audit = recorded  # type: ignore[union-attr]
    guarded.send("DeleteTopics", 1, messages.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1))
    (refused,) = recorded.events
    assert refused[:2] == ("refused", "User:alice")
    assert refused[3] == {
        "call": "DeleteTopics", "operation": "Delete", "resource_type": "Topic", "resource": "t",
        "rule": refused[3]["rule"], "reason": "denied by a binding"}
    assert "Deny 'User:alice' Delete on Topic Literal 't'" in str(refused[3]["rule"])
    recorded.events.clear()
    guarded.send("ApiVersions", 0, messages.ApiVersionsRequest())
    assert recorded.events == []


async def test_what_nodes_change_themselves_is_told_with_what_was_not() -> None:
    """Groups, their offsets and records: no controller takes part."""

    class Coordinator:
        async def delete_group(self, group_id: str) -> ErrorCode:
            return ErrorCode.NONE if group_id == "g" else ErrorCode.NON_EMPTY_GROUP

        async def offset_delete(self, group_id: str, partitions: Any) -> list[ErrorCode]:
            return [ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]

        async def delete_records(self, topic: str, partition: int, offset: int, timeout_ms: int) -> int:
            if partition == 2:
                raise Refusal(ErrorCode.REQUEST_TIMED_OUT)
            if partition:
                raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE)
            return offset

    table = ApiTable(all_apis())
    recorded = table.audit = Recorded()
    requests = {
        delete_groups: messages.DeleteGroupsRequest(groups_names=["g", "busy"]),
        offset_delete: messages.OffsetDeleteRequest(group_id="g", topics=[
            offset_topic(name="t", partitions=[offset_partition(partition_index=each) for each in (2, 1, 0)])]),
        delete_records: messages.DeleteRecordsRequest(timeout_ms=1, topics=[
            record_topic(name="t", partitions=[
                record_partition(partition_index=each, offset=5) for each in range(3)])]),
    }
    for module, request in requests.items():
        module.register(table, Coordinator())
        ctx: Any = SimpleNamespace(
            api_version=0, asker=Asker("User:alice", "10.0.0.1", module.ROW.name), release_memory=lambda: None)
        await table.apis[module.ROW.key].handler(ctx, request)  # type: ignore[misc]
    assert all(each[1:3] == ("User:alice", "10.0.0.1") for each in recorded.events)
    assert [(each[0], each[3]) for each in recorded.events] == [
        ("group_deleted", {"call": "DeleteGroups", "outcome": "done", "group": "g", "old": None, "new": None}),
        ("group_offsets_deleted", {
            "call": "OffsetDelete", "outcome": "done", "group": "g", "topic": "t", "old": [0, 2], "new": None}),
        ("records_deleted", {
            "call": "DeleteRecords", "outcome": "done", "topic": "t", "partition": 0, "old": None, "new": 5}),
        ("records_deleted", {
            "call": "DeleteRecords", "outcome": "unknown", "topic": "t", "partition": 2, "old": None, "new": None}),
    ]
    for event, _, _, fields in recorded.events:
        assert set(fields) == set(EVENTS[event].fields)


async def test_a_certificate_logs_in_too() -> None:
    node = Node()
    recorded = node.server.audit = Recorded()

    def principal_of(connection: Any) -> Any:
        if connection.serial == 2:
            raise Unauthenticated("no rule fits")
        return user("CN=app")

    security: Any = SimpleNamespace(sasl=None, services=None, principal_of=principal_of)
    for serial in (1, 2):
        node.server._authenticate(Peer(serial, "10.0.0.1:5"), "SSL", security)  # type: ignore[arg-type]
    assert [(event, principal) for event, principal, *_ in recorded.events] == [
        ("login", "User:CN=app"), ("login_failed", None)]
    assert recorded.events[0][3] == {"listener": "SSL", "mechanism": "TLS", "renewed": False}
    assert recorded.events[1][3]["reason"] == "no rule fits"

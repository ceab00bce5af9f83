"""Logins and refusals of a listener in the audit log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hapax.core.access.principals import user
from hapax.kafka.security import Unauthenticated
from hapax.wire import messages
from unit.control_world import Recorded
from unit.kafka.test_needs import Guarded
from unit.kafka.test_sasl import Node, Peer


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

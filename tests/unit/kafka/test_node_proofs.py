"""Whose proof counts: with TLS between processes, that of the node whose connection it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hapax.codec.metadata import NodeRecord
from hapax.core.access.services import ServiceName
from hapax.core.types import NodeId, RegistrationEpoch, ShardEpoch
from hapax.kafka.node_proofs import proven
from hapax.runtime.cluster import NodeView
from hapax.wire.internal_writes import proof

SESSION = bytes(range(16))
NODE = NodeView(
    NodeRecord(NodeId(100), "coordinator", "h", 1, "h:2", session=SESSION, public_rpc_address="h:4"),
    RegistrationEpoch(7))
VIEW: Any = SimpleNamespace(
    registered=lambda epoch, session: NODE if (epoch, session) == (7, SESSION) else None)
SHOWN = proof(RegistrationEpoch(7), SESSION, ShardEpoch(3))


def on(service: ServiceName | None) -> Any:
    return SimpleNamespace(session=SimpleNamespace(service=service))


@pytest.mark.parametrize(("service", "counts"), [
    (ServiceName("c", "coordinator", 100), True), (None, False), (ServiceName("c", "coordinator", 101), False),
    (ServiceName("c", "broker", 100), False), (ServiceName("c", "pid"), False),
])
def test_a_proof_counts_on_its_own_node_s_connection(service: ServiceName | None, counts: bool) -> None:
    found = proven(VIEW, on(service), SHOWN, True)
    assert (found is not None) is counts
    if found is not None:
        assert (found.shard_epoch, found.node) == (3, NODE)


def test_without_tls_between_processes_the_proof_is_all_there_is() -> None:
    assert proven(VIEW, on(None), SHOWN, False) is not None


@pytest.mark.parametrize("content", [b"", SHOWN[:-1], proof(RegistrationEpoch(8), SESSION)])
def test_what_proves_no_live_registration_is_a_client_s(content: bytes) -> None:
    own = on(ServiceName("c", "coordinator", 100))
    assert proven(VIEW, own, content, True) is None and proven(VIEW, own, content, False) is None


def test_a_node_s_addresses_for_calls_name_it() -> None:
    assert (NODE.rpc_address, NODE.hot_address) == ("coordinator/100@h:2", "coordinator/100@h:2")
    hot = NodeView(NodeRecord(NodeId(0), "broker", "h", 1, "h:2", public_rpc_address="h:4",
                              frames_address="h:3"), RegistrationEpoch(1))
    assert hot.hot_address == "frames://broker/0@h:3"

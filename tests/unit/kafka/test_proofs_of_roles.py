"""A node's proof counts on a connection of that node alone, or of its role where certificates leave out the id."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hapax.core.access.services import ServiceName
from hapax.core.types import RegistrationEpoch, ShardEpoch
from hapax.kafka.node_proofs import proven
from hapax.wire.internal_writes import proof


class _Node:
    def __init__(self, role: str, node_id: int) -> None:
        self.role, self.node_id = role, node_id


class _View:
    def __init__(self, node: _Node) -> None:
        self._node = node

    def registered(self, registration: RegistrationEpoch, session: bytes) -> _Node | None:
        return self._node if (registration, session) == (7, b"s" * 16) else None


class _Context:
    def __init__(self, service: ServiceName | None) -> None:
        self.session = self
        self.service = service


@pytest.mark.parametrize(("shown", "node", "counts"), [
    ("spiffe://c/broker/0", ("broker", 0), True), ("spiffe://c/broker/1", ("broker", 0), False),
    ("spiffe://c/coordinator/0", ("broker", 0), False), ("spiffe://c/controller", ("controller", 301), True),
    ("spiffe://c/controller/301", ("controller", 301), True), ("spiffe://c/controller/300", ("controller", 301), False),
    ("spiffe://c/pid", ("controller", 301), False), ("spiffe://c/controller", ("broker", 0), False),
    (None, ("broker", 0), False),
])
def test_whose_connection_the_proof_must_come_on(
    shown: str | None, node: tuple[str, int], counts: bool
) -> None:
    content = proof(RegistrationEpoch(7), b"s" * 16, ShardEpoch(3))
    view = cast(Any, _View(_Node(*node)))
    context = cast(Any, _Context(None if shown is None else ServiceName.parse(shown)))
    found = proven(view, context, content, True)
    assert (found is not None) == counts
    # Without certificates the proof is enough.
    assert proven(view, cast(Any, _Context(None)), content, False) is not None
    other = proof(RegistrationEpoch(8), b"s" * 16, ShardEpoch(3))
    assert proven(view, context, other, True) is None

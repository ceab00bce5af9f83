"""FindCoordinator (10): the coordinator that owns a group id or a transactional id.

Kafka's hash gives the shard, and the metadata gives its owner. The internal topics behind the shards always exist: the
controller creates them with the cluster. A coordinator that has not loaded the shard yet reports that itself.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from hapax.codec.metadata import ShardKind
from hapax.core.access.resources import DESCRIBE_GROUP, DESCRIBE_TRANSACTIONAL_ID
from hapax.core.errors import ErrorCode
from hapax.core.hashing import shard_of
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import Asking, Need, Outcome, Refused, split
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.wire.messages import FindCoordinatorResponse

ROW: Final = ApiRow(
    key=10, name="FindCoordinator", versions=(0, 6), flexible_from=3, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.EVERY_NODE,
    need=Need("Describe Group or Describe TransactionalId", lambda asking, request: _check(asking, request)))

_Coordinator = FindCoordinatorResponse.Coordinator

GROUP: Final = 0
TRANSACTION: Final = 1
_ACTIONS: Final = {GROUP: DESCRIBE_GROUP, TRANSACTION: DESCRIBE_TRANSACTIONAL_ID}
_NOWHERE: Final = ("", -1)
_OWNER_S: Final = 3.0
"""How long a request waits for its shards to have owners, in seconds, so that the client need not retry."""


class _Found(NamedTuple):
    node: NodeView | None
    code: ErrorCode
    reason: str | None
    address: tuple[str, int] = _NOWHERE


class FindCoordinatorApi:
    def __init__(self, view: ClusterView) -> None:
        self._view = view

    async def handle(self, ctx: RequestContext, request: Any) -> Any:
        key_type = request.key_type if ctx.api_version >= 1 else GROUP
        deadline = asyncio.get_running_loop().time() + _OWNER_S
        if ctx.api_version >= 4:
            return FindCoordinatorResponse(
                throttle_time_ms=0,
                coordinators=[
                    _coordinator(key, await self._reachable(key, key_type, deadline, ctx.listener))
                    for key in request.coordinator_keys],
            )
        found = await self._reachable(request.key, key_type, deadline, ctx.listener)
        node, (host, port) = found.node, found.address
        return FindCoordinatorResponse(
            throttle_time_ms=0, error_code=found.code, error_message=found.reason,
            node_id=-1 if node is None else node.node_id, host=host, port=port,
        )

    async def _reachable(self, key: str, key_type: int, deadline: float, listener: str) -> _Found:
        found = await self._find(key, key_type, deadline)
        if found.node is None:
            return found
        address = self._view.address(found.node, listener)
        if address is None:
            why = f"node {found.node.node_id} cannot be reached by the listener {listener} yet"
            return _Found(None, ErrorCode.COORDINATOR_NOT_AVAILABLE, why)
        return found._replace(address=address)

    async def _find(self, key: str, key_type: int, deadline: float) -> _Found:
        cluster = self._view.cluster
        if cluster is None:
            return _Found(None, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the cluster is not initialised yet")
        if key_type == TRANSACTION:
            return await self._owner("txn", shard_of(key, cluster.txn_shards), deadline)
        if key_type == GROUP:
            return await self._owner("group", shard_of(key, cluster.group_shards), deadline)
        return _Found(None, ErrorCode.INVALID_REQUEST, f"unknown coordinator key type {key_type}")

    async def _owner(self, kind: ShardKind, shard: int, deadline: float) -> _Found:
        remaining = deadline - asyncio.get_running_loop().time()
        try:
            owner = await self._view.wait_for(lambda view: view.shard_owner(kind, shard), remaining)
        except TimeoutError:
            return _Found(None, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{kind} shard {shard} has no owner")
        return _Found(owner, ErrorCode.NONE, None)


def _coordinator(key: str, found: _Found) -> Any:
    node, (host, port) = found.node, found.address
    return _Coordinator(
        key=key, error_code=found.code, error_message=found.reason,
        node_id=-1 if node is None else node.node_id, host=host, port=port,
    )


def _check(asking: Asking, request: Any) -> Outcome:
    action = _ACTIONS.get(request.key_type if asking.ctx.api_version >= 1 else GROUP)
    if action is None:
        return None  # the handler refuses the type
    if asking.ctx.api_version >= 4:
        return split(
            asking, request, "coordinator_keys", "coordinators", action.kind,
            lambda asking, key: asking.may(action, key))
    return None if asking.may(action, request.key) else Refused(asking.refused(request, action.kind))


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    nothing = _Found(None, code, None)
    if version >= 4:
        return FindCoordinatorResponse(
            throttle_time_ms=0, coordinators=[_coordinator(key, nothing) for key in request.coordinator_keys])
    host, port = _NOWHERE
    return FindCoordinatorResponse(
        throttle_time_ms=0, error_code=code, error_message=None, node_id=-1, host=host, port=port)


def register(table: ApiTable, node: NodeContext) -> None:
    table.on(ROW, FindCoordinatorApi(node.view).handle)

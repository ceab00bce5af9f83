"""FindCoordinator (10): which coordinator owns a group id or a transactional id.

Kafka's hash names the shard, the metadata names its owner. The internal topic behind the shards is created when
somebody first asks.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from hapax.codec.metadata import OFFSETS_TOPIC, TXN_STATE_TOPIC, ShardKind
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.hashing import shard_of
from hapax.kafka.administration import Administration
from hapax.kafka.apis import ApiKey
from hapax.kafka.messages import FindCoordinatorResponse
from hapax.kafka.table import ApiTable, RequestContext
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.runtime.cluster import ClusterView, Node

_Coordinator = FindCoordinatorResponse.Coordinator

GROUP: Final = 0
TRANSACTION: Final = 1
CREATE_TIMEOUT_MS: Final = 10_000
_OWNER_S: Final = 3.0
"""How long a first request waits for its shard to get an owner, instead of sending the client away."""


class _Found(NamedTuple):
    node: Node | None
    code: ErrorCode
    reason: str | None


class FindCoordinatorApi:
    def __init__(self, view: ClusterView, administration: Administration) -> None:
        self._view = view
        self._administration = administration
        self._creating: dict[str, asyncio.Task[None]] = {}

    async def handle(self, ctx: RequestContext, request: Any) -> Any:
        key_type = request.key_type if ctx.api_version >= 1 else GROUP
        if ctx.api_version >= 4:
            return FindCoordinatorResponse(
                throttle_time_ms=0,
                coordinators=[
                    _coordinator(key, await self._find(key, key_type)) for key in request.coordinator_keys],
            )
        found = await self._find(request.key, key_type)
        node = found.node
        return FindCoordinatorResponse(
            throttle_time_ms=0, error_code=found.code, error_message=found.reason,
            node_id=-1 if node is None else node.node_id,
            host="" if node is None else node.host,
            port=-1 if node is None else node.port,
        )

    async def _find(self, key: str, key_type: int) -> _Found:
        cluster = self._view.cluster
        if cluster is None:
            return _Found(None, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the cluster is being made")
        kind: ShardKind
        if key_type == TRANSACTION:
            kind, topic, shards = "txn", TXN_STATE_TOPIC, cluster.txn_shards
        elif key_type == GROUP:
            kind, topic, shards = "group", OFFSETS_TOPIC, cluster.group_shards
        else:
            return _Found(None, ErrorCode.INVALID_REQUEST, f"unknown coordinator key type {key_type}")
        shard = shard_of(key, shards)
        if self._view.topic(topic) is None:
            await self._create(topic, shards)
        return await self._owner(kind, shard)

    async def _owner(self, kind: ShardKind, shard: int) -> _Found:
        owner = self._view.shard_owner(kind, shard)
        if owner is None:
            try:
                await self._view.wait_for(lambda view: view.shard_owner(kind, shard) is not None, _OWNER_S)
            except TimeoutError:
                return _Found(None, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{kind} shard {shard} has no owner")
            owner = self._view.shard_owner(kind, shard)
        return _Found(owner, ErrorCode.NONE, None)

    async def _create(self, topic: str, partitions: int) -> None:
        """One creation at a time; a failure shows as a shard without an owner, and the client asks again."""
        creation = self._creating.get(topic)
        if creation is None:
            creation = asyncio.get_running_loop().create_task(self._ask_controller(topic, partitions))
            self._creating[topic] = creation
            creation.add_done_callback(lambda _: self._creating.pop(topic, None))
        await asyncio.shield(creation)

    async def _ask_controller(self, topic: str, partitions: int) -> None:
        spec = pb.TopicSpec(
            name=topic, partitions=partitions, replication_factor=-1, internal=True,
            config={"cleanup.policy": "compact"},
        )
        try:
            await self._administration.create_topics([spec], CREATE_TIMEOUT_MS)
        except Refusal:
            return


def _coordinator(key: str, found: _Found) -> Any:
    node = found.node
    return _Coordinator(
        key=key, error_code=found.code, error_message=found.reason,
        node_id=-1 if node is None else node.node_id,
        host="" if node is None else node.host,
        port=-1 if node is None else node.port,
    )


def register(table: ApiTable, view: ClusterView, administration: Administration) -> None:
    table.on(ApiKey.FIND_COORDINATOR, FindCoordinatorApi(view, administration).handle)

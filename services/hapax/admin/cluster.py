"""/v1/version, /v1/health, /v1/nodes, /v1/shards: version, health, live nodes, and the coordinators' shards."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from hapax.admin.answers import LARGEST_INT32, answer
from hapax.admin.configs import ConfigValues, config_values
from hapax.admin.context import Context
from hapax.admin.needs import Routes
from hapax.admin.paging import Cursor, Limit, page
from hapax.admin.problems import Problem
from hapax.client.errors import HapaxError
from hapax.client.health import Counts, health_checks, worst
from hapax.codec.metadata import Role, ShardKind
from hapax.core.cluster.failover import FIT, SILENT
from hapax.core.types import NodeId
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.runtime.package import package_version

API_VERSION: Final = "1"
_KINDS: Final[tuple[ShardKind, ...]] = ("txn", "group")


class Version(BaseModel):
    name: str
    version: str
    api: str
    cluster_id: str
    model_config = {"json_schema_extra": {"examples": [
        {"name": "hapax", "version": "0.1.0", "api": "1", "cluster_id": "flights-production"}]}}


class NodeState(BaseModel):
    node_id: int
    role: Literal["broker", "coordinator", "pid", "controller"]
    host: str
    port: int = Field(description="Port of the Kafka listener; 0 for a node without one.")
    rpc_address: str
    http_address: str = Field(description="Address of /healthz, /readyz and /metrics.")
    rack: str
    registration: int = Field(description="Registration epoch. Rises with every process that registers this id.")
    standing: str = Field(
        description="Empty for a fit node. Otherwise the reason why the node should lead nothing and be assigned "
        "nothing: silent, draining, stopping, ...")
    acts: bool = Field(description="Whether the node is the active controller.")
    leads: int = Field(description="Partitions that the node leads.")
    replicas: int = Field(description="Partition replicas that the node holds.")
    shards: int = Field(description="Coordinator shards that the node owns.")


class NodePage(BaseModel):
    items: list[NodeState]
    next_cursor: str | None


class ShardState(BaseModel):
    kind: Literal["txn", "group"]
    shard: int
    owner: int = Field(description="Node id of the owner; -1 if no live node owns the shard.")
    epoch: int = Field(description="Shard epoch, assigned by the controller.")
    serving: bool | None = Field(description="Whether the owner serves the shard; null if the owner did not answer.")
    entries: int | None = Field(description="Transactional ids or groups in the shard.")
    loaded_records: int | None = Field(description="Records that the owner read when it last loaded the shard.")


class ShardPage(BaseModel):
    items: list[ShardState]
    next_cursor: str | None


class Check(BaseModel):
    name: str
    status: Literal["ok", "degraded", "down"]
    detail: str


class Health(BaseModel):
    status: Literal["ok", "degraded", "down"] = Field(description="The status of the worst check.")
    checks: list[Check]
    model_config = {"json_schema_extra": {"examples": [{
        "status": "degraded", "checks": [
            {"name": "controller", "status": "ok", "detail": "300 acts"},
            {"name": "replicas", "status": "degraded", "detail": "3 partitions have replicas that are not in sync"}]}]}}


def routes(context: Context) -> APIRouter:
    router = Routes(context.keys, "/v1", "cluster")
    view, clients = context.view, context.clients
    told: dict[str, Any] = {
        "name": "hapax", "version": package_version(), "api": API_VERSION, "cluster_id": context.settings.cluster_id}

    @router.get("/version", response_model=Version)
    async def version() -> Response:
        """The product's name and version, the API's version, and the cluster's id."""
        return answer(told)

    @router.get("/health", response_model=Health)
    async def health() -> Response:
        """The cluster's health, check by check. `down`: some clients cannot read, write or commit now. `degraded`: one
        more failure would cause that."""
        checks = health_checks(counts(view, context.settings.min_insync_replicas))
        return answer({"status": worst(checks), "checks": [each._asdict() for each in checks]})

    @router.get("/nodes", response_model=NodePage)
    async def nodes(limit: Limit = 100, cursor: Cursor = None, role: Role | None = None) -> Response:
        """The live nodes, ordered by id."""
        items, following = page(view.nodes(role), lambda node: (int(node.node_id),), limit, cursor)
        held = _held(view)
        return answer({"items": [_node(view, each, held) for each in items], "next_cursor": following})

    @router.get("/nodes/{node_id}", response_model=NodeState)
    async def node(node_id: Annotated[int, Path(ge=0, le=LARGEST_INT32, examples=[0])]) -> Response:
        """One live node."""
        found = view.node(NodeId(node_id))
        if found is None:
            raise Problem(404, f"No live node has the id {node_id}.")
        return answer(_node(view, found, _held(view)))

    @router.get("/nodes/{node_id}/config", response_model=ConfigValues)
    async def node_config(node_id: Annotated[int, Path(ge=0, le=LARGEST_INT32, examples=[0])]) -> Response:
        """The settings of a broker or coordinator."""
        found = view.node(NodeId(node_id))
        if found is None or found.port == 0:
            raise Problem(404, f"No live broker or coordinator has the id {node_id}.")
        return config_values(await clients.call(lambda admin: admin.node_config(node_id)))

    @router.get("/shards", response_model=ShardPage)
    async def shards(
        limit: Limit = 100, cursor: Cursor = None,
        kind: Annotated[
            ShardKind | None, Query(description="txn: transaction shards only; group: group shards only.")] = None,
    ) -> Response:
        """The coordinators' shards: the owner of each, and whether it serves."""
        assigned = [
            each for kind_ in _KINDS if kind in (None, kind_) for each in view.shards(kind_).values()]
        items, following = page(assigned, lambda each: (each.kind, int(each.shard)), limit, cursor)
        try:
            answered = {
                (each.kind, each.shard, each.owner): each
                for each in await clients.call(lambda admin: admin.describe_shards(partial=True))}
        except HapaxError:
            answered = {}  # the owners are known from the metadata
        found = []
        for each in items:
            owner = view.shard_owner(each.kind, each.shard)
            state = answered.get((each.kind, int(each.shard), -1 if owner is None else int(owner.node_id)))
            found.append({
                "kind": each.kind, "shard": each.shard, "owner": -1 if owner is None else owner.node_id,
                "epoch": each.record.epoch, "serving": None if state is None else state.serving,
                "entries": None if state is None else state.entries,
                "loaded_records": None if state is None else state.loaded_records,
            })
        return answer({"items": found, "next_cursor": following})

    return router


def counts(view: ClusterView, min_insync: int) -> Counts:
    """`min_insync`: `min.insync.replicas` of topics that do not set their own."""
    controller = view.controller
    leaderless = short = below = 0
    for topic in view.topics():
        least = int(topic.config.get("min.insync.replicas", min_insync))
        for index in range(topic.partitions):
            leaderless += view.leader_of(topic.topic_id, index) is None
            partition = view.partition(topic.topic_id, index)
            if partition is not None:
                short += bool(set(partition.record.replicas) - set(partition.record.isr))
                below += len(partition.record.isr) < least
    brokers = view.nodes("broker")
    return Counts(
        None if controller is None else str(controller.record.node_id), len(brokers),
        [node.node_id for node in brokers if view.rank(node) != FIT], len(view.nodes("coordinator")),
        len(view.nodes("pid")), [node.node_id for node in view.nodes() if view.rank(node) == SILENT], leaderless, short,
        below, sum(view.shard_owner(kind, shard) is None for kind in _KINDS for shard in view.shards(kind)))


def _held(view: ClusterView) -> dict[NodeId, list[int]]:
    """Node -> [partitions that it leads, replicas that it holds, shards that it owns]."""
    held: dict[NodeId, list[int]] = {}
    for partition in view.partitions():
        held.setdefault(partition.record.leader, [0, 0, 0])[0] += 1
        for node in partition.record.replicas:
            held.setdefault(node, [0, 0, 0])[1] += 1
    for kind in _KINDS:
        for shard in view.shards(kind).values():
            held.setdefault(shard.record.owner, [0, 0, 0])[2] += 1
    return held


def _node(view: ClusterView, node: NodeView, held: dict[NodeId, list[int]]) -> dict[str, Any]:
    leads, replicas, shards = held.get(node.node_id, (0, 0, 0))
    controller = view.controller
    rank = view.rank(node)
    standing = node.record.standing or (
        "silent" if rank == SILENT else "draining" if view.is_draining(node.node_id) else "")
    return {
        "node_id": node.node_id, "role": node.role, "host": node.host, "port": node.port,
        "rpc_address": node.public_rpc_address, "http_address": node.record.http_address, "rack": node.record.rack,
        "registration": node.registration, "standing": standing,
        "acts": controller is not None and controller.record.node_id == node.node_id, "leads": leads,
        "replicas": replicas, "shards": shards,
    }

"""/v1/reassignments: running moves of partitions, plans for moves, and the copying throttle."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel, Field, model_validator

from hapax.admin.answers import LARGEST_INT32, Caller, IdempotencyKey, RequestBody, answer
from hapax.admin.context import Context
from hapax.admin.needs import Routes
from hapax.admin.paging import Cursor, Limit, page
from hapax.admin.problems import Problem
from hapax.client import Admin, Refused, TopicPartition
from hapax.client.plans import Placement, plan_steps, read_cluster, running_moves
from hapax.core.cluster.moves import ImpossiblePlan, Targets, change_factor, drain, spread
from hapax.core.types import NodeId, PartitionIndex

NodeNumber = Annotated[int, Field(ge=0, le=LARGEST_INT32)]


class Reassignment(BaseModel):
    topic: str
    partition: int
    replicas: list[int] = Field(description="The new replicas, followed by the old ones that will be removed.")
    adding: list[int]
    removing: list[int]
    caught_up: list[int] = Field(description="The replicas of `adding` that are in sync.")


class ReassignmentPage(BaseModel):
    items: list[Reassignment]
    next_cursor: str | None


class Exactly(RequestBody):
    topic: str = Field(min_length=1, max_length=249)
    partition: int = Field(ge=0, le=LARGEST_INT32)
    replicas: list[NodeNumber] = Field(
        min_length=1, max_length=100, description="In order of preference: the first becomes the leader if it can.")


class Spread(RequestBody):
    topics: list[str] = Field(min_length=1, max_length=1000)
    brokers: list[NodeNumber] | None = Field(
        None, min_length=1, max_length=1000, description="Default: all fit brokers.")


class Factor(RequestBody):
    topic: str = Field(min_length=1, max_length=249)
    replicas: int = Field(ge=1, le=100)


class Drain(RequestBody):
    broker: NodeNumber


class Plan(RequestBody):
    """Exactly one of `partitions`, `spread`, `factor` and `drain`."""

    partitions: list[Exactly] | None = Field(None, min_length=1, max_length=500)
    spread: Spread | None = Field(None, description="Spread the topics evenly over brokers.")
    factor: Factor | None = Field(None, description="Change a topic's number of replicas.")
    drain: Drain | None = Field(
        None, description="Move all replicas off a broker. It is assigned no new ones from then on.")
    dry_run: bool = Field(True, description="Show the plan without starting it.")
    bytes_per_second: int | None = Field(
        None, ge=0, le=2**62,
        description="Maximum rate at which each broker copies for the moves; 0: as in the broker's settings.")

    @model_validator(mode="after")
    def _one(self) -> Plan:
        if sum(each is not None for each in (self.partitions, self.spread, self.factor, self.drain)) != 1:
            raise ValueError("set exactly one of partitions, spread, factor and drain")
        return self


class Step(BaseModel):
    topic: str
    partition: int
    before: list[int]
    after: list[int]
    copied_to: list[int]
    removed_from: list[int]
    refused: str | None = Field(description="Why the cluster refused to start it.")


class Planned(BaseModel):
    dry_run: bool
    copies: int = Field(description="Replicas to copy.")
    steps: list[Step]


class Canceled(BaseModel):
    canceled: int


class Throttle(RequestBody):
    bytes_per_second: int = Field(
        ge=0, le=2**62, description="Maximum rate of each broker; 0: as in the broker's settings.")


class ThrottleNow(BaseModel):
    bytes_per_second: int | None = Field(description="null: as in each broker's settings.")


def routes(context: Context) -> APIRouter:
    router = Routes(context.keys, "/v1/reassignments", "reassignments")
    view, clients = context.view, context.clients

    @router.get("", response_model=ReassignmentPage)
    async def list_moves(limit: Limit = 100, cursor: Cursor = None) -> Response:
        """The running moves."""
        cluster = await clients.call(read_cluster)
        items, following = page(
            running_moves(cluster), lambda each: (each.partition.topic, int(each.partition.partition)), limit, cursor)
        return answer({
            "items": [
                {
                    "topic": each.partition.topic, "partition": each.partition.partition,
                    "replicas": each.replicas, "adding": each.adding, "removing": each.removing,
                    "caught_up": each.caught_up,
                }
                for each in items],
            "next_cursor": following,
        })

    @router.post("", response_model=Planned)
    async def plan(
        wanted: Annotated[Plan, Body(examples=[
            {"spread": {"topics": ["flights"]}, "dry_run": True},
            {"drain": {"broker": 2}, "dry_run": False, "bytes_per_second": 52428800},
            {"partitions": [{"topic": "flights", "partition": 0, "replicas": [1, 2, 0]}], "dry_run": False},
        ])],
        caller: Caller, idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Plans moves, and starts them with `"dry_run": false`. Started moves continue when any process dies."""
        cluster = await clients.call(read_cluster)
        try:
            targets = _targets(cluster, wanted)
        except ImpossiblePlan as error:
            raise Problem(409, f"{error}.") from None
        refused: list[Refused] = []
        if not wanted.dry_run:
            refused = await clients.call(lambda admin: _begin(admin, wanted, targets))
        why = {each.partition: each.reason for each in refused}
        steps = plan_steps(cluster, targets)
        return answer({
            "dry_run": wanted.dry_run, "copies": sum(len(each.copied_to) for each in steps),
            "steps": [
                {
                    "topic": each.partition.topic, "partition": each.partition.partition, "before": each.before,
                    "after": each.after, "copied_to": each.copied_to, "removed_from": each.removed_from,
                    "refused": why.get(each.partition),
                }
                for each in steps],
        })

    @router.delete("", response_model=Canceled)
    async def cancel(
        caller: Caller,
        topic: Annotated[list[str], Query(max_length=100, description="Default: all topics.")] = [],  # noqa: B006
    ) -> Response:
        """Cancels running moves: the added replicas are removed, the old ones stay."""

        async def work(admin: Admin) -> int:
            running = {
                each.partition: None for each in await admin.list_reassignments()
                if not topic or each.partition.topic in topic}
            refused = await admin.alter_reassignments(running) if running else []
            return len(running) - len(refused)

        return answer({"canceled": await clients.call(work)})

    @router.get("/throttle", response_model=ThrottleNow)
    async def get_throttle() -> Response:
        """The maximum rate at which each broker copies for moves."""
        return answer({"bytes_per_second": None if view.throttle is None else view.throttle.bytes_per_second})

    @router.put("/throttle", response_model=ThrottleNow)
    async def set_throttle(
        wanted: Annotated[Throttle, Body(examples=[{"bytes_per_second": 52428800}])], caller: Caller
    ) -> Response:
        """Changes the maximum rate at which each broker copies, until the running moves have ended."""
        await clients.call(lambda admin: admin.set_throttle(wanted.bytes_per_second))
        return answer({"bytes_per_second": wanted.bytes_per_second or None})

    return router


def _targets(cluster: Placement, wanted: Plan) -> Targets:
    """Raises HapaxError, ImpossiblePlan, Problem."""
    if wanted.spread is not None:
        cluster.check_topics(wanted.spread.topics)
        return spread(cluster.partitions, wanted.spread.topics, cluster.sites(wanted.spread.brokers))
    if wanted.factor is not None:
        cluster.check_topics([wanted.factor.topic])
        return change_factor(cluster.partitions, wanted.factor.topic, wanted.factor.replicas, cluster.sites())
    if wanted.drain is not None:
        broker = NodeId(wanted.drain.broker)
        if broker not in cluster.brokers and not any(broker in held.replicas for held in cluster.partitions.values()):
            raise Problem(404, f"Broker {broker} is not alive and holds no replica.")
        return drain(cluster.partitions, {broker}, cluster.sites())
    targets: Targets = {}
    for each in wanted.partitions or ():
        name = TopicPartition(each.topic, PartitionIndex(each.partition))
        if name not in cluster.partitions:
            raise Problem(404, f"There is no partition {each.topic}-{each.partition}.")
        targets[name] = tuple(map(NodeId, each.replicas))
    return targets


async def _begin(admin: Admin, wanted: Plan, targets: Targets) -> list[Refused]:
    if wanted.drain is not None:
        await admin.set_draining([wanted.drain.broker], True)
    if wanted.bytes_per_second is not None:
        await admin.set_throttle(wanted.bytes_per_second)
    return await admin.alter_reassignments(targets) if targets else []



"""Producers' state by partition and by producer id, and leases of producer ids."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from hapax.admin.answers import LARGEST_INT32, LARGEST_INT64, Caller, Name, PartitionNumber, TopicName, answer
from hapax.admin.callers import Caller as RequestCaller
from hapax.admin.context import Context
from hapax.admin.needs import Routes, refusal
from hapax.admin.paging import Cursor, Limit, page
from hapax.admin.problems import not_found
from hapax.admin.topics import find_partition
from hapax.client import Lease as HeldLease
from hapax.client import LeaseInfo, Leases
from hapax.client.producers import PartitionProducer
from hapax.core.access.resources import DESCRIBE_CLUSTER, DESCRIBE_TOPIC, READ_TOPIC, WRITE_TOPIC
from hapax.core.errors import ErrorCode


class Producer(BaseModel):
    topic: str
    partition: int
    producer_id: int = Field(examples=[4001])
    producer_epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int = Field(description="-1 if no transaction is open in this partition.")
    records: int = Field(
        description="The producer's records in the partition, over all epochs, without those of aborted transactions.")
    transaction_records: int = Field(description="Records in the open transaction.")
    transactional_id: str = Field(description="Transactional id of the open transaction, if the partition knows it.")


class ProducerPage(BaseModel):
    items: list[Producer]
    next_cursor: str | None


class PartitionName(BaseModel):
    topic: str
    partition: int


class Lease(BaseModel):
    name: str = Field(examples=["loader"])
    producer_id: int
    generation: int
    holder: str
    expires_at_ms: int
    partitions: list[PartitionName]


class LeasePage(BaseModel):
    items: list[Lease]
    next_cursor: str | None


class LeaseProgress(BaseModel):
    topic: str
    partition: int
    records: int
    generation: int
    last_sequence: int
    last_offset: int


class LeaseDetail(Lease):
    progress: list[LeaseProgress] = Field(description="The state of the lease's producer in each partition.")


def routes(context: Context) -> APIRouter:
    router = Routes(context.keys, "/v1", "producers")
    view, clients = context.view, context.clients

    @router.get("/topics/{topic}/partitions/{partition}/producers", response_model=ProducerPage)
    async def of_partition(
        topic: TopicName, partition: PartitionNumber, limit: Limit = 100, cursor: Cursor = None
    ) -> Response:
        """The producers whose state a partition keeps, ordered by producer id."""
        where = find_partition(view, topic, partition)
        found = await clients.call(lambda admin: admin.partition_producers([where]))
        items, following = page(found, lambda each: (each.producer_id,), limit, cursor)
        return answer({"items": [_producer(each) for each in items], "next_cursor": following})

    @router.get("/producers/{producer_id}", response_model=ProducerPage)
    async def by_id(
        producer_id: Annotated[int, Path(ge=0, le=LARGEST_INT64, examples=[4001])], caller: Caller,
        limit: Limit = 100, cursor: Cursor = None,
    ) -> Response:
        """The state of one producer in each partition of the cluster."""
        known: list[PartitionProducer] = []
        if caller.may_any(READ_TOPIC):
            async with context.heavy:
                known = await clients.call(lambda admin: admin.partition_producers(None, [producer_id]))
        found = [each for each in known if caller.may(READ_TOPIC, each.partition.topic)]
        if not found:
            raise not_found(f"No partition knows producer {producer_id}.", ErrorCode.UNKNOWN_PRODUCER_ID)
        items, following = page(found, lambda each: (each.partition.topic, each.partition.partition), limit, cursor)
        return answer({"items": [_producer(each) for each in items], "next_cursor": following})

    @router.get("/leases", response_model=LeasePage)
    async def leases(
        limit: Limit = 100, cursor: Cursor = None, prefix: Annotated[str, Query(max_length=1024)] = "",
    ) -> Response:
        """The leases of producer ids, ordered by name."""
        found = await (await clients.leases()).list(prefix)
        items, following = page(found, lambda lease: (lease.name,), limit, cursor)
        return answer({"items": [_lease(each) for each in items], "next_cursor": following})

    @router.get("/leases/{name}", response_model=LeaseDetail)
    async def lease(name: Name, caller: Caller) -> Response:
        """One lease, and the progress of its producer."""
        client = await clients.leases()
        found = await _found(client, name, caller)
        progress = await client.progress(name)
        return answer(_lease(found) | {"progress": [
            {"topic": where.topic, "partition": where.partition, **one._asdict()}
            for where, one in sorted(progress.items())]})

    @router.delete("/leases/{name}", status_code=204)
    async def release(
        name: Name, caller: Caller,
        generation: Annotated[int, Query(
            ge=0, le=LARGEST_INT32,
            description="The lease's generation as read earlier. A lease that was taken over since is not released.")],
    ) -> Response:
        """Releases a lease for its holder. Another program may take it at once, under a higher generation, which fences
        the former holder."""
        client = await clients.leases()
        found = await _found(client, name, caller)
        for each in found.partitions:
            if not caller.may(WRITE_TOPIC, each.topic):
                raise refusal(caller, (WRITE_TOPIC, each.topic), "DELETE /v1/leases/{name}")
        await client.release(HeldLease(name, found.producer_id, generation, found.expires_at_ms, {}, {}, None))
        return Response(status_code=204)

    return router


async def _found(client: Leases, name: str, caller: RequestCaller) -> LeaseInfo:
    """Raises Problem (404) for a lease that is not there, and for one that the caller may not see."""
    for each in await client.list(name):
        if each.name == name and (
            caller.may(DESCRIBE_CLUSTER) or all(caller.may(DESCRIBE_TOPIC, held.topic) for held in each.partitions)
        ):
            return each
    raise not_found(f"There is no lease {name}.", ErrorCode.UNKNOWN_PRODUCER_ID)


def _producer(producer: PartitionProducer) -> dict[str, Any]:
    fields = producer._asdict()
    where = fields.pop("partition")
    return {"topic": where.topic, "partition": where.partition, **fields}


def _lease(lease: LeaseInfo) -> dict[str, Any]:
    return lease._asdict() | {
        "partitions": [{"topic": each.topic, "partition": each.partition} for each in lease.partitions]}

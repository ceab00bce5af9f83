"""Groups of 500 members in 200 partitions, and 10,000 groups at rest.

* Classic: the time from the first JoinGroup of a round of all members until the last member has its assignment.
* KIP-848: the time from the leave of a member until all others are stable again, while all of them send heartbeats.
* The coordinator's CPU for one heartbeat, in both protocols.
* The coordinator's memory for 10,000 groups with one member and one offset each, and its CPU while no client calls.

The members are connections of this process. The leader's round-robin assignment takes a few milliseconds of the time.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Iterable
from typing import Any, Final, TypeVar

from confluent_kafka.admin import AdminClient, NewTopic

from bench.bench_transactions import cpu_seconds, local_cluster
from bench.figures import record
from hapax.runtime.network import TcpNetwork
from hapax.wire import messages
from hapax.wire.peer import Peer

MEMBERS: Final = 500
PARTITIONS: Final = 200
GROUPS: Final = 10_000
BEATS: Final = 20
AT_REST_S: Final = 10.0
PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_T = TypeVar("_T")


async def all_of(work: Iterable[Awaitable[_T]]) -> list[_T]:
    return list(await asyncio.gather(*work))


async def coordinator_of(bootstrap: str, group: str) -> tuple[str, int]:
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    peer = await Peer.connect(TcpNetwork(), host, int(port))
    try:
        while True:
            found = await peer.call(
                messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), version=4)
            (coordinator,) = found.coordinators
            if coordinator.error_code == 0:
                return coordinator.host, coordinator.port
            await asyncio.sleep(0.1)
    finally:
        peer.close("found")


# --- classic ----------------------------------------------------------------------------------------------------------


async def join(peer: Peer, group: str, member_id: str) -> Any:
    Request = messages.JoinGroupRequest
    while True:
        answer = await peer.call(Request(
            group_id=group, session_timeout_ms=60_000, rebalance_timeout_ms=60_000, member_id=member_id,
            group_instance_id=None, protocol_type="consumer", reason=None,
            protocols=[Request.JoinGroupRequestProtocol(name="range", metadata=b"subscription")]), version=9)
        if answer.error_code == 79:
            member_id = answer.member_id
            continue
        assert answer.error_code == 0, answer
        return answer


async def sync(peer: Peer, group: str, joined: Any) -> Any:
    Request = messages.SyncGroupRequest
    answer = await peer.call(Request(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, group_instance_id=None,
        protocol_type="consumer", protocol_name="range",
        assignments=[
            Request.SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"x" * 40)
            for each in joined.members
        ]), version=5)
    assert answer.error_code in (0, 27), answer
    return answer


async def classic_round(peers: list[Peer], group: str, ids: list[str]) -> tuple[float, list[Any]]:
    """All members join again. Returns the seconds until the last one has its assignment, and the answers."""
    began = time.perf_counter()

    async def one(peer: Peer, member_id: str) -> Any:
        while True:
            joined = await join(peer, group, member_id)
            if (await sync(peer, group, joined)).error_code == 0:
                return joined
            member_id = joined.member_id

    joined = await all_of(one(peer, member_id) for peer, member_id in zip(peers, ids, strict=True))
    return time.perf_counter() - began, joined


async def classic(bootstrap: str, processes: dict[str, int]) -> None:
    group = "classic"
    host, port = await coordinator_of(bootstrap, group)
    peers = await all_of(
        Peer.connect(TcpNetwork(), host, port, request_timeout_ms=120_000) for _ in range(MEMBERS))
    _, joined = await classic_round(peers, group, [""] * MEMBERS)
    ids = [each.member_id for each in joined]
    seconds, joined = await classic_round(peers, group, ids)
    record("group_classic_rebalance", seconds, f"s, {MEMBERS} members", at_most=5)

    async def beat(peer: Peer, member: Any) -> None:
        for _ in range(BEATS):
            answer = await peer.call(messages.HeartbeatRequest(
                group_id=group, generation_id=member.generation_id, member_id=member.member_id,
                group_instance_id=None), version=4)
            assert answer.error_code == 0, answer

    before = coordinators_cpu(processes)
    await all_of(beat(peer, member) for peer, member in zip(peers, joined, strict=True))
    spent = coordinators_cpu(processes) - before
    record("group_classic_heartbeat", spent / (MEMBERS * BEATS) * 1e6, "µs of the coordinator's CPU", at_most=60)
    for peer in peers:
        peer.close("done")


# --- KIP-848 ----------------------------------------------------------------------------------------------------------


class Member:
    """Takes over every assignment at once, and confirms it."""

    def __init__(self, peer: Peer, group: str) -> None:
        self.peer, self.group = peer, group
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: list[Any] | None = []
        self.confirm = True

    async def beat(self, topics: list[str] | None = None) -> None:
        Request = messages.ConsumerGroupHeartbeatRequest
        joins = self.epoch == 0
        answer = await self.peer.call(Request(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, instance_id=None, rack_id=None,
            rebalance_timeout_ms=60_000 if joins else -1, subscribed_topic_names=["groups"] if joins else None,
            subscribed_topic_regex=None, server_assignor=None,
            topic_partitions=self.owned if joins or self.confirm else None), version=1)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        self.confirm = False
        if answer.assignment is not None:
            Owned = Request.TopicPartitions
            self.owned = [
                Owned(topic_id=each.topic_id, partitions=list(each.partitions))
                for each in answer.assignment.topic_partitions]
            self.confirm = True

    @property
    def partitions(self) -> int:
        return sum(len(each.partitions) for each in self.owned or ())

    async def leave(self) -> None:
        self.epoch = -1
        await self.beat()


async def settle(members: list[Member]) -> float:
    """All members send heartbeats until they are at one epoch and own all partitions. Returns the seconds."""
    began = time.perf_counter()
    while True:
        await all_of(member.beat() for member in members)
        epochs = {member.epoch for member in members}
        if len(epochs) == 1 and sum(member.partitions for member in members) == PARTITIONS and not any(
                member.confirm for member in members):
            return time.perf_counter() - began
        await asyncio.sleep(0.02)  # the heartbeat interval of the members


async def consumer(bootstrap: str, processes: dict[str, int]) -> None:
    group = "consumer"
    host, port = await coordinator_of(bootstrap, group)
    peers = await all_of(
        Peer.connect(TcpNetwork(), host, port, request_timeout_ms=120_000) for _ in range(MEMBERS))
    members = [Member(peer, group) for peer in peers]
    began = time.perf_counter()
    await all_of(member.beat() for member in members)
    await settle(members)
    record("group_consumer_start", time.perf_counter() - began, f"s, {MEMBERS} members")
    leaving = next(member for member in members if member.partitions)
    members.remove(leaving)
    held = {member.member_id: member.partitions for member in members}
    await leaving.leave()
    seconds = await settle(members)
    record("group_consumer_rebalance", seconds, "s after one left", at_most=5)
    kept = sum(member.partitions >= held[member.member_id] for member in members)
    record("group_consumer_undisturbed", kept / len(members), "of the members lost nothing", at_least=0.99)

    async def beat(member: Member) -> None:
        for _ in range(BEATS):
            await member.beat()

    before = coordinators_cpu(processes)
    await all_of(beat(member) for member in members)
    spent = coordinators_cpu(processes) - before
    record("group_consumer_heartbeat", spent / (len(members) * BEATS) * 1e6, "µs of the coordinator's CPU", at_most=60)
    for peer in peers:
        peer.close("done")


# --- at rest ----------------------------------------------------------------------------------------------------------


def resident(processes: dict[str, int]) -> int:
    """Resident memory of all coordinators, in bytes."""
    return sum(
        int(open(f"/proc/{pid}/statm", encoding="ascii").read().split()[1]) * PAGE
        for name, pid in processes.items() if name.startswith("coordinator"))


def coordinators_cpu(processes: dict[str, int]) -> float:
    return sum(spent for name, spent in cpu_seconds(processes).items() if name.startswith("coordinator"))


async def at_rest(bootstrap: str, processes: dict[str, int]) -> None:
    host, port = await coordinator_of(bootstrap, "rest-0")
    peer = await Peer.connect(TcpNetwork(), host, port, request_timeout_ms=120_000)
    before = resident(processes)

    async def one(number: int) -> None:
        group = f"rest-{number}"
        joined = await join(peer, group, "")
        await sync(peer, group, joined)
        Commit = messages.OffsetCommitRequest
        Topic = Commit.OffsetCommitRequestTopic
        answer = await peer.call(Commit(
            group_id=group, generation_id_or_member_epoch=joined.generation_id, member_id=joined.member_id,
            group_instance_id=None, topics=[Topic(name="groups", partitions=[Topic.OffsetCommitRequestPartition(
                partition_index=0, committed_offset=0, committed_leader_epoch=-1, committed_metadata="")])]),
            version=8)
        assert answer.topics[0].partitions[0].error_code == 0, answer

    for first in range(0, GROUPS, 200):
        await all_of(one(number) for number in range(first, first + 200))
    record("groups_at_rest_memory", (resident(processes) - before) / 2**20, f"MiB, {GROUPS} groups", at_most=100)
    spent = coordinators_cpu(processes)
    await asyncio.sleep(AT_REST_S)  # the measured time
    record("groups_at_rest_cpu", (coordinators_cpu(processes) - spent) / AT_REST_S * 100, "% of one core", at_most=2)
    peer.close("done")


def main() -> None:
    with local_cluster("group.initial.rebalance.delay.ms=500") as (cluster, processes):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for created in admin.create_topics([NewTopic("groups", PARTITIONS, 1)]).values():
            created.result(30)
        for measure in (classic, consumer):
            asyncio.run(measure(cluster.bootstrap, processes))
    with local_cluster("group.initial.rebalance.delay.ms=1") as (cluster, processes):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for created in admin.create_topics([NewTopic("groups", 1, 1)]).values():
            created.result(30)
        asyncio.run(at_rest(cluster.bootstrap, processes))


if __name__ == "__main__":
    main()

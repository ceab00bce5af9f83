"""One suite for the metadata store port, run against a real etcd and against the model that the simulator uses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import hapax.runtime.etcd
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.ports import (
    Compare,
    Delete,
    KeyValue,
    MetadataCompacted,
    MetadataLeaseGone,
    MetadataStore,
    MetadataUnavailable,
    Put,
    WatchEvent,
)
from hapax_sim.metadata import MemoryMetadata, MetadataModel
from integration.etcd_process import EtcdProcess

PREFIX = "/hapax/port-test/"


class EtcdUnderTest:
    def __init__(self, process: EtcdProcess) -> None:
        self.process = process
        self.store: MetadataStore = EtcdStore([process.endpoint], timeout_s=10)

    def stop(self) -> None:
        self.process.kill()

    def start(self) -> None:
        self.process.start()

    def short_timeout(self) -> MetadataStore:
        return EtcdStore([self.process.endpoint], timeout_s=0.5)

    async def compact(self, revision: int) -> None:
        import grpc.aio
        from aetcd.rpc import rpc_pb2

        async with grpc.aio.insecure_channel(self.process.endpoint) as channel:
            await channel.unary_unary(
                "/etcdserverpb.KV/Compact",
                request_serializer=rpc_pb2.CompactionRequest.SerializeToString,
                response_deserializer=rpc_pb2.CompactionResponse.FromString,
            )(rpc_pb2.CompactionRequest(revision=revision))


class ModelUnderTest:
    def __init__(self) -> None:
        self.model = MetadataModel()
        self.store: MetadataStore = MemoryMetadata(self.model)

    def stop(self) -> None:
        self.model.stop()

    def start(self) -> None:
        self.model.start()

    def short_timeout(self) -> MetadataStore:
        return MemoryMetadata(self.model)

    async def compact(self, revision: int) -> None:
        self.model.compact(revision)


UnderTest = EtcdUnderTest | ModelUnderTest


@pytest.fixture(params=["etcd", "model"])
async def tested(request: pytest.FixtureRequest) -> AsyncIterator[UnderTest]:
    under_test: UnderTest = (
        EtcdUnderTest(request.getfixturevalue("shared_etcd")) if request.param == "etcd" else ModelUnderTest())
    store = under_test.store
    assert await store.list("/hapax/") == ([], (await store.list(PREFIX))[1])
    yield under_test
    kvs, _ = await store.list("/hapax/")
    for start in range(0, len(kvs), 128):
        await store.txn([], [Delete(kv.key) for kv in kvs[start:start + 128]])
    await store.close()


async def put(store: MetadataStore, name: str, value: bytes = b"x", lease: int = 0) -> int:
    result = await store.txn([], [Put(PREFIX + name, value, lease)])
    assert result.succeeded
    return result.revision


async def take(events: AsyncIterator[Sequence[WatchEvent]], count: int) -> list[WatchEvent]:
    """The next `count` events of a watch."""
    taken: list[WatchEvent] = []
    async with asyncio.timeout(10):
        while len(taken) < count:
            taken.extend(await anext(events))
    return taken


async def test_a_key_keeps_its_create_revision_and_moves_its_mod_revision(tested: UnderTest) -> None:
    store = tested.store
    assert await store.get(PREFIX + "a") is None
    first = await put(store, "a", b"1")
    second = await put(store, "a", b"2")
    assert second == first + 1
    assert await store.get(PREFIX + "a") == KeyValue(PREFIX + "a", b"2", first, second, 0)


async def test_list_is_sorted_and_bounded_by_the_prefix(tested: UnderTest) -> None:
    store = tested.store
    for name in ("b", "a/2", "a/1", "a"):
        await put(store, name)
    last = await put(store, "c")
    kvs, revision = await store.list(PREFIX + "a/")
    assert [kv.key for kv in kvs] == [PREFIX + "a/1", PREFIX + "a/2"]
    assert revision == last
    kvs, _ = await store.list(PREFIX)
    assert [kv.key.removeprefix(PREFIX) for kv in kvs] == ["a", "a/1", "a/2", "b", "c"]


async def test_a_listing_of_several_pages_outlives_a_compaction_between_them(
    shared_etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hapax.runtime.etcd, "_PAGE", 2)
    under_test = EtcdUnderTest(shared_etcd)
    store = under_test.store
    assert isinstance(store, EtcdStore)
    for number in range(5):
        await put(store, f"paged/{number}")
    read, pages = store._read, 0

    async def compacted_before_the_second_page(request: Any) -> Any:
        nonlocal pages
        pages += 1
        if pages == 2:
            await under_test.compact(await put(store, "paged/5"))
        return await read(request)

    monkeypatch.setattr(store, "_read", compacted_before_the_second_page)
    kvs, revision = await store.list(PREFIX + "paged/")
    assert [kv.key[-1] for kv in kvs] == list("012345") and revision >= kvs[-1].mod_revision
    assert pages == 2 + 3
    monkeypatch.undo()
    await store.txn([], [Delete(kv.key) for kv in kvs])
    await store.close()


async def test_txn_writes_all_or_nothing(tested: UnderTest) -> None:
    store = tested.store
    revision = await put(store, "a", b"1")
    missing = Compare(PREFIX + "b", "create_revision", 0)
    stale = Compare(PREFIX + "a", "mod_revision", revision - 1)
    writes = [Put(PREFIX + "b", b"2"), Delete(PREFIX + "a")]

    refused = await store.txn([missing, stale], writes)
    assert (refused.succeeded, refused.revision) == (False, revision)
    assert await store.get(PREFIX + "b") is None

    done = await store.txn([missing, Compare(PREFIX + "a", "value", b"1")], writes)
    assert (done.succeeded, done.revision) == (True, revision + 1)
    assert await store.get(PREFIX + "a") is None
    created = await store.get(PREFIX + "b")
    assert created is not None and created.create_revision == revision + 1

    assert not (await store.txn([missing], [Delete(PREFIX + "b")])).succeeded
    assert (await store.txn([Compare(PREFIX + "a", "mod_revision", 0)], [])).succeeded


async def test_the_value_of_a_missing_key_equals_nothing(tested: UnderTest) -> None:
    assert not (await tested.store.txn([Compare(PREFIX + "a", "value", b"")], [])).succeeded


async def test_a_deleted_key_is_created_anew(tested: UnderTest) -> None:
    store = tested.store
    first = await put(store, "a")
    await store.txn([], [Delete(PREFIX + "a")])
    again = await put(store, "a")
    kv = await store.get(PREFIX + "a")
    assert kv is not None and kv.create_revision == again == first + 2


async def test_128_operations_fit_and_129_do_not(tested: UnderTest) -> None:
    store = tested.store
    writes = [Put(f"{PREFIX}{i:03}", b"x") for i in range(129)]
    compares = [Compare(write.key, "create_revision", 0) for write in writes]
    assert (await store.txn(compares[:128], writes[:128])).succeeded
    with pytest.raises(ValueError):
        await store.txn([], writes)
    with pytest.raises(ValueError, match="duplicate key"):
        await store.txn([], [writes[0], writes[0]])


async def test_a_watch_replays_from_its_revision_and_goes_on(tested: UnderTest) -> None:
    store = tested.store
    await put(store, "before")
    first = await put(store, "a", b"1")
    await store.txn([], [Put(PREFIX + "a", b"2"), Put(PREFIX + "b", b"3"), Put("/hapax/port-test-2/c", b"4")])
    events = store.watch(PREFIX, first)
    seen = await take(events, 3)
    assert [(e.key.removeprefix(PREFIX), e.kv and e.kv.value, e.revision) for e in seen] == [
        ("a", b"1", first), ("a", b"2", first + 1), ("b", b"3", first + 1)]

    await store.txn([], [Delete(PREFIX + "a")])
    (deleted,) = await take(events, 1)
    assert (deleted.key, deleted.kv, deleted.revision) == (PREFIX + "a", None, first + 2)
    await events.aclose()


async def test_one_revision_is_never_split_over_two_batches(tested: UnderTest) -> None:
    store = tested.store
    _, revision = await store.list(PREFIX)
    events = store.watch(PREFIX, revision + 1)
    waiting = asyncio.ensure_future(anext(events))
    await store.txn([], [Put(f"{PREFIX}{i}", b"x" * 1000) for i in range(128)])
    assert len(await waiting) == 128
    await events.aclose()


async def test_a_watch_of_a_compacted_revision_says_so(tested: UnderTest) -> None:
    store = tested.store
    first = await put(store, "a")
    for _ in range(5):
        last = await put(store, "a")
    await tested.compact(last)
    with pytest.raises(MetadataCompacted):
        await anext(store.watch(PREFIX, first))
    events = store.watch(PREFIX, last + 1)
    following = asyncio.ensure_future(anext(events))
    await put(store, "a", b"after")
    assert [e.kv and e.kv.value for e in await following] == [b"after"]
    await events.aclose()


async def test_a_watch_of_the_future_is_refused(tested: UnderTest) -> None:
    store = tested.store
    revision = await put(store, "a")
    with pytest.raises(MetadataUnavailable):
        await anext(store.watch(PREFIX, revision + 2))
    events = store.watch(PREFIX, revision + 1)
    following = asyncio.ensure_future(anext(events))
    await put(store, "a")
    assert [e.revision for e in await following] == [revision + 1]
    await events.aclose()


async def test_a_lease_that_is_not_renewed_takes_its_keys_with_it(tested: UnderTest) -> None:
    store = tested.store
    lease = await store.grant_lease(1.2)
    await store.txn([], [Put(PREFIX + "a", b"1", lease), Put(PREFIX + "b", b"1", lease)])
    kept = await put(store, "c")
    kv = await store.get(PREFIX + "a")
    assert kv is not None and kv.lease == lease
    assert await store.keep_alive(lease) == pytest.approx(2, abs=0.01)  # whole seconds, at least 2

    events = store.watch(PREFIX, kept + 1)
    gone = await take(events, 2)
    assert [(e.key, e.kv) for e in gone] == [(PREFIX + "a", None), (PREFIX + "b", None)]
    assert await store.keep_alive(lease) == 0
    with pytest.raises(MetadataLeaseGone):
        await put(store, "a", lease=lease)
    assert await store.get(PREFIX + "c") is not None
    await events.aclose()


async def test_a_revoked_lease_takes_its_keys_at_once(tested: UnderTest) -> None:
    store = tested.store
    lease = await store.grant_lease(60)
    await put(store, "a", lease=lease)
    await store.revoke_lease(lease)
    assert await store.get(PREFIX + "a") is None
    await store.revoke_lease(lease)


async def test_a_key_put_without_its_lease_outlives_it(tested: UnderTest) -> None:
    store = tested.store
    lease = await store.grant_lease(60)
    await put(store, "a", lease=lease)
    await put(store, "a")
    await store.revoke_lease(lease)
    assert await store.get(PREFIX + "a") is not None


async def test_an_outage_ends_watches_loudly_and_keeps_what_was_written(tested: UnderTest) -> None:
    store = tested.store
    lease = await store.grant_lease(3)
    revision = await put(store, "a", lease=lease)
    events = store.watch(PREFIX, revision)
    await take(events, 1)
    ending = asyncio.ensure_future(anext(events))

    tested.stop()
    with pytest.raises(MetadataUnavailable):
        await ending
    impatient = tested.short_timeout()
    with pytest.raises(MetadataUnavailable):
        await impatient.get(PREFIX + "a")
    with pytest.raises(MetadataUnavailable):
        await impatient.txn([], [Put(PREFIX + "b", b"x")])
    with pytest.raises(MetadataUnavailable):
        await anext(impatient.watch(PREFIX, revision))
    await impatient.close()

    tested.start()
    kv = await store.get(PREFIX + "a")
    assert kv is not None and kv.mod_revision == revision
    assert await store.keep_alive(lease) > 0
    events = store.watch(PREFIX, revision + 1)
    following = asyncio.ensure_future(anext(events))
    await put(store, "a", b"after")
    assert [e.kv and e.kv.value for e in await following] == [b"after"]
    await events.aclose()


async def test_only_one_of_many_concurrent_compare_and_swaps_wins(tested: UnderTest) -> None:
    store = tested.store
    revision = await put(store, "a", b"")
    results = await asyncio.gather(*(
        store.txn([Compare(PREFIX + "a", "mod_revision", revision)], [Put(PREFIX + "a", bytes([i]))])
        for i in range(20)
    ))
    winners = [i for i, result in enumerate(results) if result.succeeded]
    assert len(winners) == 1
    kv = await store.get(PREFIX + "a")
    assert kv is not None and kv.value == bytes(winners)


async def test_reads_go_on_at_another_endpoint(shared_etcd: EtcdProcess) -> None:
    nobody = "127.0.0.1:1"
    store = EtcdStore([nobody, shared_etcd.endpoint], timeout_s=10)
    try:
        await put(store, "a")
        assert await store.get(PREFIX + "a") is not None
    finally:
        await store.close()


async def test_a_frozen_member_costs_one_time_out_not_for_ever(shared_etcd: EtcdProcess) -> None:
    store = EtcdStore([shared_etcd.endpoint], timeout_s=1.0)
    try:
        await store.get(PREFIX + "a")
        shared_etcd.freeze()
        with pytest.raises(MetadataUnavailable):
            await store.txn([], [Put(PREFIX + "a", b"x")])
        with pytest.raises(MetadataUnavailable):
            await anext(store.watch(PREFIX, 1))
        shared_etcd.thaw()
        kv = await store.get(PREFIX + "a")
        assert kv is None or kv.value == b"x"  # the outcome was unknown, and either is possible
    finally:
        await store.close()


async def test_a_watch_soon_leaves_a_member_that_stands_still(shared_etcd: EtcdProcess) -> None:
    """No connection ends, and nothing comes: whoever watches has to ask."""
    store = EtcdStore([shared_etcd.endpoint, "127.0.0.1:1"], timeout_s=30)
    try:
        watch = store.watch(PREFIX, await put(store, "a"))
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(2.5)
        assert not waiting.done(), "a member that answers is not left"
        shared_etcd.freeze()
        began = asyncio.get_running_loop().time()
        with pytest.raises(MetadataUnavailable):
            await waiting
        assert asyncio.get_running_loop().time() - began < 6.0, "well before gRPC's pings would tell"
    finally:
        shared_etcd.thaw()
        await store.close()


async def test_a_watch_whose_channel_is_closed_is_lost_and_its_task_not_cancelled(shared_etcd: EtcdProcess) -> None:
    """The task that follows the store would take it for its own end, and its service would stop."""
    store = EtcdStore([shared_etcd.endpoint], timeout_s=5)
    watch = store.watch(PREFIX, await put(store, "a"))
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)  # it waits for the next event now
    (endpoint,) = store._endpoints
    assert endpoint is not None
    await endpoint.channel.close(None)
    with pytest.raises(MetadataUnavailable, match="its call was cancelled"):
        await waiting
    await store.close()


@pytest.mark.parametrize("others", [[], ["127.0.0.1:1"]])
async def test_a_call_whose_channel_is_closed_is_lost_and_the_next_ones_get_another_channel(
    shared_etcd: EtcdProcess, others: list[str]
) -> None:
    store = EtcdStore([shared_etcd.endpoint, *others], timeout_s=5)
    revision = await put(store, "a")
    shared_etcd.freeze()
    writing = asyncio.ensure_future(store.txn([], [Put(PREFIX + "a", b"x")]))
    for _ in range(5):
        await asyncio.sleep(0)  # it waits for the answer now
    endpoint = store._endpoints[0]
    assert endpoint is not None
    await endpoint.channel.close(None)
    shared_etcd.thaw()
    with pytest.raises(MetadataUnavailable, match="its call was cancelled"):
        await writing
    assert await store.get(PREFIX + "a") is not None
    watch = store.watch(PREFIX, revision)
    assert await anext(watch)
    await watch.aclose()
    await store.close()


@pytest.fixture
async def members(shared_etcd: EtcdProcess, tmp_path: Path) -> AsyncIterator[list[EtcdProcess]]:
    """Three members of one etcd; the first one leads."""
    processes = [EtcdProcess(shared_etcd.binary, tmp_path / name, name) for name in ("one", "two", "three")]
    for process in processes:
        process.members = processes
    try:
        for process in processes:
            process.start()
        leader = await leader_of(processes)
        yield [leader, *(process for process in processes if process is not leader)]
    finally:
        for process in processes:
            process.close()


async def leader_of(processes: Sequence[EtcdProcess]) -> EtcdProcess:
    while True:
        status = [await status_of(process) for process in processes]
        for process, its in zip(processes, status, strict=True):
            if all(other.leader == its.header.member_id for other in status):
                return process


async def status_of(process: EtcdProcess) -> Any:
    import grpc.aio
    from aetcd.rpc import rpc_pb2

    async with grpc.aio.insecure_channel(process.endpoint) as channel:
        return await channel.unary_unary(
            "/etcdserverpb.Maintenance/Status",
            request_serializer=rpc_pb2.StatusRequest.SerializeToString,
            response_deserializer=rpc_pb2.StatusResponse.FromString,
        )(rpc_pb2.StatusRequest(), wait_for_ready=True, timeout=30)


@pytest.mark.parametrize("frozen", ["the member it was sent to", "the leader it was passed on to"])
async def test_a_write_under_way_ends_soon_where_nobody_will_answer_it(
    members: list[EtcdProcess], frozen: str
) -> None:
    """Who decides anything waits for it: a controller's next write is not sent before this one has ended."""
    leader, follower, other = members
    still = follower if frozen == "the member it was sent to" else leader
    store = EtcdStore([follower.endpoint, other.endpoint], timeout_s=30)
    try:
        await put(store, "a", b"before")
        still.freeze()
        began = asyncio.get_running_loop().time()
        with pytest.raises(MetadataUnavailable):
            await put(store, "a", b"under way")
        assert asyncio.get_running_loop().time() - began < 6.0, "2 to 3 s; etcd itself gives up after 7"
        kv = await store.get(PREFIX + "a")
        assert kv is not None and kv.value in (b"before", b"under way")
        await put(store, "a", b"after")
    finally:
        still.thaw()
        await store.close()


async def test_a_call_goes_to_a_member_that_lives_when_the_last_one_is_gone(
    members: list[EtcdProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not been asked for a while, so nobody noticed. A write that was sent there would be lost, and a controller
    that has to take over would wait for it."""
    _, follower, other = members
    monkeypatch.setattr("hapax.runtime.etcd._FRESH_S", 0.0)  # as if a while had passed since each answer
    store = EtcdStore([follower.endpoint, other.endpoint], timeout_s=30)
    try:
        await put(store, "a", b"before")
        follower.freeze()
        began = asyncio.get_running_loop().time()
        await put(store, "a", b"after")
        assert asyncio.get_running_loop().time() - began < 0.9, "before anything sent to it would be given up"
        kv = await store.get(PREFIX + "a")
        assert kv is not None and kv.value == b"after"
    finally:
        follower.thaw()
        await store.close()


async def test_all_members_are_connected_to_before_they_are_needed(members: list[EtcdProcess]) -> None:
    """Who looks up a name only when a member is lost may get no answer: its server was on the same machine."""
    store = EtcdStore([each.endpoint for each in members], timeout_s=30)
    ports = {each.client_port for each in members}

    def connected() -> set[int]:
        return {each.raddr.port for each in psutil.Process().net_connections("tcp")
                if each.status == psutil.CONN_ESTABLISHED} & ports

    async def until(wanted: set[int]) -> None:
        async with asyncio.timeout(60):  # a call alone may take 30 s, if the members have no leader for that long
            while connected() != wanted:
                assert await store.get(PREFIX + "a") is not None  # a cluster's processes ask for something all the time
                await asyncio.sleep(0.05)

    try:
        await put(store, "a")
        await until(ports)
        members[-1].kill()
        await until(ports - {members[-1].client_port})
        members[-1].start()
        await until(ports)
    finally:
        await store.close()


async def test_a_slow_write_is_waited_for_while_its_member_lives(members: list[EtcdProcess]) -> None:
    """Two of three stand still: nobody can decide, the member says that it lives, and the write is done later."""
    leader, follower, other = members
    store = EtcdStore([leader.endpoint, other.endpoint], timeout_s=30)
    try:
        await put(store, "a", b"before")
        follower.freeze()
        other.freeze()
        writing = asyncio.ensure_future(put(store, "a", b"slow"))
        done, _ = await asyncio.wait([writing], timeout=3)
        assert not done, "a member that answers is not left"
        follower.thaw()
        with contextlib.suppress(MetadataUnavailable):  # where they elect a leader anew
            await writing
        kv = await store.get(PREFIX + "a")
        assert kv is not None and kv.value in (b"before", b"slow")
    finally:
        follower.thaw()
        other.thaw()
        await store.close()

"""Two-phase commit (KIP-939) in a whole cluster: nothing but a decision ends a prepared transaction."""

from __future__ import annotations

import asyncio
from typing import Any

from hapax.core.errors import ErrorCode
from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb
from hapax.wire import messages
from unit.coordinator.coordinator_world import CoordinatorWorld, run

ID = "dual"
SOON = (
    "transaction.two.phase.commit.enable=true", "transaction.max.timeout.ms=2000", "transaction.late.after.ms=1000",
    "transactional.id.expiration.ms=5000", "transaction.remove.expired.transaction.cleanup.interval.ms=1000",
)
"""Every limit passes within seconds."""


async def init(world: CoordinatorWorld, *, keep: bool, two_phase: bool = True, timeout_ms: int = 1_000) -> Any:
    request = messages.InitProducerIdRequest(
        transactional_id=ID, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1,
        enable2_pc=two_phase, keep_prepared_txn=keep)

    def code(response: Any) -> int:
        waits = response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        return int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if waits else response.error_code)

    return await world.until_answered(lambda: world.to_coordinator(ID, request, 6), code)


def new(response: Any) -> tuple[int, int]:
    assert response.error_code == 0, response.error_code
    return response.producer_id, response.producer_epoch


def ongoing(response: Any) -> tuple[int, int]:
    return response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch


async def call(world: CoordinatorWorld, method: str, **fields: Any) -> Any:
    request = getattr(pb, f"{method}Request")(transactional_id=ID, **fields)
    registration = world.coordinator(world.owner_of(ID)).registration
    assert registration is not None
    answer = await world.ports.network.rpc_channel(registration.record.public_rpc_address).call(
        f"/hapax.v1.Transactions/{method}", request.SerializeToString(), 5.0)
    return getattr(pb, f"{method}Response").FromString(answer)


async def prepared(world: CoordinatorWorld) -> tuple[int, int]:
    me = new(await init(world, keep=False))
    assert (await world.produce_v2(ID, me, "t", 0, b"a")).error_code == 0
    assert await world.txn_commit_offset(ID, me, "g", "t", 7) == 0
    return me


def late_transactions(world: CoordinatorWorld) -> int:
    return sum(
        len(node.service.hanging.late) for node in world.cluster.nodes.values()
        if node.role == "broker" and node.service is not None)


def test_a_prepared_transaction_waits_for_its_outcome_through_limits_sweeps_and_a_take_over() -> None:
    for commit in (True, False):
        async def scenario(world: CoordinatorWorld, commit: bool = commit) -> None:
            await world.start(("t", 1))
            me = await prepared(world)
            await asyncio.sleep(30)
            assert late_transactions(world) == 0, "nothing is wrong with it"
            former = world.owner_of(ID)
            await world.stop(former)
            await world.moved_from(former, ID)
            await asyncio.sleep(30)
            assert await world.read_committed_now("t", 0) == []
            described = await call(world, "DescribeTransactionalId")
            assert (described.state, described.two_phase, described.timeout_ms) == ("Ongoing", True, 2**31 - 1)

            kept = await init(world, keep=True)
            assert ongoing(kept) == me and new(kept) > me
            assert (await world.end(ID, me, not commit, version=5)).error_code == ErrorCode.PRODUCER_FENCED
            refused = await world.produce_v2(ID, new(kept), "t", 0, b"b")
            assert refused.error_code != 0
            assert (await world.end(ID, new(kept), commit, version=5)).error_code == 0
            assert await world.read_committed("t", 0) == ([b"a"] if commit else [])
            assert (await world.committed("g", "t", 0, stable=True))[0] == (7 if commit else -1)
            again = await init(world, keep=True)
            assert ongoing(again) == (-1, -1), "it is decided: there is nothing to keep"

        run(scenario, settings=SOON)


def test_an_ordinary_transaction_in_the_same_cluster_still_times_out() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = new(await init(world, keep=False, two_phase=False))
        assert (await world.produce_v2(ID, me, "t", 0, b"a")).error_code == 0
        await asyncio.sleep(3)
        assert (await call(world, "DescribeTransactionalId")).state == "CompleteAbort"

    run(scenario, settings=SOON)


def test_a_transaction_that_is_kept_while_its_time_runs_out_stays() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = new(await init(world, keep=False, two_phase=False))
        assert (await world.produce_v2(ID, me, "t", 0, b"a")).error_code == 0
        await asyncio.sleep(0.9)
        kept = await init(world, keep=True)
        assert ongoing(kept) == me
        await asyncio.sleep(30)
        assert (await world.end(ID, new(kept), True, version=5)).error_code == 0
        assert await world.read_committed("t", 0) == [b"a"]

    run(scenario, settings=SOON)


def test_an_operator_commits_or_aborts_it() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = await prepared(world)
        serial = (await call(world, "DescribeTransactionalId")).serial
        wrong = await call(world, "CommitPrepared", serial=serial + 1, client_id="operator", host="pod")
        assert wrong.error == ErrorCode.INVALID_TXN_STATE
        done = await call(world, "CommitPrepared", serial=serial, client_id="operator", host="pod")
        assert done.error == 0 and done.producer_epoch > me[1]
        assert await world.read_committed("t", 0) == [b"a"]
        assert (await world.end(ID, me, False, version=5)).error_code == ErrorCode.PRODUCER_FENCED
        again = await call(world, "CommitPrepared", serial=serial, client_id="operator", host="pod")
        assert again.error == 0

        async def told() -> bool:
            return any(each["event"] == "producer_fenced" and each["by_client"] == "operator"
                       for each in await world.events())

        await world.cluster.wait_until(told, "the event is written")
        me = new(await init(world, keep=False))
        assert (await world.produce_v2(ID, me, "t", 0, b"b")).error_code == 0
        described = await call(world, "DescribeTransactionalId")
        fenced = await call(
            world, "FenceProducer", instance=described.instance, serial=described.serial, client_id="operator")
        assert fenced.error == 0
        assert await world.read_committed("t", 0) == [b"a"]

    run(scenario, settings=("transaction.two.phase.commit.enable=true",))


def test_it_is_off_by_default() -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start()
        assert (await init(world, keep=False)).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await init(world, keep=True)).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await init(world, keep=True, two_phase=False)).error_code == 0

    run(scenario)

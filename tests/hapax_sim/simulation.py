"""One seed, one history: start a cluster, work on it under faults, heal it, judge what readers see."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hapax_sim.cluster import SimCluster
from hapax_sim.faults import Faults
from hapax_sim.history import Outcome, judge, judge_copies
from hapax_sim.loop import SimLoop
from hapax_sim.workload import COPIES, PLAIN, Workload


@dataclass(frozen=True)
class Result:
    """What one simulation did and found."""

    seed: int
    logical_s: float
    transactions: int
    committed: int
    records: int
    faults: Counter[str]
    anomalies: list[str]
    trace_hash: str

    @property
    def ok(self) -> bool:
        return not self.anomalies


def simulate(
    seed: int, logical_s: float, *, faults_every_s: float = 3.0, listener: Callable[[str], None] | None = None
) -> Result:
    """Runs one history to its end. `listener` gets each line of the trace."""
    loop = SimLoop()
    loop.listener = listener
    loop.set_exception_handler(lambda _, context: loop.trace(f"unhandled: {context.get('exception')!r}"))
    asyncio.set_event_loop(loop)
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        return loop.run_until_complete(_history(loop, seed, logical_s, faults_every_s))
    finally:
        # What the dead left behind is taken apart only now, and may complain that its loop is gone.
        asyncio.set_event_loop(None)
        gc.collect()
        sys.unraisablehook = hook


async def _history(loop: SimLoop, seed: int, logical_s: float, faults_every_s: float) -> Result:
    seeds = random.Random(seed)
    cluster = SimCluster(loop, seeds.randrange(1 << 60), brokers=2, coordinators=2)
    cluster.start_all()
    await cluster.wait_until(cluster.ready, "cluster is ready")
    workload = Workload(cluster, seeds.randrange(1 << 60))
    await workload.create_topics()
    workload.start()
    faults = Faults(cluster, workload, seeds.randrange(1 << 60), faults_every_s)
    injecting = asyncio.ensure_future(faults.run())
    await asyncio.sleep(logical_s)
    injecting.cancel()
    await asyncio.sleep(7)  # the longest fault is over
    faults.heal()
    loop.trace("healed")
    anomalies: list[str] = []
    try:
        await cluster.wait_until(cluster.ready, "every node serves again")
        workload.stopping = True
        await cluster.wait_until(workload.finished, "every client comes to its end", 300)
        # What a killed client left open is aborted by its time-out.
        await cluster.wait_until(lambda: _all_decided(workload), "the last stable offset reaches the end", 60)
        committed = await workload.read_everything(committed=True)
        uncommitted = await workload.read_everything(committed=False)
    except AssertionError as error:
        anomalies.append(f"stuck: {error}")
    else:
        history = workload.history
        history.attempted += [s for t in history.transactions for s in t.records]
        anomalies += judge(history, committed, uncommitted)
        anomalies += judge_copies(
            {w: v for w, v in committed.items() if w[0] == PLAIN},
            {w: v for w, v in committed.items() if w[0] == COPIES},
        )
    for anomaly in anomalies:
        loop.trace(f"ANOMALY {anomaly}")
    transactions = workload.history.transactions
    return Result(
        seed,
        loop.time(),
        len(transactions),
        sum(t.outcome is Outcome.COMMITTED for t in transactions),
        sum(len(t.records) for t in transactions) + len(workload.history.acknowledged),
        faults.injected,
        anomalies,
        loop.trace_hash(),
    )


async def _all_decided(workload: Workload) -> bool:
    return not await workload.undecided()

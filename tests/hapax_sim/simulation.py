"""One seed, one history: starts a cluster, uses it under faults, heals it, and judges what readers see."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hapax.broker.scrubber import unchecked
from hapax.log.segment import Segment
from hapax.runtime import supervision
from hapax.runtime.self_corrections import CORRECTIONS
from hapax_checker import Operation
from hapax_sim.cluster import SimCluster
from hapax_sim.far import far_offsets
from hapax_sim.faults import Faults
from hapax_sim.judgement import judge
from hapax_sim.loop import CURRENT, Deadlock, Runaway, SimLoop
from hapax_sim.observe import Served
from hapax_sim.parts import PARTS
from hapax_sim.parts.part import Part
from hapax_sim.workload import Workload


@dataclass(frozen=True)
class Scene:
    """What is simulated. `faults_every_s` 0: no faults."""

    logical_s: float = 60.0
    brokers: int = 2
    coordinators: int = 2
    controllers: int = 1
    replication: int = 1
    appenders: int = 3
    spreaders: int = 0
    rate: float = 0.0
    """Transactions of all spreaders together for each logical second."""
    pause_s: tuple[float, float] = (0.0, 0.1)
    faults_every_s: float = 3.0
    faults: tuple[str, ...] = ()
    """Only these kinds of faults. Empty: all."""
    settings: tuple[str, ...] = ()
    timer_error_ms: float = 1.0
    """Maximum time by which timers fire early or late."""
    programs: bool = True
    """Whether the programs of `clients` run in addition to those of the parts."""
    parts: tuple[str, ...] = ()
    """Further programs, each with its own topics and verdict: names of `hapax_sim.parts.PARTS`."""
    with_logins: bool = False
    """Clients log in: see `hapax_sim.logins`."""
    far: bool = False
    """Compacted logs begin near 2^31 and 2^32: see `hapax_sim.far`."""


@dataclass
class Result:
    """What one simulation did and found."""

    seed: int
    logical_s: float = 0.0
    cpu_s: float = 0.0
    """Processor time of the whole simulation, including the verdict."""
    transactions: int = 0
    committed: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)
    trace_hash: str = ""
    operations: Sequence[Operation] = ()

    @property
    def ok(self) -> bool:
        return not self.anomalies


class _Remarks(logging.Handler):
    """The services' own log lines in the readable trace, each with its process."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        process = CURRENT.get()
        fields = " ".join(f"{k}={v}" for k, v in getattr(record, "fields", {}).items())
        where = "-" if process is None else process.name
        self._loop.remark(f"{where} {record.levelname.lower()} {record.getMessage()} {fields}")


def simulate(seed: int, scene: Scene, *, listener: Callable[[str], None] | None = None) -> Result:
    """Runs one history to its end. `listener` is called with each line of the trace."""
    loop = SimLoop()
    loop.listener = listener
    loop.set_exception_handler(lambda _, context: loop.trace(f"unhandled: {context.get('exception')!r}"))
    asyncio.set_event_loop(loop)
    result = Result(seed)
    began = time.process_time()
    failed_before, corrected_before = supervision.FAILURES.copy(), CORRECTIONS.copy()
    served = Served()
    parts = [PARTS[name]() for name in scene.parts]
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    logging.getLogger("asyncio").disabled = True
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    services = logging.getLogger("hapax")
    remarks = _Remarks(loop)
    services.addHandler(remarks)
    level = services.level
    if listener is not None:
        services.setLevel(logging.INFO)
    propagates, services.propagate = services.propagate, False
    try:
        with contextlib.ExitStack() as watching:
            watching.enter_context(served.watching())
            if scene.far:
                watching.enter_context(far_offsets(seed))
            for part in parts:
                if hasattr(part, "watching"):
                    watching.enter_context(part.watching())
            loop.run_until_complete(_history(loop, scene, result, served, parts))
    except (Deadlock, Runaway) as error:
        result.anomalies.append(f"{type(error).__name__.lower()}: {error}")
    finally:
        corrected = CORRECTIONS - corrected_before
        result.anomalies += [f"self-correction: {kind} {times} times" for kind, times in sorted(corrected.items())]
        failed = supervision.FAILURES - failed_before
        result.anomalies += [f"task failed: {name} {times} times" for name, times in sorted(failed.items())]
        result.logical_s = loop.time()
        result.cpu_s = time.process_time() - began
        result.trace_hash = loop.trace_hash()
        # Objects of dead processes are taken apart only now, and may complain that their loop is gone.
        gc.set_threshold(*thresholds)
        gc.collect()
        asyncio.set_event_loop(None)
        sys.unraisablehook = hook
        services.removeHandler(remarks)
        services.setLevel(level)
        services.propagate = propagates
    return result


async def _scrubbed(cluster: SimCluster) -> None:
    """Every closed segment has been scrubbed again, and damaged replicas have been copied again."""
    brokers = [node for node in cluster.nodes.values() if node.role == "broker"]

    def segments() -> list[Segment]:
        return [
            segment for node in brokers if node.service is not None
            for replica in node.service.partitions.replicas.values() for segment in replica.log.segments[:-1]
        ]

    def whole() -> bool:
        view = brokers[0].service.view if brokers[0].service is not None else None
        return view is not None and cluster.ready() and all(
            len(p.record.isr) == len(p.record.replicas) for p in view.partitions()
        ) and not any(segment.damage is not None or unchecked(segment) for segment in segments())

    for segment in segments():
        segment.sound.doubt()
        segment.surveyed_ms = -1
    await cluster.wait_until(whole, "nothing is damaged any more, and everything is in sync")


async def _history(loop: SimLoop, scene: Scene, result: Result, served: Served, parts: list[Part]) -> None:
    seeds = random.Random(result.seed)
    cluster = SimCluster(
        loop, seeds.randrange(1 << 60), brokers=scene.brokers, coordinators=scene.coordinators,
        controllers=scene.controllers, replication=scene.replication, settings=scene.settings,
        with_logins=scene.with_logins,
    )  # fmt: skip
    if scene.timer_error_ms:
        loop.skew_timers(seeds.randrange(1 << 60), scene.timer_error_ms / 1000)
    cluster.start_all()
    await cluster.wait_until(cluster.ready, "cluster is ready")
    workload = Workload(
        cluster, seeds.randrange(1 << 60), appenders=scene.appenders, pause_s=scene.pause_s,
        replication=scene.replication, spreaders=scene.spreaders, rate=scene.rate, programs=scene.programs,
        parts=parts,
    )  # fmt: skip
    await workload.create_topics()
    workload.start()
    faults = Faults(cluster, workload, seeds.randrange(1 << 60), scene.faults_every_s or 1e9)
    if scene.faults:
        faults.kinds = {name: faults.kinds[name] for name in scene.faults}
        faults.named = 1
    result.faults = faults.injected
    injecting = asyncio.ensure_future(faults.run())
    await asyncio.sleep(scene.logical_s)
    injecting.cancel()
    faults.heal()
    loop.trace("healed")
    recorder = workload.recorder
    try:
        await cluster.wait_until(cluster.ready, "every node serves again")
        workload.stopping = True
        await cluster.wait_until(workload.finished, "every client comes to its end", 300, workload.unfinished)
        # Transactions that a killed client left open are aborted by their time-outs.
        await cluster.wait_until(workload.decided, "the last stable offset reaches the end", 60, workload.undecided)
        if faults.flipped:
            await _scrubbed(cluster)
        seen = await workload.read_everything()
        ends = await workload.ends()
        await workload.finish_parts()
        await cluster.wait_until(cluster.ready, "every node serves at the end")
    except AssertionError as error:
        result.anomalies += [*recorder.complaints, f"stuck: {error}"]
    else:
        result.anomalies += judge(recorder, seen, ends, cluster, served, workload.parts)
    for anomaly in result.anomalies:
        loop.trace(f"ANOMALY {anomaly}")
    result.operations = recorder.operations
    result.counts = recorder.counts
    result.committed = recorder.counts["txn ok"] + recorder.counts["token committed"]
    result.transactions = result.committed + recorder.counts["txn fail"] + recorder.counts["txn info"]

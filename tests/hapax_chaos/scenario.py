"""One run of one scenario with one kind of client: work, fault, heal, work again, read everything, judge."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from hapax.client import Admin, Consumer, HapaxError, NewTopic, TopicPartition
from hapax.codec.batch import iterate_batches
from hapax.log.layout import LOG
from hapax_chaos.catalogue import Scenario
from hapax_chaos.faults import Run
from hapax_chaos.history import HistoryFile, merge
from hapax_chaos.world import NotAtRest, World, until
from hapax_checker import Batch, Operation, Replica, check, contiguous_sequences, replicas_equal, stable_offsets
from hapax_checker.record import line_of

PARTITIONS: Final = 2
CLIENTS: Final = 2
_PAUSE_S: Final = 0.02
_WARM_OK: Final = 12
_AFTER_OK: Final = 12
"""Number of transactions that each client must commit before the fault begins, and again after it has ended."""
_WARM_S: Final = 60.0
_FAULT_S: Final = 60.0
_PROGRESS_S: Final = 60.0
_HUNG_S: Final = 12.0
_STOP_S: Final = 40.0
_TELLS_S: Final = 10.0
_READ_S: Final = 30.0
_COPIES_S: Final = 15.0


@dataclass(slots=True)
class RunVerdict:
    """The result of a run. It passed if `findings` is empty; each finding begins with its name."""

    scenario: str
    client: str
    seed: int
    seconds: float = 0.0
    transactions: dict[str, int] = field(default_factory=dict)
    """Numbers of transactions, by ok, fail and info."""
    happened: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    idle: bool = False
    """Whether the fault met no target with this kind of client."""
    cluster_unusable: bool = False

    @property
    def passed(self) -> bool:
        return not self.findings

    def to_json(self) -> dict[str, object]:
        return asdict(self) | {"passed": self.passed}


class Execution:
    """One scenario in a world in which no fault is active. `history` is complete when `run` returns."""

    def __init__(
        self, world: World, scenario: Scenario, client: str, seed: int, folder: Path,
        isolation: str = "read_committed",
    ) -> None:  # fmt: skip
        self._world = world
        self._scenario = scenario
        self._folder = folder
        self._isolation = isolation
        self._topic = f"t{world.scenarios}"
        self._topics = {self._topic: PARTITIONS}
        """Those that the clients write, each with its number of partitions."""
        self._started: Counter[str] = Counter()
        self._files: list[Path] = []
        self.history: list[Operation] = []
        self.verdict = RunVerdict(scenario.name, client, seed)
        names = [f"c{world.scenarios}-{number}" for number in range(CLIENTS)]
        self._run = Run(
            world, self._topic, names, random.Random(seed), self._start_client, self._in_transaction, self._told,
            lambda name: str(self._work_of(name)["kind"]))
        world.scenarios += 1

    async def run(self) -> RunVerdict:
        began = time.monotonic()
        verdict = self.verdict
        try:
            await self._make_topic()
            for name in self._run.clients:
                self._start_client(name)
            await self._committed(_WARM_OK, 0.0, _WARM_S, "before the fault")
            await self._fault()
            healed = time.monotonic()
            await self._world.heal()
            await self._committed(_AFTER_OK, healed, _PROGRESS_S, "after the fault")
            await self._world.at_rest()
            await self._stop_clients()
            await self._judge()
        except NotAtRest as error:
            verdict.findings.append(f"not-at-rest: {error}")
            verdict.cluster_unusable = True
        except Finding as finding:
            verdict.findings.append(str(finding))
            verdict.cluster_unusable = True
        finally:
            self._end_clients()
            verdict.findings += self._run.complaints
            verdict.happened = [*self._run.said, *self._world.ended]
            verdict.idle = self._run.idle
            verdict.seconds = round(time.monotonic() - began, 1)
            verdict.transactions = dict(Counter(o.type for o in self.history if o.f == "txn" and o.type != "invoke"))
        return verdict

    # --- the work

    async def _make_topic(self) -> None:
        replication = self._world.layout.replication
        # Small segments and dense indexes, so that a few seconds of work leave files of every kind.
        config = {"segment.bytes": "4096", "index.interval.bytes": "256"}
        if replication >= 3:
            config["min.insync.replicas"] = "2"
        async with Admin(self._world.client()) as admin:
            await admin.create_topics([
                NewTopic(topic, partitions, replication, config) for topic, partitions in self._topics.items()])
            if self._world.trust is not None:
                await self._world.trust.permit(admin, self._programs(), self._topics, self._run.group)
        await self._world.at_rest()

    def _programs(self) -> list[str]:
        return self._run.clients

    def _start_client(self, name: str) -> None:
        """`name` is the transactional id, followed by -again for a second process."""
        self._started[name] += 1
        path = self._folder / f"{name}.{self._started[name]}.jsonl"
        self._files.append(path)
        transactional_id = name.removesuffix("-again")
        self._world.start_client(name, {
            **self._world.program(transactional_id), "topic": self._topic,
            "partitions": self._topics[self._topic], "name": transactional_id, "history": str(path),
            "seed": self.verdict.seed, "pause_s": _PAUSE_S,
            "generation": f"{name.removeprefix(transactional_id)}{self._started[name]}",
            "isolation": self._isolation, **self._work_of(transactional_id),
        })

    def _work_of(self, name: str) -> dict[str, object]:
        """What a client process does, and with which client."""
        return {"work": "append", "kind": self.verdict.client}

    def _in_transaction(self, name: str) -> bool:
        said = merge([self._folder / f"{name}.{self._started[name]}.jsonl"], since_start=False)
        return bool(said) and (said[-1].type, said[-1].f) == ("invoke", "txn")

    def _told(self, name: str) -> list[Operation]:
        own = [path for path in self._files if path.exists() and path.name.startswith(f"{name}.")]
        return merge(own, since_start=False)

    def _clients(self) -> list[str]:
        return [name for name in self._started if self._world.runs(name)]

    async def _committed(self, count: int, since: float, timeout: float, when: str) -> None:
        """Waits until each transactional id has committed that many times since then, in any of its processes."""
        def counts() -> Counter[str]:
            return Counter(
                str(o.process).partition("/")[0]
                for o in self._merged() if o.f == "txn" and o.type == "ok" and o.time >= since
            )

        def enough() -> bool:
            if since:
                self._restart_hung(since)
                self._world.supervise()
            return all(counts()[name] >= count for name in self._run.clients)

        try:
            await until(enough, timeout)
        except TimeoutError:
            said = "; ".join(f"{name}: {counts()[name]}" for name in self._run.clients)
            raise Finding(f"no-progress: {when}, transactions committed in {timeout:.0f} s: {said}") from None

    def _restart_hung(self, since: float) -> None:
        """Does what a supervisor does with a program that hangs. librdkafka's `send_offsets_to_transaction` may wait
        forever, despite its time-out, if a coordinator was away during the call (confluentinc/librdkafka#5511)."""
        if self.verdict.client != "librdkafka":
            return
        now = time.monotonic()
        for name in self._run.clients:
            if self._started[name] == 1 and now - since > _HUNG_S:
                said = [o.time for o in self._merged() if str(o.process).partition("/")[0] == name]
                if now - max(said, default=since) > _HUNG_S:
                    self._run.say(f"restart {name}, which hung")
                    self._world.kill(name)
                    self._start_client(name)

    def _merged(self) -> list[Operation]:
        return merge((path for path in self._files if path.exists()), since_start=False)

    async def _fault(self) -> None:
        try:
            async with asyncio.timeout(_FAULT_S):
                await self._scenario.fault(self._run)
        except TimeoutError:
            self._run.say("the fault did not end in time")

    async def _stop_clients(self) -> None:
        for name in self._clients():
            self._world.nursery.signal(name, 15)
        try:
            await until(lambda: not self._clients(), _STOP_S)
        except TimeoutError:
            for name in self._clients():
                if not await self._asks_for_ever(name):
                    raise Finding(f"client-stuck: {name} did not end in {_STOP_S:.0f} s") from None
                self._run.say(f"end {name}, which hung")
                self._world.kill(name)

    async def _asks_for_ever(self, name: str) -> bool:
        """Whether a program is in the call of librdkafka that may never return (see `_restart_hung`)."""
        log = self._world.log(name)
        before = log.stat().st_size
        self._world.nursery.signal(name, signal.SIGUSR1)

        def told() -> str:
            return log.read_bytes()[before:].decode(errors="replace")

        await until(lambda: "<module>" in told(), _TELLS_S)
        return self.verdict.client == "librdkafka" and " in send_offsets\n" in told()

    def _end_clients(self) -> None:
        for name in self._started:
            self._world.kill(name)

    # --- the end

    async def _judge(self) -> None:
        verdict = self.verdict
        try:
            async with asyncio.timeout(_READ_S):
                ends = await self._read_everything()
        except (TimeoutError, HapaxError) as error:
            raise Finding(f"unreadable: {error!r} after {_READ_S:.0f} s") from error
        self.history = merge(self._files)
        report = check(self.history)
        verdict.findings += report.sentences()
        verdict.findings += stable_offsets(ends)
        verdict.findings += self._judge_further()
        verdict.findings += await self._world.own_faults()
        for name, (_, end) in ends.items():
            verdict.findings += await self._judge_copies(name, end)
        (self._folder / "history.jsonl").write_text("".join(line_of(o) + "\n" for o in self.history))

    def _judge_further(self) -> list[str]:
        """What the work of this execution has to keep besides."""
        return []

    async def _read_everything(self) -> dict[str, tuple[int, int]]:
        """A new client reads from the beginning to the known ends, and waits until no transaction is open. Returns
        (last stable offset, high watermark) of each partition."""
        where = [
            TopicPartition(topic, p) for topic, count in self._topics.items()  # type: ignore[arg-type]
            for p in range(count)
        ]
        settings = self._world.client(enable__auto__commit="false", auto__offset__reset="earliest")
        path = self._folder / "reader.jsonl"
        self._files.append(path)
        history = HistoryFile(path)
        history.process = "reader/1"
        async with (
            Consumer({**settings, "isolation.level": "read_committed"}) as consumer,
            Consumer({**settings, "isolation.level": "read_uncommitted"}) as outside,
        ):
            while True:
                last = await outside.end_offsets(where)
                stable = await consumer.end_offsets(where)
                if last == stable:
                    break
                await asyncio.sleep(0.1)
            consumer.assign(where)
            history.note("assign", [f"{p.topic}-{p.partition}" for p in where])
            while any([await consumer.position(p) < stable[p] for p in where]):
                history.write("invoke", "poll", [["poll"]])
                found: dict[str, list[list[object]]] = {}
                for record in await consumer.poll(200):
                    value = (record.value or b"").decode()
                    found.setdefault(f"{record.topic}-{record.partition}", []).append([record.offset, value])
                history.write("ok", "poll", [["poll", found]])
        return {f"{p.topic}-{p.partition}": (stable[p], last[p]) for p in where}

    async def _judge_copies(self, name: str, end: int) -> list[str]:
        """Compares the files of a partition's replicas, byte by byte, up to the high watermark, and checks their
        sequences."""
        copies: list[Replica] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COPIES_S):
                while len(copies) < self._world.layout.replication:
                    copies = self._copies(name, end)
                    await asyncio.sleep(0.05)
        if len(copies) < self._world.layout.replication:
            return [f"replica-behind: {name}: {len(copies)} replicas reach the high watermark {end}"]
        headers = [
            header for _, data in copies[0].batches for _, header in iterate_batches(data) if not header.is_control
        ]
        batches = [
            Batch(h.base_offset, h.producer_id, h.producer_epoch, h.base_sequence, h.record_count) for h in headers
        ]
        return [*replicas_equal(name, copies), *contiguous_sequences(name, batches)]

    def _copies(self, name: str, end: int) -> list[Replica]:
        """The replicas that have everything below `end`."""
        copies = []
        for process in self._world.of_kind("broker"):
            folder = self._world.nursery.seen(self._world.data(process.name)) / name
            batches: list[tuple[int, bytes]] = []
            for log in sorted(folder.glob(f"*{LOG}")):
                data = log.read_bytes()
                batches += [
                    (header.base_offset, data[position : position + header.size])
                    for position, header in iterate_batches(data)
                ]
            reached = 0
            for _, header in iterate_batches(batches[-1][1]) if batches else ():
                reached = header.next_offset
            if reached >= end and end > 0:
                copies.append(Replica(int(process.name.rpartition("-")[2]), end, batches))
        return copies


class Finding(Exception):
    """The run cannot continue. The text is the finding."""

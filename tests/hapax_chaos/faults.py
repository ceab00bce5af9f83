"""Faults, each as a coroutine that causes it, lets it last, and ends it.

A fault chooses its target when it begins, from the cluster's state at that time: the leader of the topic's first
partition, or the owner of a client's transactional id. `World.heal` repairs what a fault leaves unrepaired when its
time is over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hapax.codec.batch import iterate_batches
from hapax.codec.metadata import OFFSETS_TOPIC, TXN_STATE_TOPIC
from hapax.core.hashing import shard_of
from hapax.log.layout import (
    HIGH_WATERMARK_CHECKPOINT,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
)
from hapax_chaos.proxy import Action, Rule
from hapax_chaos.world import World
from hapax_checker import Operation

SESSION_S: Final = 4.0
"""broker.session.timeout.ms of the worlds. A process that stands still for longer loses its leaderships or shards."""


@dataclass(slots=True)
class Run:
    """The part of a run that a fault uses."""

    world: World
    topic: str
    clients: list[str]
    random: random.Random
    start_client: Callable[[str], None]
    """Starts the next process under a client's name."""
    in_transaction: Callable[[str], bool]
    """Whether a client has begun a transaction whose outcome it has not recorded yet."""
    told: Callable[[str], list[Operation]]
    """What a client's processes have recorded so far, with times of `time.monotonic`."""
    kind_of: Callable[[str], str]
    """native or librdkafka"""
    group: str = ""
    """The group whose members the clients are; empty if they are in none."""
    said: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Findings of the fault itself, each beginning with its name."""
    idle: bool = False
    """Whether the fault met no target: the client never sends such a request, or the file does not exist."""

    def say(self, what: str) -> None:
        self.said.append(what)


Fault = Callable[[Run], Awaitable[None]]
Target = Callable[[Run], str]

# --- targets ------------------------------------------------------------------------------------------------------


def txn_log_leader(run: Run) -> str:
    cluster = run.world.view.cluster
    assert cluster is not None
    return run.world.leader(TXN_STATE_TOPIC, shard_of(run.clients[0], cluster.txn_shards))


def other_coordinator(run: Run) -> str:
    owner = run.world.coordinator(run.clients[0])
    return next((p.name for p in run.world.of_kind("coordinator") if p.name != owner), owner)


def group_log_leader(run: Run) -> str:
    cluster = run.world.view.cluster
    assert cluster is not None
    return run.world.leader(OFFSETS_TOPIC, shard_of(run.group, cluster.group_shards))


TARGETS: Final[dict[str, Target]] = {
    "leader": lambda run: run.world.leader(run.topic),
    "follower": lambda run: run.world.follower(run.topic),
    "txn-log-leader": txn_log_leader,
    "coordinator": lambda run: run.world.coordinator(run.clients[0]),
    "other-coordinator": other_coordinator,
    "group-coordinator": lambda run: run.world.coordinator(run.group, "group"),
    "group-log-leader": group_log_leader,
    "controller": lambda run: run.world.controller(),
    "pid": lambda run: "pid-0",
    "etcd": lambda run: "etcd",
    "client": lambda run: run.clients[0],
    "last-client": lambda run: run.clients[-1],
    "clients": lambda run: "clients",
}  # fmt: skip

# --- processes ----------------------------------------------------------------------------------------------------


def kill(target: Target, down_s: float = 0.0, times: int = 1) -> Fault:
    async def fault(run: Run) -> None:
        for _ in range(times):
            name = target(run)
            run.say(f"kill {name}")
            run.world.kill(name)
            await asyncio.sleep(down_s)
            if name in run.world.processes:
                run.world.start(name)
            else:
                run.start_client(name)
            if times > 1:
                await asyncio.sleep(1.0)

    return fault


def stop(target: Target) -> Fault:
    """A planned stop: the process hands over, ends, and is started again."""

    async def fault(run: Run) -> None:
        name = target(run)
        run.say(f"stop {name}")
        await run.world.stop(name)
        run.world.start(name)

    return fault


def leave(target: Target, away_s: float = 1.0) -> Fault:
    """A client ends as planned and leaves its group. Another process takes its place."""

    async def fault(run: Run) -> None:
        name = target(run)
        run.say(f"stop {name}")
        await run.world.stop(name)
        await asyncio.sleep(away_s)
        run.start_client(name)

    return fault


def freeze(target: Target, seconds: float) -> Fault:
    async def fault(run: Run) -> None:
        name = target(run)
        run.say(f"freeze {name} for {seconds} s")
        run.world.freeze(name)
        await asyncio.sleep(seconds)
        run.world.thaw(name)

    return fault


async def _freeze_in_transaction(run: Run, name: str) -> None:
    """A client that is frozen between two transactions would only find its next write refused."""
    run.world.freeze(name)
    while not run.in_transaction(name):
        run.world.thaw(name)
        await asyncio.sleep(run.random.uniform(0.001, 0.01))
        run.world.freeze(name)


def freeze_in_transaction(target: Target, seconds: float, times: int = 1) -> Fault:
    async def fault(run: Run) -> None:
        name = target(run)
        for _ in range(times):
            await _freeze_in_transaction(run, name)
            run.say(f"freeze {name} for {seconds} s within a transaction")
            await asyncio.sleep(seconds)
            run.world.thaw(name)
            await asyncio.sleep(2.0)

    return fault


def zombie(run: Run) -> Awaitable[None]:
    """A client is frozen within a transaction, another process starts under its name, and the first one is resumed."""

    async def fault() -> None:
        name = run.clients[0]
        await _freeze_in_transaction(run, name)
        run.say(f"a second {name} while the first stands still within a transaction")
        run.start_client(f"{name}-again")
        await asyncio.sleep(2.0)
        run.world.thaw(name)

    return fault()


def kill_all(*kinds: str) -> Fault:
    """Kills all of them at once, as a loss of power does, and restarts them together."""

    async def fault(run: Run) -> None:
        names = [p.name for p in run.world.processes.values() if p.kind in kinds]
        run.say(f"kill {' '.join(names)}")
        for name in names:
            run.world.kill(name)
        await asyncio.sleep(0.3)
        for name in names:
            run.world.start(name)

    return fault


def freeze_all(kind: str, seconds: float) -> Fault:
    async def fault(run: Run) -> None:
        names = [p.name for p in run.world.of_kind(kind)]
        run.say(f"freeze {' '.join(names)} for {seconds} s")
        for name in names:
            run.world.freeze(name)
        await asyncio.sleep(seconds)
        for name in names:
            run.world.thaw(name)

    return fault


def rolling_stop(kind: str) -> Fault:
    async def fault(run: Run) -> None:
        for process in run.world.of_kind(kind):
            run.say(f"stop {process.name}")
            await run.world.stop(process.name)
            run.world.start(process.name)
            await asyncio.sleep(0.5)

    return fault


# --- disks --------------------------------------------------------------------------------------------------------


def disk(call: str, argument: str, target: Target, part: str = "", seconds: float = 3.0) -> Fault:
    """`call`, `argument`: see tests/faults/faults.c. `part`: a prefix of the folders below the node's. "topic": the
    folders of the run's topic."""

    async def fault(run: Run) -> None:
        name = target(run)
        folder = run.topic if part == "topic" else part
        run.say(f"{call} {argument} at {name}/{folder}")
        rule = run.world.rules.add(call, argument, f"/{name}/{folder}")
        await asyncio.sleep(seconds)
        run.world.rules.remove(rule)
        if not run.world.runs(name):
            run.say(f"{name} had ended")
            run.world.start(name)

    return fault


def disks(call: str, argument: str, seconds: float = 2.5) -> Fault:
    async def fault(run: Run) -> None:
        run.say(f"{call} {argument} at every broker")
        rule = run.world.rules.add(call, argument, "/broker-")
        await asyncio.sleep(seconds)
        run.world.rules.remove(rule)

    return fault


def fill(target: Target | None, seconds: float = 2.5) -> Fault:
    """Fills a small disk completely; with None the disks of all brokers."""

    async def fault(run: Run) -> None:
        world = run.world
        names = [p.name for p in world.of_kind("broker")] if target is None else [target(run)]
        ballasts = [world.nursery.seen(world.data(name)) / "ballast" for name in names]
        for name, ballast in zip(names, ballasts, strict=True):
            run.say(f"fill the disk of {name}")
            with ballast.open("wb", buffering=0) as file:
                chunk = bytes(1 << 16)
                while chunk:
                    try:
                        file.write(chunk)
                    except OSError:
                        chunk = chunk[: len(chunk) // 2]
        await asyncio.sleep(seconds)
        for ballast in ballasts:
            ballast.unlink()

    return fault


Damage = Callable[[Path, random.Random], str]
"""(folder of a partition, randomness) -> description of the damage. Empty if there was nothing to damage."""


def damage(how: Damage, target: Target) -> Fault:
    """Stops a node and changes one of its files before it restarts."""

    async def fault(run: Run) -> None:
        name = target(run)
        run.world.kill(name)
        folder = run.world.data(name)
        done = how(folder / f"{run.topic}-0", run.random)
        run.say(f"kill {name}; {done or 'no such file'}")
        run.idle = run.idle or not done
        await asyncio.sleep(0.5)
        run.world.start(name)

    return fault


def _newest(folder: Path, suffix: str) -> Path | None:
    found = sorted(path for path in folder.glob(f"*{suffix}") if path.stat().st_size or suffix == LOG)
    return found[-1] if found else None


def torn_tail(folder: Path, rng: random.Random) -> str:
    """Leaves half a batch after the last whole one, like a write that a kill interrupted."""
    log = _newest(folder, LOG)
    assert log is not None
    data = log.read_bytes()
    last = data[-200:] if len(data) > 200 else bytes(61)
    with log.open("ab") as file:
        file.write(last[: len(last) // 2])
    return f"half a batch behind {log.name}"


def zeros_behind(folder: Path, rng: random.Random) -> str:
    """Leaves zeros at the end, as file systems do with a file that grew before a loss of power."""
    log = _newest(folder, LOG)
    assert log is not None
    with log.open("ab") as file:
        file.write(bytes(4096))
    return f"zeros behind {log.name}"


def noise_behind(folder: Path, rng: random.Random) -> str:
    log = _newest(folder, LOG)
    assert log is not None
    with log.open("ab") as file:
        file.write(rng.randbytes(3000))
    return f"noise behind {log.name}"


def flipped_bit(folder: Path, rng: random.Random, share: tuple[float, float] = (0.0, 1.0)) -> str:
    """Flips one stored bit in that part of a segment."""
    log = rng.choice(sorted(folder.glob(f"*{LOG}")))
    data = bytearray(log.read_bytes())
    if not data:
        return ""
    at = int(len(data) * rng.uniform(*share)) % len(data)
    data[at] ^= 1 << rng.randrange(8)
    log.write_bytes(data)
    return f"a bit flipped at {at} of {len(data)} in {log.name}"


def flipped_bit_early(folder: Path, rng: random.Random) -> str:
    return flipped_bit(folder, rng, (0.0, 0.3))


def flipped_bit_late(folder: Path, rng: random.Random) -> str:
    return flipped_bit(folder, rng, (0.9, 1.0))


def lost_tail(folder: Path, rng: random.Random) -> str:
    """Removes the last batches although they were synced, like a disk that reported a sync it did not do."""
    log = _newest(folder, LOG)
    assert log is not None
    data = log.read_bytes()
    ends = [position for position, _ in iterate_batches(data)]
    if not ends:
        return ""
    cut = ends[-min(3, len(ends))]
    with log.open("r+b") as file:
        file.truncate(cut)
    return f"cut off {log.name} at {cut}, {min(3, len(ends))} batches before its end"


def _removed(suffix: str) -> Damage:
    def how(folder: Path, rng: random.Random) -> str:
        gone = sorted(folder.glob(f"*{suffix}"))
        for path in gone:
            path.unlink()
        return f"{len(gone)} *{suffix} removed" if gone else ""

    return how


def _halved(suffix: str) -> Damage:
    def how(folder: Path, rng: random.Random) -> str:
        path = _newest(folder, suffix)
        if path is None:
            return ""
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        return f"{path.name} cut in half"

    return how


def _scrambled(suffix: str) -> Damage:
    def how(folder: Path, rng: random.Random) -> str:
        path = _newest(folder, suffix)
        if path is None:
            return ""
        path.write_bytes(rng.randbytes(max(64, path.stat().st_size)))
        return f"{path.name} overwritten with noise"

    return how


def lost_high_watermarks(folder: Path, rng: random.Random) -> str:
    (folder.parent / HIGH_WATERMARK_CHECKPOINT).unlink(missing_ok=True)
    return f"{HIGH_WATERMARK_CHECKPOINT} removed"


def lost_memory(folder: Path, rng: random.Random) -> str:
    (folder.parent / "metadata-seen.json").unlink(missing_ok=True)
    return "metadata-seen.json removed"


DAMAGES: Final[dict[str, Damage]] = {
    "torn-tail": torn_tail, "zeros-behind": zeros_behind, "noise-behind": noise_behind, "lost-tail": lost_tail,
    "bit-flip-early": flipped_bit_early, "bit-flip-late": flipped_bit_late,
    "no-index": _removed(INDEX), "half-index": _halved(INDEX), "noise-index": _scrambled(INDEX),
    "no-timeindex": _removed(TIME_INDEX), "noise-timeindex": _scrambled(TIME_INDEX),
    "no-txnindex": _removed(TXN_INDEX), "noise-txnindex": _scrambled(TXN_INDEX),
    "no-snapshot": _removed(SNAPSHOT), "noise-snapshot": _scrambled(SNAPSHOT),
    "no-epochs": _removed(LEADER_EPOCH_CHECKPOINT), "noise-epochs": _scrambled(LEADER_EPOCH_CHECKPOINT),
    "no-high-watermarks": lost_high_watermarks, "no-memory": lost_memory,
}  # fmt: skip

# --- network ------------------------------------------------------------------------------------------------------


def drop(source: Target, target: Target, seconds: float = 3.0) -> Fault:
    """Drops packets in one direction only: answers still arrive."""

    async def fault(run: Run) -> None:
        assert run.world.bridge is not None
        a, b = source(run), target(run)
        run.say(f"drop {a} -> {b} for {seconds} s")
        run.world.bridge.drop(a, b)
        await asyncio.sleep(seconds)
        run.world.bridge.heal()

    return fault


def isolate(target: Target, seconds: float = 3.0) -> Fault:
    async def fault(run: Run) -> None:
        bridge = run.world.bridge
        assert bridge is not None
        alone = target(run)
        run.say(f"isolate {alone} for {seconds} s")
        for other in bridge.addresses:
            if other != alone:
                bridge.drop(alone, other)
                bridge.drop(other, alone)
        await asyncio.sleep(seconds)
        bridge.heal()

    return fault


def lossy(target: Target, percent: int, seconds: float = 4.0) -> Fault:
    """Drops a share of all packets to and from a node."""

    async def fault(run: Run) -> None:
        bridge = run.world.bridge
        assert bridge is not None
        name = target(run)
        run.say(f"lose {percent} % of the packets of {name} for {seconds} s")
        for other in bridge.addresses:
            if other != name:
                bridge.drop(name, other, percent)
                bridge.drop(other, name, percent)
        await asyncio.sleep(seconds)
        bridge.heal()

    return fault


def resets(source: Target, target: Target, seconds: float = 2.5) -> Fault:
    async def fault(run: Run) -> None:
        assert run.world.bridge is not None
        a, b = source(run), target(run)
        run.say(f"reset connections {a} -> {b} for {seconds} s")
        run.world.bridge.reset(a, b)
        await asyncio.sleep(seconds)
        run.world.bridge.heal()

    return fault


# --- single requests ----------------------------------------------------------------------------------------------


_LONGER: Final = 3
"""Times that a fault of single requests may last if none of them came by: members rarely join."""


def requests(
    action: Action, keys: Sequence[int], share: float = 0.3, after_s: float = 1.0, seconds: float = 4.0
) -> Fault:
    async def fault(run: Run) -> None:
        assert run.world.control is not None
        rules = [Rule(key, action, after_s, share) for key in keys]
        before = await run.world.control.set(rules)
        for _ in range(_LONGER):
            await asyncio.sleep(seconds)
            taken = await run.world.control.set(rules)
            if count := taken.get(action, 0) - before.get(action, 0):
                break
        await run.world.control.set([])
        run.say(f"{count} requests {action}")
        run.idle = run.idle or count == 0

    return fault


# --- clocks -------------------------------------------------------------------------------------------------------


def clock(offsets: Sequence[int], *targets: Target, every_s: float = 1.5) -> Fault:
    """Sets the wall clocks of these processes wrong by each of the offsets (seconds), one after another."""

    async def fault(run: Run) -> None:
        names = [target(run) for target in targets] or [
            p.name for p in run.world.processes.values() if p.kind in ("broker", "coordinator")
        ]
        for offset in offsets:
            run.say(f"clocks of {' '.join(names)} {offset:+d} s")
            rules = [run.world.rules.add("clock", str(offset), name) for name in names]
            await asyncio.sleep(every_s)
            for rule in rules:
                run.world.rules.remove(rule)

    return fault


def both(*faults: Fault) -> Fault:
    """Runs the faults at the same time."""

    async def fault(run: Run) -> None:
        await asyncio.gather(*(one(run) for one in faults))

    return fault


def then(*faults: Fault, pause_s: float = 0.3) -> Fault:
    """Runs the faults one after another."""

    async def fault(run: Run) -> None:
        for one in faults:
            await one(run)
            await asyncio.sleep(pause_s)

    return fault

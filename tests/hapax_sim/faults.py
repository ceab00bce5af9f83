"""Faults, their times and durations. The seed determines them. They come one after another, and some overlap."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from hapax.runtime.ports import WatchEvent
from hapax_sim.cluster import STORE, SimCluster, SimNode
from hapax_sim.loop import SimProcess
from hapax_sim.parts.weak import MOVED_TOPIC
from hapax_sim.workload import Workload

LONGEST_S = 12.0
"""The maximum duration of a fault in this module, except for nodes that are cut off from the store alone."""
_WHOLE_AGAIN_S = 25.0
_STARTED_TWICE = ("appender", "booker", "copier", "loader", "member")
LONGEST_CUT_S = 150.0
"""Longer than any lease."""


class Faults:
    """Injects a fault every `every_s` virtual seconds on average until it is stopped."""

    def __init__(self, cluster: SimCluster, workload: Workload, seed: int, every_s: float = 3.0) -> None:
        self.cluster, self.workload = cluster, workload
        self.world = cluster.world
        self.rng = random.Random(seed)
        self.every_s = every_s
        self.injected: Counter[str] = Counter()
        self._whole_at = 0.0
        """Until this time a broker that lost its page cache may still count as in sync."""
        self.named = 0
        """1: these kinds were requested by name."""
        self.flipped = 0
        """Number of bits that were flipped."""
        self._running: set[asyncio.Task[None]] = set()
        self.kinds: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            # name: (weight, fault). 0: only if a scene or --only names it
            "kill": (3, self._kill),
            "power cut": (3, self._power_cut),
            "long absence": (1, self._long_absence),
            "other settings": (0, self._other_settings),
            "restart all brokers": (1, self._restart_all),
            "back alone": (0, self._back_alone),
            "freeze": (3, self._freeze),
            "client crash": (3, self._client_crash),
            "service crash": (0, self._service_crash),
            "service freeze": (0, self._service_freeze),
            "client freeze": (2, self._client_freeze),
            "second instance": (2, self._second_instance),
            "cut connections": (3, self._cut_connections),
            "connections reset": (2, self._connections_reset),
            "slow to connect": (0, self._slow_to_connect),
            "reset one way": (2, self._reset_one_way),
            "swallow one way": (3, self._swallow_one_way),
            "isolate": (2, self._isolate),
            "verification waits": (1, self._verification_waits),
            "slow link": (2, self._slow_link),
            "store away": (3, self._store_away),
            "store away for all": (1, self._store_away_for_all),
            "store away for long": (1, self._store_away_for_long),
            "store slow": (2, self._store_slow),
            "store restarts": (1, self._store_restarts),
            "store compacted": (1, self._store_compacted),
            "lease ends": (1, self._lease_ends),
            "lease ends at the worst time": (2, self._lease_ends_at_the_worst_time),
            "clock jump": (2, self._clock_jump),
            "hours pass": (0, self._hours_pass),
            "sync fails": (1, self._sync_fails),
            "write fails": (1, self._write_fails),
            "disk full": (1, self._disk_full),
            "slow disk": (2, self._slow_disk),
        }
        if cluster.replication >= 3:
            self.kinds["bit rot"] = 2, self._bit_rot
        self.rotting = self._node("broker")
        """The one broker whose disk damages data. The other brokers still have what it loses."""

    async def run(self) -> None:
        names = list(self.kinds)
        weights = [weight or self.named for weight, _ in self.kinds.values()]
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / self.every_s))
            (name,) = self.rng.choices(names, weights)
            self.injected[name] += 1
            self.cluster.loop.trace(f"fault: {name}")
            task = asyncio.ensure_future(self._one(name))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _one(self, name: str) -> None:
        await self.kinds[name][1]()

    def heal(self) -> None:
        """Ends all running faults: the network and the disks work, and no process is frozen any more."""
        cluster = self.cluster
        for task in self._running:
            task.cancel()
        self.world.heal()
        cluster.store.written = None
        if not cluster.store.up:
            cluster.store.start()
        for node in cluster.nodes.values():
            node.disk.capacity = 1 << 40
            node.disk.sync_delay = (0.0001, 0.0008)
            node.disk.fail_syncs = node.disk.fail_writes = 0
            if node.process is not None and node.process.frozen:
                cluster.loop.thaw(node.process)
        for process in self.workload.processes.values():
            if process.frozen:
                cluster.loop.thaw(process)

    # --- who

    def _node(self, *roles: str) -> SimNode:
        return self.rng.choice([n for n in self.cluster.nodes.values() if not roles or n.role in roles])

    def _somebody(self) -> str:
        return self.rng.choice([*self.cluster.nodes, *sorted(self.workload.processes)])

    async def _for(self, least: float, most: float) -> None:
        await asyncio.sleep(self.rng.uniform(least, most))

    def _say(self, text: str) -> None:
        self.cluster.loop.trace(f"fault at {text}")

    # --- processes

    async def _kill(self) -> None:
        self.cluster.kill(self._node().name)

    async def _power_cut(self) -> None:
        self.cluster.kill(self._node("broker").name, power_cut=True)

    async def _long_absence(self) -> None:
        """A node returns with its former state after its leases have ended and it has left the in-sync sets."""
        self.cluster.kill(self._node("broker", "coordinator").name, power_cut=True, absent_s=(10.0, LONGEST_S))

    async def _other_settings(self) -> None:
        """A broker loses its power while all others have everything, and restarts with other settings. Meanwhile
        preferred leaders are elected, or the others are killed. If the broker lost data that was only in its page
        cache, it must not lead."""
        node = self._node("broker")
        brokers = [other for other in self.cluster.nodes.values() if other.role == "broker"]
        if not all(broker.service is not None and not broker.service.ready() for broker in brokers):
            return
        view = node.service.view
        now = self.cluster.loop.time()
        if now < self._whole_at or any(len(p.record.isr) < len(p.record.replicas) for p in view.partitions()):
            return
        self._whole_at = now + _WHOLE_AGAIN_S
        node.settings = (
            f"durability={self.rng.choice(('fsync', 'page-cache'))}",
            f"log.segment.bytes={self.rng.choice((20_000, 65_536, 200_000))}",
            f"log.snapshot.interval.bytes={self.rng.choice((5_000, 20_000, 100_000))}",
        )
        self._say(f"{node.name}: {node.settings}")
        self.cluster.kill(node.name, power_cut=True)
        others = [broker for broker in brokers if broker is not node]
        if all("durability=fsync" in broker.settings for broker in others):  # they have everything, and are stopped
            for broker in others:
                self.cluster.kill(broker.name, absent_s=(6.0, LONGEST_S))
        for _ in range(4):
            await self._for(0.1, 2.0)
            await self.workload.elect_preferred()

    async def _back_alone(self) -> None:
        """All brokers and controllers stop at once, until every lease has ended. The one broker with page-cache
        durability loses its power and restarts first. The others, with fsync, lose nothing. It must not lead before
        they return."""
        brokers = [node for node in self.cluster.nodes.values() if node.role == "broker"]
        node, *others = brokers
        if not all(broker.service is not None and not broker.service.ready() for broker in brokers):
            return
        partitions = list(node.service.view.partitions())
        if any(len(p.record.isr) < len(p.record.replicas) for p in partitions):
            return
        if node.service.settings.durability == "fsync":
            node.settings = ("durability=page-cache",)
            self.cluster.kill(node.name)
            return
        node.settings = ("durability=fsync",)
        self._say(node.name)
        self.cluster.kill(node.name, power_cut=True)
        for other in self.cluster.nodes.values():
            if other in others or other.role == "controller":
                self.cluster.kill(other.name, absent_s=(20.0, 25.0) if other in others else (10.0, LONGEST_S))

    async def _restart_all(self) -> None:
        for node in self.cluster.nodes.values():
            if node.role == "broker":
                self.cluster.kill(node.name, power_cut=True)

    async def _freeze(self) -> None:
        await self._frozen(self._node().process)

    async def _client_freeze(self) -> None:
        await self._frozen(self.workload.processes[self.rng.choice(sorted(self.workload.processes))])

    async def _frozen(self, process: SimProcess | None, most_s: float = LONGEST_S) -> None:
        if process is not None and process.alive and not process.frozen:
            self.cluster.loop.freeze(process)
            await self._for(0.1, most_s)
            if process.frozen:
                self.cluster.loop.thaw(process)

    async def _client_crash(self) -> None:
        self.workload.crash(self.rng.choice(sorted(self.workload.processes)))

    async def _service_crash(self) -> None:
        """Crashes a replica of the REST API, which runs as a program of one of the parts."""
        self.workload.crash(self.rng.choice([name for name in sorted(self.workload.processes) if "rest-" in name]))

    async def _service_freeze(self) -> None:
        """Freezes it, sometimes for longer than a claim under an idempotency key lasts."""
        name = self.rng.choice([name for name in sorted(self.workload.processes) if "rest-" in name])
        await self._frozen(self.workload.processes[name], 20.0)

    async def _second_instance(self) -> None:
        names = [n for n in sorted(self.workload.processes) if n.startswith(_STARTED_TWICE)]
        if names:
            self.workload.second_instance(self.rng.choice(names))

    async def _clock_jump(self) -> None:
        node = self._node()
        node.skew_ms += self.rng.choice((-1, 1)) * self.rng.choice((50, 2_000, 60_000))
        if node.clock is not None:
            node.clock.skew_ms = node.skew_ms
        self._say(f"{node.name}: {node.skew_ms} ms")

    async def _hours_pass(self) -> None:
        """All clocks advance by an hour every few seconds, as if nothing else had happened meanwhile. Only for scenes
        that name it: records become old enough to be removed."""
        hours = self.rng.choice((1, 6, 13, 30))
        self._say(f"{hours} h begin")
        for _ in range(hours):
            self.cluster.loop.skip(3600)
            await asyncio.sleep(3.0)

    # --- network

    async def _cut_connections(self) -> None:
        self.world.weather.cut_share = self.rng.uniform(0.001, 0.03)
        await self._for(0.2, 2.0)
        self.world.weather.cut_share = 0.0

    async def _connections_reset(self) -> None:
        self.world.reset(self.rng.choice(sorted(self.workload.processes)))

    async def _slow_to_connect(self) -> None:
        """Clients lose their connections. One broker does not finish handshakes, and another one refuses them. Records
        for the first one wait, while records for the second one make their client ask for metadata again and again."""
        brokers = [node.name for node in self.cluster.nodes.values() if node.role == "broker"]
        clients = [name for name in sorted(self.workload.processes) if "visitor" in name]
        held, refused = (
            [pair for client in clients for pair in ((client, broker), (broker, client))]
            for broker in self.rng.sample(brokers, 2))
        self._say(f"{held[0][1]} holds, {refused[0][1]} refuses")
        for pair in held:
            self.world.begin_hold(pair)
        self.world.blocked.update(refused)
        for client in clients:
            self.world.reset(client)
        await self._for(3.0, 8.0)
        for pair in held:
            self.world.end_hold(pair)
        self.world.blocked.difference_update(refused)

    async def _reset_one_way(self) -> None:
        pair = (self._somebody(), self._somebody())
        self._say(f"{pair}")
        self.world.blocked.add(pair)
        await self._for(0.2, 4.0)
        self.world.blocked.discard(pair)

    async def _swallow_one_way(self) -> None:
        pair = (self._somebody(), self._somebody())
        self._say(f"{pair}")
        self.world.begin_hold(pair)
        await self._for(0.2, LONGEST_S)
        self.world.end_hold(pair)

    async def _isolate(self) -> None:
        """One node is cut off from all other nodes, or from all clients. It still reaches the store."""
        node = self._node().name
        others = self.cluster.nodes if self.rng.random() < 0.5 else self.workload.processes
        pairs = [pair for other in others if other != node for pair in ((node, other), (other, node))]
        self._say(f"{node} from {'nodes' if others is self.cluster.nodes else 'clients'}")
        for pair in pairs:
            self.world.begin_hold(pair)
        await self._for(0.5, LONGEST_S)
        for pair in pairs:
            self.world.end_hold(pair)

    async def _verification_waits(self) -> None:
        """One broker's questions to coordinators arrive seconds later: writes are parked while their clients
        continue."""
        node = self._node("broker").name
        self._say(node)
        pairs = [(node, other.name) for other in self.cluster.nodes.values() if other.role == "coordinator"]
        for pair in pairs:
            self.world.begin_hold(pair)
        await self._for(0.5, 6.0)
        for pair in pairs:
            self.world.end_hold(pair)

    async def _slow_link(self) -> None:
        pair = (self._somebody(), self._somebody())
        self.world.lag[pair] = self.rng.choice((0.05, 0.5, 2.0))
        self._say(f"{pair}")
        await self._for(0.5, 6.0)
        self.world.lag.pop(pair, None)

    # --- metadata store

    async def _store_away(self) -> None:
        pair = (self._node().name, STORE)
        self._say(f"{pair}")
        self.world.blocked.add(pair)
        await self._for(0.2, LONGEST_S)
        self.world.blocked.discard(pair)

    async def _store_away_for_long(self) -> None:
        """One broker and one coordinator lose the store, while all other connections work. Both are replaced, continue
        to serve as far as they may, and reach each other."""
        names = [self._node("broker").name, self._node("coordinator").name]
        self._say(f"{names}")
        pairs = [(name, STORE) for name in names]
        self.world.blocked.update(pairs)
        await self._for(20.0, LONGEST_CUT_S)
        self.world.blocked.difference_update(pairs)

    async def _store_away_for_all(self) -> None:
        pairs = [(name, STORE) for name in self.cluster.nodes]
        self.world.blocked.update(pairs)
        await self._for(0.2, 5.0)
        self.world.blocked.difference_update(pairs)

    async def _store_slow(self) -> None:
        pairs = [(name, STORE) for name in self.cluster.nodes]
        lag = self.rng.choice((0.05, 0.3, 1.0))
        self.world.lag.update(dict.fromkeys(pairs, lag))
        await self._for(0.5, 6.0)
        for pair in pairs:
            self.world.lag.pop(pair, None)

    async def _store_restarts(self) -> None:
        if self.cluster.store.up:
            self.cluster.store.stop()
            await self._for(0.2, 4.0)
            if not self.cluster.store.up:
                self.cluster.store.start()

    async def _store_compacted(self) -> None:
        store = self.cluster.store
        store.compact(max(store.compacted, store.revision - self.rng.randrange(5)))
        store.end_watches()

    def _end_lease(self, node: SimNode) -> None:
        store = self.cluster.store
        service = node.service
        registration = getattr(service, "registration", None)
        lease = 0 if registration is None else store.lease_of(service.view.keys.node(registration.record.node_id))
        if lease:
            self._say(f"{node.name}: its lease")
            store.revoke_lease(lease)

    async def _lease_ends(self) -> None:
        self._end_lease(self._node())

    async def _lease_ends_at_the_worst_time(self) -> None:
        """A lease ends just after the store took the next change of a partition or shard, before its writer knows of
        it."""
        store = self.cluster.store
        node = self._node("broker", "coordinator", "controller")
        if store.written is not None:
            return

        def written(events: list[WatchEvent]) -> None:
            if any("/partitions/" in e.key or "/shards/" in e.key for e in events):
                store.written = None
                store.later(0.0, lambda: self._end_lease(node))

        store.written = written
        self.cluster.kill(self._node("broker", "coordinator").name)

    # --- disks

    async def _sync_fails(self) -> None:
        node = self._node("broker")
        node.disk.fail_syncs = self.rng.randrange(1, 4)
        self._say(node.name)
        await self._for(0.5, 3.0)
        node.disk.fail_syncs = 0
        if self.rng.random() < 0.5:
            # The machine fails soon after the process that could not trust its disk.
            self.cluster.kill(node.name, power_cut=True)

    async def _write_fails(self) -> None:
        node = self._node("broker")
        node.disk.fail_writes = self.rng.randrange(1, 6)
        self._say(node.name)
        await self._for(0.5, 3.0)
        node.disk.fail_writes = 0

    async def _disk_full(self) -> None:
        disk = self._node("broker").disk
        disk.capacity = disk.used() + self.rng.randrange(2_000)
        await self._for(0.5, 6.0)
        disk.capacity = 1 << 40

    async def _bit_rot(self) -> None:
        """Flips a bit in a closed segment, which no process reads again on its own account. Never in the topic whose
        replicas are moved: its only copy may be here, which could not be repaired."""
        disk = self.rotting.disk
        folders: dict[str, list[str]] = {}
        for name in sorted(disk.names):
            folder, _, file = name.rpartition("/")
            if file.endswith(".log") and not folder.endswith("-delete") and folder.rpartition("-")[0] != MOVED_TOPIC:
                folders.setdefault(folder, []).append(name)
        closed = [name for names in folders.values() for name in names[:-1] if disk.names[name].data]
        if not closed:
            return
        name = self.rng.choice(closed)
        disk.flip_bit(name, self.rng.randrange(len(disk.names[name].data)))
        self.flipped += 1
        self._say(f"{self.rotting.name} {name}")

    async def _slow_disk(self) -> None:
        disk = self._node("broker").disk
        disk.sync_delay = (0.001, self.rng.choice((0.05, 0.5, 3.0)))
        await self._for(0.5, 6.0)
        disk.sync_delay = (0.0001, 0.0008)

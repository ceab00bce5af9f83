"""The metadata store in memory, with etcd's semantics: revisions, compares, leases on the loop's clock, watches.

One `MetadataModel` is the store. Each process gets its own `MemoryMetadata` of it, whose `link` decides what the
network does to each call. The same conformance tests run against this model and against a real etcd
(`tests/integration/test_etcd_port.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from hapax.runtime.ports import (
    Compare,
    Delete,
    KeyValue,
    MetadataCompacted,
    MetadataLeaseGone,
    MetadataUnavailable,
    Put,
    TxnResult,
    WatchEvent,
)

T = TypeVar("T")

MAX_TXN_OPERATIONS = 128
MIN_TTL_S = 2


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    timer: asyncio.TimerHandle
    keys: dict[str, None] = field(default_factory=dict)


class _Watcher:
    """The events that one watch has not delivered yet, and the reason why it ended."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.pending: deque[list[WatchEvent]] = deque()
        self.ended: Exception | None = None
        self._wake: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def wait(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None


class MetadataModel:
    """The store itself. It outlives the processes that use it. `stop` and `start` are its own outage."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.up = True
        self._kvs: dict[str, KeyValue] = {}
        self._keys: list[str] = []
        self._history: list[list[WatchEvent]] = []
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 7_000
        self._watchers: list[_Watcher] = []
        self.written: Callable[[list[WatchEvent]], None] | None = None
        """Called with the events of each write. The callee must not write to the store itself."""
        # Lease timers belong to the store and not to the process that requested the lease, because they must outlive
        # it.
        self._context = contextvars.copy_context()

    # --- what a test or the simulator does to it

    def stop(self) -> None:
        """Every call fails and every watch ends, until `start`. Meanwhile leases do not expire."""
        self.up = False
        for lease in self._leases.values():
            lease.timer.cancel()
        self.end_watches()

    def start(self) -> None:
        """As etcd after a restart: each lease starts its full time to live again."""
        self.up = True
        for lease_id in list(self._leases):
            self._arm(lease_id)

    def end_watches(self) -> None:
        for watcher in self._watchers:
            watcher.ended = MetadataUnavailable("watch lost")
            watcher.wake()
        self._watchers.clear()

    def later(self, delay_s: float, effect: Callable[[], object]) -> None:
        """A call that takes effect by itself, even if its caller is gone."""

        def arrive() -> None:
            if self.up:
                with contextlib.suppress(MetadataUnavailable, MetadataLeaseGone, MetadataCompacted):
                    effect()

        asyncio.get_running_loop().call_later(delay_s, arrive, context=self._context)

    def lease_of(self, key: str) -> int:
        """The live lease that a key is attached to. 0: none."""
        kv = self._kvs.get(key)
        return kv.lease if kv is not None and kv.lease in self._leases else 0

    def compact(self, revision: int) -> None:
        self.compacted = max(self.compacted, revision)
        self._history = [events for events in self._history if events[0].revision >= self.compacted]

    # --- etcd's operations

    def get(self, key: str) -> KeyValue | None:
        return self._kvs.get(key)

    def list(self, prefix: str) -> tuple[list[KeyValue], int]:
        kvs = []
        for key in self._keys[bisect_left(self._keys, prefix):]:
            if not key.startswith(prefix):
                break
            kvs.append(self._kvs[key])
        return kvs, self.revision

    def txn(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TxnResult:
        if len(compares) > MAX_TXN_OPERATIONS or len(writes) > MAX_TXN_OPERATIONS:
            raise ValueError(f"a transaction holds at most {MAX_TXN_OPERATIONS} operations")
        if len({write.key for write in writes}) != len(writes):
            raise ValueError("duplicate key in a transaction")
        if not all(self._holds(compare) for compare in compares):
            return TxnResult(False, self.revision)
        for write in writes:
            if isinstance(write, Put) and write.lease and write.lease not in self._leases:
                raise MetadataLeaseGone(f"lease {write.lease} not found")
        self._write(writes)
        return TxnResult(True, self.revision)

    def grant_lease(self, ttl_s: float) -> int:
        self._next_lease += 1
        lease_id = self._next_lease
        timer = self._timer(lease_id, 0)
        self._leases[lease_id] = _Lease(max(MIN_TTL_S, math.ceil(ttl_s)), timer)
        self._arm(lease_id)
        return lease_id

    def keep_alive(self, lease_id: int) -> float:
        lease = self._leases.get(lease_id)
        if lease is None:
            return 0.0
        self._arm(lease_id)
        return lease.ttl_s

    def revoke_lease(self, lease_id: int) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            lease.timer.cancel()
            self._write([Delete(key) for key in sorted(lease.keys)])

    def open_watch(self, prefix: str, from_revision: int) -> _Watcher:
        if from_revision < self.compacted:
            raise MetadataCompacted(f"revision {from_revision} is compacted at {self.compacted}")
        if from_revision > self.revision + 1:
            raise MetadataUnavailable(f"revision {from_revision} is in the future: the store is at {self.revision}")
        watcher = _Watcher(prefix)
        for events in self._history:
            self._offer(watcher, [event for event in events if event.revision >= from_revision])
        self._watchers.append(watcher)
        return watcher

    def close_watch(self, watcher: _Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    # --- inside

    def _timer(self, lease_id: int, delay_s: float) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(delay_s, self.revoke_lease, lease_id, context=self._context)

    def _arm(self, lease_id: int) -> None:
        lease = self._leases[lease_id]
        lease.timer.cancel()
        lease.timer = self._timer(lease_id, lease.ttl_s)

    def _holds(self, compare: Compare) -> bool:
        kv = self._kvs.get(compare.key)
        if compare.target == "value":
            return kv is not None and kv.value == compare.value
        return (0 if kv is None else getattr(kv, compare.target)) == compare.value

    def _write(self, writes: Sequence[Put | Delete]) -> None:
        revision = self.revision + 1
        events = []
        for write in writes:
            former = self._kvs.get(write.key)
            if former is not None and former.lease in self._leases:
                self._leases[former.lease].keys.pop(write.key, None)
            if isinstance(write, Delete):
                if former is None:
                    continue
                del self._kvs[write.key]
                self._keys.remove(write.key)
                events.append(WatchEvent(write.key, None, revision))
                continue
            created = revision if former is None else former.create_revision
            kv = KeyValue(write.key, write.value, created, revision, write.lease)
            if former is None:
                insort(self._keys, write.key)
            self._kvs[write.key] = kv
            if write.lease:
                self._leases[write.lease].keys[write.key] = None
            events.append(WatchEvent(write.key, kv, revision))
        if events:
            self.revision = revision
            self._history.append(events)
            if self.written is not None:
                self.written(events)
            for watcher in list(self._watchers):
                self._offer(watcher, events)

    @staticmethod
    def _offer(watcher: _Watcher, events: Sequence[WatchEvent]) -> None:
        wanted = [event for event in events if event.key.startswith(watcher.prefix)]
        if wanted:
            watcher.pending.append(wanted)
            watcher.wake()


class Link(Protocol):
    """The connection between a process and the store. Either method may wait, or raise MetadataUnavailable."""

    async def request(self) -> None:
        """Called before a call takes effect. Raising here means that it took no effect."""
        ...

    async def response(self) -> None:
        """Called after the call took effect, and before each batch of a watch is delivered. Raising here loses only the
        answer."""
        ...


class TakesEffectLater(MetadataUnavailable):
    """Raised by a link's `request`: the call arrives after this many seconds, when its caller has given up."""

    def __init__(self, delay_s: float) -> None:
        super().__init__("the store does not answer")
        self.delay_s = delay_s


class PerfectLink:
    async def request(self) -> None:
        await asyncio.sleep(0)

    async def response(self) -> None:
        await asyncio.sleep(0)


class MemoryMetadata:
    """`MetadataStore` of one process on a model."""

    def __init__(self, model: MetadataModel, link: Link | None = None) -> None:
        self.model = model
        self.link: Link = link or PerfectLink()
        self.open: list[_Watcher] = []

    async def get(self, key: str) -> KeyValue | None:
        return await self.call(lambda: self.model.get(key))

    async def list(self, prefix: str) -> tuple[list[KeyValue], int]:
        return await self.call(lambda: self.model.list(prefix))

    async def txn(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TxnResult:
        return await self.call(lambda: self.model.txn(compares, writes))

    async def grant_lease(self, ttl_s: float) -> int:
        return await self.call(lambda: self.model.grant_lease(ttl_s))

    async def keep_alive(self, lease: int) -> float:
        return await self.call(lambda: self.model.keep_alive(lease))

    async def revoke_lease(self, lease: int) -> None:
        await self.call(lambda: self.model.revoke_lease(lease))

    def watch(self, prefix: str, from_revision: int) -> MemoryWatch:
        return MemoryWatch(self, prefix, from_revision)

    async def close(self) -> None:
        """A watch still open ends with MetadataUnavailable."""
        for watcher in self.open:
            watcher.ended = MetadataUnavailable("closed")
            watcher.wake()

    def abandon(self) -> None:
        """The process died: the store forgets its watches. Its leases continue until they expire."""
        for watcher in self.open:
            self.model.close_watch(watcher)

    async def call(self, effect: Callable[[], T]) -> T:
        try:
            await self.link.request()
        except TakesEffectLater as late:
            self.model.later(late.delay_s, effect)
            raise
        if not self.model.up:
            raise MetadataUnavailable("the store is down")
        result = effect()
        await self.link.response()
        return result


class MemoryWatch:
    """What `watch` returns: an object and not an async generator, which would outlive a crashed process's loop."""

    def __init__(self, store: MemoryMetadata, prefix: str, from_revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self._from_revision = from_revision
        self._watcher: _Watcher | None = None

    def __aiter__(self) -> MemoryWatch:
        return self

    async def __anext__(self) -> Sequence[WatchEvent]:
        store = self._store
        if self._watcher is None:
            self._watcher = await store.call(lambda: store.model.open_watch(self._prefix, self._from_revision))
            store.open.append(self._watcher)
        watcher = self._watcher
        try:
            while not watcher.pending:
                if watcher.ended is not None:
                    raise watcher.ended
                await watcher.wait()
            await store.link.response()
        except BaseException:
            await self.aclose()
            raise
        return watcher.pending.popleft()

    async def aclose(self) -> None:
        if self._watcher in self._store.open:
            self._store.open.remove(self._watcher)
            self._store.model.close_watch(self._watcher)

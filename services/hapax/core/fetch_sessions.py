"""Fetch sessions (KIP-227): a consumer names its partitions once. Later requests and answers contain only changes.

* **An answer names every partition that has something new**: records, an error, a diverging epoch, or offsets (high
  watermark, last stable offset, log start) that differ from those in the session's last answer.
* **The reported offsets change only when an answer is sent.** A client that lost an answer cannot know the session's
  next epoch. It begins with a full request, so nothing that it missed counts as reported.
* **A fetch reads the pending partitions only.** A partition stops being pending when the client has read all of it and
  has got its offsets. At that moment the session registers with its source, which calls `moved` once, at the next
  change. So a fetch costs what has changed, whatever the number of partitions.
* **The fetch offset is the one in the client's last request.** The session never advances it by what was sent.

A request that names a session's id and its next epoch uses the session, from any connection, as in Kafka. The number of
sessions and their memory are limited, and Kafka's rules decide which session is evicted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from hapax.core.errors import ErrorCode, Refusal

Asked = TypeVar("Asked")
"""What a request says about a partition."""
Mode = tuple[bool, str]
"""What a request says about all partitions: (read_committed, the consumer's rack)."""
PartitionKey = tuple[str | bytes, int]
"""(topic's name or id, partition)"""

NO_SESSION: Final = 0
FULL: Final = 0
"""The epoch of a request that begins a session."""
SESSIONLESS: Final = -1
"""The epoch of a full request that does not begin a session."""
_LAST_EPOCH: Final = 2**31 - 1
_EVICTABLE_AFTER_MS: Final = 120_000
PARTITION_BYTES: Final = 700
"""Memory of one partition in a session, without its topic's name; measured by `bench fetch_sessions`."""
SESSION_BYTES: Final = 2_000
"""Memory of a session without partitions."""


class Offsets(NamedTuple):
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class Source(Protocol):
    """The log of a partition."""

    def wait(self, reader: SessionPartition[Any]) -> None:
        """Calls `reader.moved()` once, at the next change that a reader may see."""
        ...

    def unwait(self, reader: SessionPartition[Any]) -> None: ...


class WaitingFetch(Protocol):
    """A session's request that waits for records."""

    def moved(self) -> None:
        """Called when a pending partition has changed."""
        ...

    def finish_now(self) -> None:
        """Called when the session has ended: answers with what there is."""
        ...


class PartitionRead(NamedTuple):
    """The result of reading one partition for a fetch."""

    offsets: Offsets | None
    """None for an error, or a log that diverges from the client's. It is reported until it is gone."""
    records: bool
    """Whether there are records for the answer."""
    drained: bool
    """Whether the client's fetch offset is at the end of what it may read."""
    source: Source | None
    """None only with an error."""


class SessionPartition(Generic[Asked]):
    """A partition of a session."""

    __slots__ = ("asked", "key", "session", "source", "told")

    def __init__(self, session: Session[Asked], key: PartitionKey, asked: Asked) -> None:
        self.session = session
        self.key = key
        self.asked = asked
        self.told: Offsets | None = None
        """The offsets in the last answer with this partition. None if the next answer has to include it."""
        self.source: Source | None = None
        """The source with which the partition is registered."""

    def moved(self) -> None:
        """Called by `Source.wait`, which ends the registration."""
        self.source = None
        session = self.session
        session.pending[self] = None
        if session.fetch is not None:
            session.fetch.moved()

    def register(self, source: Source) -> None:
        if self.source is not source and not self.session.ended:
            self.unregister()
            self.source = source
            source.wait(self)

    def unregister(self) -> None:
        if self.source is not None:
            self.source.unwait(self)
            self.source = None


class Session(Generic[Asked]):
    def __init__(self, by_id: bool, mode: Mode) -> None:
        self.id = NO_SESSION
        """0 while the session is not in the cache."""
        self.epoch = FULL
        """Epoch of the next request."""
        self.by_id: Final = by_id
        """Whether the session names topics by id."""
        self.mode = mode
        self.partitions: dict[PartitionKey, SessionPartition[Asked]] = {}
        self.pending: dict[SessionPartition[Asked], None] = {}
        """The partitions that may have something new, the least recently served first."""
        self.fetch: WaitingFetch | None = None
        self.ended = False
        self.bytes = SESSION_BYTES
        self.created_ms = 0
        self.used_ms = 0
        self.approved_for: object = None
        """The rights of a client that may read all partitions (where the cluster has an authoriser)."""
        self.evictable: tuple[int, int] | None = None
        """The session's entry among those that a larger session may replace."""

    def update(self, named: Iterable[tuple[PartitionKey, Asked]], forgotten: Iterable[PartitionKey], mode: Mode,
               ) -> None:
        """Takes over the changes in a request."""
        for key, asked in named:
            partition = self.partitions.get(key)
            if partition is None:
                partition = self.partitions[key] = SessionPartition(self, key, asked)
                self.bytes += _cost(key)
            else:
                partition.asked = asked
            self.pending[partition] = None
        for key in forgotten:
            gone = self.partitions.pop(key, None)
            if gone is not None:
                self.bytes -= _cost(key)
                gone.unregister()
                self.pending.pop(gone, None)
        if mode != self.mode:
            self.mode = mode
            self.pending.update(dict.fromkeys(self.partitions.values()))

    def waits(self, reads: Sequence[tuple[SessionPartition[Asked], PartitionRead]]) -> None:
        """Called after a fetch read the pending partitions and has no reason to answer yet."""
        for partition, read in reads:
            assert read.source is not None
            partition.register(read.source)
            if read.drained and partition.told == read.offsets:
                del self.pending[partition]

    def answers(self, reads: Sequence[tuple[SessionPartition[Asked], PartitionRead]]) -> list[bool]:
        """Called after a fetch read the pending partitions and answers. Returns which of them the answer contains."""
        names = []
        for partition, read in reads:
            names.append(read.records or read.offsets is None or partition.told != read.offsets)
            partition.told = read.offsets
            if read.offsets is None or read.source is None:
                continue
            if read.records:
                self.pending.pop(partition)
                self.pending[partition] = None  # behind those for which the answer had no room
            elif read.drained:
                del self.pending[partition]
                partition.register(read.source)
        return names

    def end(self) -> None:
        """Ends the session: nothing wakes it any more, and a waiting fetch is answered."""
        self.id = NO_SESSION
        self.ended = True
        fetch, self.fetch = self.fetch, None
        if fetch is not None:
            fetch.finish_now()
        for partition in self.partitions.values():
            partition.unregister()


class FetchSessions(Generic[Asked]):
    """All sessions of a broker."""

    def __init__(self, draw_id: Callable[[], int], max_sessions: int, max_bytes: int) -> None:
        """`draw_id` returns a random number from 1 to 2^31 - 1. `max_bytes` limits the estimated memory of all
        sessions."""
        self._draw_id = draw_id
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self.sessions: dict[int, Session[Asked]] = {}
        """Session id -> session, the least recently used first."""
        self.bytes = 0
        self.evicted = 0
        self._evictable: list[tuple[int, int]] = []
        """(number of partitions, id) of sessions older than two minutes, sorted."""

    @property
    def partitions(self) -> int:
        return sum(len(session.partitions) for session in self.sessions.values())

    def find(self, session_id: int, epoch: int, *, by_id: bool) -> Session[Asked]:
        """The session of an incremental request. Raises Refusal."""
        session = self.sessions.get(session_id)
        if session is None:
            raise Refusal(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_id is not by_id:
            raise Refusal(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if epoch != session.epoch:
            raise Refusal(ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"epoch {epoch} is not {session.epoch}")
        return session

    def update(
        self, session: Session[Asked], named: Mapping[PartitionKey, Asked], forgotten: Iterable[PartitionKey],
        mode: Mode, now_ms: int,
    ) -> bool:
        """Takes over an incremental request. Returns False if no partition is left and the session has ended. Raises
        Refusal if there is no memory for the added partitions; the session has then ended too."""
        before = session.bytes
        session.update(named.items(), forgotten, mode)
        self.bytes += session.bytes - before
        if not session.partitions:
            self._remove(session)
            return False
        session.epoch = 1 if session.epoch == _LAST_EPOCH else session.epoch + 1
        self._used(session, now_ms)
        while self.bytes > self._max_bytes and session.id and self._evict(len(session.partitions), now_ms):
            pass
        if self.bytes > self._max_bytes and session.id:
            self._remove(session)
        if not session.id:
            raise Refusal(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "the fetch sessions use too much memory")
        return True

    def admit(self, session: Session[Asked], now_ms: int) -> bool:
        """Gives a new session its id if there is room, for which older sessions may be evicted. Returns False if there
        is none; the client then has to send full requests."""
        size = len(session.partitions)
        while len(self.sessions) >= self._max_sessions or self.bytes + session.bytes > self._max_bytes:
            if session.bytes > self._max_bytes or not self._evict(size, now_ms):
                return False
        session.id = self._draw_id()
        while session.id in self.sessions:
            session.id = self._draw_id()
        session.epoch = FULL + 1
        session.created_ms = now_ms
        self.bytes += session.bytes
        self._used(session, now_ms)
        return True

    def close(self, session_id: int) -> None:
        """Called when a full request names the session that its client gives up."""
        session = self.sessions.get(session_id)
        if session is not None:
            self._remove(session)

    def clear(self) -> None:
        for session in list(self.sessions.values()):
            self._remove(session)

    def _used(self, session: Session[Asked], now_ms: int) -> None:
        self.sessions.pop(session.id, None)
        self.sessions[session.id] = session
        session.used_ms = now_ms
        old = now_ms - session.created_ms > _EVICTABLE_AFTER_MS
        place = (len(session.partitions), session.id) if old else None
        if place != session.evictable:
            self._unplace(session)
            session.evictable = place
            if place is not None:
                insort(self._evictable, place)

    def _unplace(self, session: Session[Asked]) -> None:
        if session.evictable is not None:
            del self._evictable[bisect_left(self._evictable, session.evictable)]
            session.evictable = None

    def _evict(self, size: int, now_ms: int) -> bool:
        """Ends one session to make room for one with `size` partitions: a session that was not used for two minutes, or
        a smaller one that is older than that."""
        if not self.sessions:
            return False
        session = next(iter(self.sessions.values()))
        if now_ms - session.used_ms <= _EVICTABLE_AFTER_MS:
            if not self._evictable or self._evictable[0][0] >= size:
                return False
            session = self.sessions[self._evictable[0][1]]
        self.evicted += 1
        self._remove(session)
        return True

    def _remove(self, session: Session[Asked]) -> None:
        del self.sessions[session.id]
        self._unplace(session)
        self.bytes -= session.bytes
        session.end()


def _cost(key: PartitionKey) -> int:
    return PARTITION_BYTES + len(key[0])

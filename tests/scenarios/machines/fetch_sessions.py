"""Drives fetch sessions: several clients, and partitions whose offsets move.

    partition N [end=E] [stable=S] [start=B] [served|gone]   its offsets, or whether the broker serves it
    fetch SESSION EPOCH [0=OFFSET ...] [forget=N,...] [room=N] [ids]   a request; offsets by partition
    wait SESSION EPOCH ...   the same, but it waits for records if there are none
    time SECONDS
    cache                    the sessions

An answer is one line for each partition that it names. `woken`: the change has reached a fetch that waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hapax.core.errors import Refusal
from hapax.core.fetch_sessions import (
    FULL,
    SESSIONLESS,
    FetchSessions,
    Offsets,
    PartitionRead,
    Session,
    SessionPartition,
)
from scenarios.script import Command, ScriptError

MODE = (True, "")


class Partition:
    """`Source`."""

    def __init__(self) -> None:
        self.offsets = Offsets(0, 0, 0)
        self.served = True
        self.readers: dict[SessionPartition[Any], None] = {}

    def wait(self, reader: SessionPartition[Any]) -> None:
        self.readers[reader] = None

    def unwait(self, reader: SessionPartition[Any]) -> None:
        del self.readers[reader]


class Waiting:
    """`WaitingFetch`."""

    def __init__(self, lines: list[str], name: int) -> None:
        self._lines = lines
        self._name = name

    def moved(self) -> None:
        self._lines.append(f"woken: session {self._name}")

    def finish_now(self) -> None:
        self._lines.append(f"session {self._name} ended")


class Interpreter:
    def __init__(self, command: Command) -> None:
        self.lines: list[str] = []
        ids = iter(range(1, 1000))
        sessions = command.number("sessions", 3)
        self.cache: FetchSessions[int] = FetchSessions(lambda: next(ids), sessions, 1 << 20)
        self.partitions: dict[int, Partition] = {}
        self.now_ms = 0

    def execute(self, command: Command) -> Iterable[str]:
        method = getattr(self, f"do_{command.name}", None)
        if method is None:
            raise ScriptError(f"unknown command {command.name}")
        self.lines.clear()
        yield from method(command)
        yield from self.lines

    def do_partition(self, command: Command) -> Iterable[str]:
        partition = self.partitions.setdefault(int(command.positional[0]), Partition())
        given = command.arguments
        partition.offsets = Offsets(
            int(given.get("end", partition.offsets.high_watermark)),
            int(given.get("stable", given.get("end", partition.offsets.last_stable_offset))),
            int(given.get("start", partition.offsets.log_start_offset)),
        )
        partition.served = "gone" not in command.positional and (partition.served or "served" in command.positional)
        readers, partition.readers = partition.readers, {}
        for reader in readers:
            reader.moved()
        return ()

    def do_time(self, command: Command) -> Iterable[str]:
        self.now_ms += 1000 * int(command.positional[0])
        return ()

    def do_cache(self, command: Command) -> Iterable[str]:
        for session in self.cache.sessions.values():
            settled = len(session.partitions) - len(session.pending)
            yield (
                f"session {session.id}: next epoch {session.epoch}, partitions {len(session.partitions)}, "
                f"unchanged {settled}"
            )
        yield f"evicted: {self.cache.evicted}"

    def do_fetch(self, command: Command) -> Iterable[str]:
        session = self._received(command)
        return self._answer(session, command) if isinstance(session, Session) else [session]

    def do_wait(self, command: Command) -> Iterable[str]:
        session = self._received(command)
        if not isinstance(session, Session):
            return [session]
        seen = self._look(session, command)
        if any(each.offsets is None or each.records for _, each in seen):
            return self._answer(session, command)
        session.waits(seen)
        session.fetch = Waiting(self.lines, session.id)
        return ["waits"]

    def _received(self, command: Command) -> Session[int] | str:
        session_id, epoch = (int(word) for word in command.positional[:2])
        named = {("t", int(key)): int(at) for key, at in command.arguments.items() if key.isdigit()}
        forgotten = [("t", int(each)) for each in command.arguments.get("forget", "").split(",") if each]
        by_id = "ids" in command.positional
        if epoch in (FULL, SESSIONLESS):
            self.cache.close(session_id)
            session: Session[int] = Session(by_id, MODE)
            session.update(named.items(), (), MODE)
            if epoch == SESSIONLESS:
                session.end()
            return session
        try:
            session = self.cache.find(session_id, epoch, by_id=by_id)
            session.fetch = None
            if not self.cache.update(session, named, forgotten, MODE, self.now_ms):
                return "session 0: nothing"
        except Refusal as refusal:
            return refusal.code.name
        return session

    def _look(self, session: Session[int], command: Command) -> list[tuple[SessionPartition[int], PartitionRead]]:
        room = int(command.arguments.get("room", 100))
        found = []
        for asked in list(session.pending):
            partition = self.partitions[asked.key[1]]
            if not partition.served:
                found.append((asked, PartitionRead(None, False, False, None)))
                continue
            drained = asked.asked >= partition.offsets.last_stable_offset
            found.append((asked, PartitionRead(partition.offsets, not drained and room > 0, drained, partition)))
            room -= not drained
        return found

    def _answer(self, session: Session[int], command: Command) -> Iterable[str]:
        if session.epoch == FULL and not session.ended:
            self.cache.admit(session, self.now_ms)
        seen = self._look(session, command)
        names = session.answers(seen)
        if not session.id and not session.ended:
            session.end()
        lines = [f"session {session.id}:" + ("" if any(names) else " nothing")]
        for (asked, each), named in zip(seen, names, strict=True):
            if not named:
                continue
            if each.offsets is None:
                lines.append(f"  {asked.key[1]}: NOT_LEADER_OR_FOLLOWER")
                continue
            end, stable, start = each.offsets
            records = f", records from {asked.asked}" if each.records else ""
            lines.append(f"  {asked.key[1]}: end {end}, stable {stable}, start {start}{records}")
        return lines

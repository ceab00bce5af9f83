"""The thread that writes audit lines: into a file that it rotates, or to standard output.

The event loop only appends to a queue. A failed write is tried again every second, so a full disk delays lines, and
loses them only once the queue is full. Half of it is for changes of the cluster alone, which no flood can displace. A
line that cannot be encoded is replaced by one that says so, and harms no other. `close` returns when everything is
written.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any, Final, Protocol

from hapax.core.access.principals import parsed
from hapax.runtime import telemetry
from hapax.runtime.audit import AuditLog, bounded
from hapax.runtime.audit_events import COMMON, SILENT, Audit
from hapax.runtime.metrics import Metrics
from hapax.runtime.ports import Clock
from hapax.runtime.process_metrics import AUDIT_EVENTS, AUDIT_LEFT_OUT, AUDIT_WRITE_FAILURES
from hapax.runtime.settings import Settings

log = telemetry.logger("audit")

MOST_QUEUED: Final = 20_000
"""Lines: up to 20 MB while the disk is full."""
MOST_BOUNDED: Final = MOST_QUEUED // 2
"""Of them, events that are bounded in number: logins, refusals, transactions."""
_BATCH: Final = 1000
_RETRY_S: Final = 1.0
CLOSE_TIMEOUT_S: Final = 4.0


class Target(Protocol):
    def write(self, data: bytes) -> None:
        """Whole lines. Raises OSError; then the next call has the same lines again, and may have more."""
        ...

    def close(self) -> None: ...


class StandardOutput:
    def __init__(self) -> None:
        self._begun = 0
        """Bytes that were written of what begins the next attempt. They cannot be taken back."""

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while self._begun < len(data):
            self._begun += os.write(1, view[self._begun:])
        self._begun = 0

    def close(self) -> None:
        """Stays open: it is the process's."""


class RotatedFile:
    """`NAME.jsonl`; the file before it is `NAME.1.jsonl`. Raises OSError where another process writes it."""

    def __init__(self, folder: Path, name: str, max_bytes: int, backups: int) -> None:
        self._folder = folder
        self._name = name
        self._max_bytes = max_bytes
        self._backups = backups
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise OSError(f"another process writes the audit log {self._path(0)}") from None
        self._file = -1
        self._size = 0
        self._open()

    def write(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        try:
            _write_all(self._file, data)
        except OSError:
            os.ftruncate(self._file, self._size)  # the lines are written again, whole
            raise
        self._size += len(data)

    def close(self) -> None:
        os.fsync(self._file)
        os.close(self._file)
        os.close(self._lock)

    def _path(self, number: int) -> Path:
        return self._folder / (f"{self._name}.{number}.jsonl" if number else f"{self._name}.jsonl")

    def _open(self) -> None:
        self._file = os.open(self._path(0), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._file).st_size
        # A process that was killed may have left the beginning of a line.
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
            _write_all(self._file, b"\n")
            self._size += 1

    def _rotate(self) -> None:
        os.fsync(self._file)
        if self._path(0).exists():  # otherwise an attempt before this one has moved it
            for number in range(self._backups, 0, -1):
                if self._path(number - 1).exists():
                    self._path(number - 1).replace(self._path(number))
            self._path(0).unlink(missing_ok=True)
        former = self._file
        self._open()
        os.close(former)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view):]


class LineWriter:
    """Encodes and writes lines in a thread of its own."""

    def __init__(self, target: Target) -> None:
        self.failures = 0
        self._target = target
        self._lines: deque[dict[str, Any]] = deque()
        self._work = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def put(self, line: dict[str, Any], limited: bool = False) -> bool:
        """From the event loop. `limited`: the event is bounded in number. False: the queue has no place for it."""
        if len(self._lines) >= (MOST_BOUNDED if limited else MOST_QUEUED):
            return False
        self._lines.append(line)
        if not self._work.is_set():
            self._work.set()
        return True

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Waits until all lines are written, at most this long. Returns the number of those that are not."""
        self._closing.set()
        self._work.set()
        self._thread.join(timeout_s)
        return len(self._lines)

    def _run(self) -> None:
        failing = False
        while True:
            self._work.wait()
            self._work.clear()
            ending = self._closing.is_set()  # read before: lines that are put before `close` are seen below
            while self._lines:
                count = min(len(self._lines), _BATCH)
                data = b"".join(_encoded(self._lines[at]) for at in range(count))
                last_attempt = self._closing.is_set()  # read before: what `close` finds unwritten is tried once more
                try:
                    self._target.write(data)
                except OSError as error:
                    self.failures += 1
                    if not failing:
                        log.error("audit lines cannot be written; trying again every second", error=error)
                    failing = True
                    if last_attempt:
                        return
                    self._closing.wait(_RETRY_S)  # not for work: each event would encode a thousand lines once more
                else:
                    failing = False
                    for _ in range(count):
                        self._lines.popleft()
            if ending:
                self._target.close()
                return


def _encoded(line: dict[str, Any]) -> bytes:
    try:
        return _json(line)
    except Exception as error:  # whatever it is: the lines after this one are written
        log.error("an audit line cannot be encoded", event=line.get("event"), error=repr(error))
        known = {name: line.get(name) for name in COMMON}
        return _json(known | {"unwritable": f"{type(error).__name__}: {error}"})


def _json(line: dict[str, Any]) -> bytes:
    return json.dumps(bounded(line), separators=(",", ":"), default=str).encode() + b"\n"


class ProcessAudit:
    """The audit log of a process, if it has one."""

    def __init__(self, settings: Settings, name: str, clock: Clock, metrics: Metrics) -> None:
        """`name`: of the process. Raises OSError."""
        self.audit: Audit = SILENT
        self._writer: LineWriter | None = None
        if settings.audit_log_destination == "none":
            return
        target: Target = StandardOutput() if settings.audit_log_destination == "stdout" else RotatedFile(
            Path(settings.audit_log_dir), name, settings.audit_log_max_bytes, settings.audit_log_max_backups)
        writer = self._writer = LineWriter(target)
        excluded = frozenset(
            str(parsed(each.strip())) for each in settings.audit_log_excluded_principals.split(";") if each.strip())
        trail = self.audit = AuditLog(
            writer.put, clock.now_ms, settings.cluster_id, name, settings.audit_log_max_events, excluded)
        metrics.observe(AUDIT_EVENTS, lambda: [((event,), n) for event, n in sorted(trail.recorded.items())])
        metrics.observe(AUDIT_LEFT_OUT, lambda: [((event,), n) for event, n in sorted(trail.left_out.items())])
        metrics.observe(AUDIT_WRITE_FAILURES, lambda: writer.failures)

    def close(self) -> None:
        """Writes what is queued. The service has ended: nothing more is recorded."""
        if self._writer is None:
            return
        assert isinstance(self.audit, AuditLog)
        self.audit.settle()
        lost = self._writer.close()
        if lost:
            log.error("audit lines were not written", lines=lost)


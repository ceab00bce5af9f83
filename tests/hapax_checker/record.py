"""The record of a history, and its form as one JSON object per line.

A process is one producer plus one consumer. Each operation has a record of type `invoke`, and later one of type
`ok` (it took effect), `fail` (it certainly took none) or `info` (unknown); a missing outcome counts as `info`.

    f           value
    send, poll  micro-operations, see below; `txn` the same in one transaction
    txn
    assign      the keys that the consumer reads from now on (positions of keys it had stay)
    subscribe   the topics that it reads from now on
    crash       null: the process's clients are gone, and with them its positions
    debug       anything; ignored

Micro-operations: `["send", key, value]` completes as `["send", key, [offset or null, value]]`; `["poll"]` completes as
`["poll", {key: [[offset, value], ...]}]`, values in the order in which they came. A key is a topic-partition
(`"orders-3"`); a value is a string or a number, unique within its key over the whole history.

`rebalance_log`: keys whose assignment changed while the operation ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Key = str
Value = str | int
Kind = Literal["invoke", "ok", "fail", "info"]


@dataclass(slots=True)
class Operation:
    """One record. `time`: seconds since the history's beginning, only for the reader of a report."""

    index: int
    process: int | str
    time: float
    type: Kind
    f: str
    value: Any = None
    rebalance_log: list[Key] = field(default_factory=list)

    def sends(self) -> Iterator[tuple[Key, int | None, Value]]:
        """(key, offset or None, value) of each send, acknowledged or not."""
        for micro in self._micros():
            if micro[0] == "send":
                value = micro[2]
                if isinstance(value, list | tuple):
                    yield micro[1], value[0], value[1]
                else:
                    yield micro[1], None, value

    def polls(self) -> Iterator[tuple[Key, list[tuple[int, Value]]]]:
        """(key, [(offset, value)]) of each poll, in order."""
        for micro in self._micros():
            if micro[0] == "poll" and len(micro) > 1:
                yield from micro[1].items()

    def _micros(self) -> list[Any]:
        return self.value or [] if self.f in ("txn", "send", "poll") else []

    def __str__(self) -> str:
        return f"#{self.index} {self.process} {self.f} {self.type}"


def read_lines(lines: Iterable[str]) -> list[Operation]:
    """Raises ValueError or TypeError for an invalid line."""
    return [Operation(**json.loads(line)) for line in lines if line.strip()]


def line_of(operation: Operation) -> str:
    return json.dumps(
        {
            "index": operation.index,
            "process": operation.process,
            "time": round(operation.time, 6),
            "type": operation.type,
            "f": operation.f,
            "value": operation.value,
            "rebalance_log": operation.rebalance_log,
        },
        separators=(",", ":"),
    )


def completions(history: Iterable[Operation]) -> list[Operation]:
    """One record per operation, in the order of completion. An operation without a completion counts as `info` as it
    was invoked. It is placed before its process's next operation, or last."""
    done: list[Operation] = []
    running: dict[int | str, Operation] = {}
    for operation in history:
        if operation.type == "invoke":
            _give_up(running.get(operation.process), done)
            running[operation.process] = operation
        else:
            running.pop(operation.process, None)
            done.append(operation)
    for operation in running.values():
        _give_up(operation, done)
    return done


def _give_up(operation: Operation | None, done: list[Operation]) -> None:
    if operation is not None:
        lost = Operation(
            operation.index, operation.process, operation.time, "info", operation.f, operation.value,
            operation.rebalance_log,
        )  # fmt: skip
        done.append(lost)

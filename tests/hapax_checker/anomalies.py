"""The anomalies that are not cycles, one function each: `Knowledge` in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator

from hapax_checker.record import Key, Operation, Value
from hapax_checker.versions import Knowledge


def inconsistent_offsets(known: Knowledge) -> Iterator[str]:
    """One offset holds two or more values."""
    for key, log in known.values_at.items():
        for offset, values in log.items():
            if len(values) > 1:
                yield f"{key} offset {offset} held {sorted(values, key=str)[:4]}"


def duplicate(known: Knowledge) -> Iterator[str]:
    """One value stands at two or more offsets."""
    for key, versions in known.versions.items():
        for value, last in versions.last.items():
            first = versions.first[value]
            if first != last:
                yield f"{key}: {value!r} stands at offsets {versions.offsets[first]} and {versions.offsets[last]}"


def aborted_read(known: Knowledge) -> Iterator[str]:
    """G1a: an ok poll returns a failed operation's value."""
    failed = {
        (key, value): operation
        for operation in known.done
        if operation.type == "fail"
        for key, _, value in operation.sends()
    }
    # A value that was sent again by an operation that may have committed proves nothing.
    failed = {sent: o for sent, o in failed.items() if all(w.type == "fail" for w in known.writers[sent])}
    for operation in known.done:
        if operation.type == "ok":
            for key, pairs in operation.polls():
                for offset, value in pairs:
                    if (key, value) in failed:
                        yield f"{operation} read {value!r} at {key} offset {offset}, which {failed[key, value]} wrote"


def precommitted_read(known: Knowledge) -> Iterator[str]:
    """An operation polls its own write."""
    for operation in known.done:
        own = {(key, value) for key, _, value in operation.sends()}
        if not own or operation.f != "txn":
            continue
        for key, pairs in operation.polls():
            for _, value in pairs:
                if (key, value) in own:
                    yield f"{operation} read its own {value!r} from {key}"


def lost_write(known: Knowledge) -> Iterator[str]:
    """A value that must exist, below a value that was read, but that no reader saw."""
    for key, versions in known.versions.items():
        read = known.read_by_ok.get(key)
        if not read:
            continue
        bound = max(versions.first[value] for value in read)
        for value, last in versions.last.items():
            if last <= bound and value not in read:
                writers = [o for o in known.writers.get((key, value), ()) if id(o) in known.committed]
                if writers:
                    yield f"{key}: {value!r} at offset {versions.offsets[last]} of {writers[0]} was never read"


def unseen(known: Knowledge) -> Iterator[str]:
    """A value was acknowledged but is not among all values that were ever read."""
    for operation in known.done:
        if operation.type == "ok":
            for key, offset, value in operation.sends():
                if value not in known.read_by_ok.get(key, ()):
                    yield f"{key}: {value!r} of {operation} (offset {offset}) was never read"


def torn(known: Knowledge) -> Iterator[str]:
    """Of a transaction with unknown outcome, some values were read and others were not, even at the end."""
    for operation in known.done:
        if operation.type == "info" and operation.f == "txn" and id(operation) in known.committed:
            missing = [
                (key, value)
                for key, _, value in operation.sends()
                if value not in known.read_by_ok.get(key, ()) and len(known.writers[key, value]) == 1
            ]
            if missing:
                yield f"{operation} is visible without {missing[:3]}"


def phantom(known: Knowledge) -> Iterator[str]:
    """A value was read that no writer has sent."""
    for key, log in known.values_at.items():
        for offset, values in log.items():
            for value in values:
                if (key, value) not in known.writers:
                    yield f"{key} offset {offset}: {value!r} was never sent"


def int_poll(known: Knowledge) -> Iterator[tuple[str, str]]:
    """Adjacent reads of a key inside one operation: a step of more than 1, or of less."""
    for operation in known.done:
        for key, indices, values in known.index_runs(operation, "poll"):
            if key not in operation.rebalance_log:
                yield from _steps(operation, key, indices, values, "int-poll-skip", "int-nonmonotonic-poll")


def int_send(known: Knowledge) -> Iterator[tuple[str, str]]:
    """The same for sends."""
    for operation in known.done:
        for key, indices, values in known.index_runs(operation, "send"):
            yield from _steps(operation, key, indices, values, "int-send-skip", "int-nonmonotonic-send")


def _steps(
    operation: Operation, key: Key, indices: list[int], values: list[Value], skip: str, nonmonotonic: str
) -> Iterator[tuple[str, str]]:
    for (before, a), (after, b) in zip(
        zip(indices, values, strict=True), zip(indices[1:], values[1:], strict=True), strict=False
    ):
        if after - before > 1:
            yield skip, f"{operation}: {key} from {a!r} to {b!r} over {after - before - 1} others"
        elif after - before < 1:
            yield nonmonotonic, f"{operation}: {key} from {a!r} back to {b!r} ({before} to {after})"


def poll_across(known: Knowledge) -> Iterator[tuple[str, str]]:
    """From a process's last ok read of a key to its next. Positions of keys that an assignment drops are forgotten."""
    last: dict[int | str, dict[Key, tuple[int, Value]]] = {}
    for operation in known.done:
        position = last.setdefault(operation.process, {})
        if operation.f == "crash":
            position.clear()
        elif operation.f in ("assign", "subscribe"):
            if operation.type != "fail":
                kept = [k for k in position if _retained(k, operation)]
                last[operation.process] = {key: position[key] for key in kept}
        elif operation.type == "ok":
            for key in operation.rebalance_log:
                position.pop(key, None)
            for key, indices, values in known.index_runs(operation, "poll"):
                before = position.get(key)
                if before is not None:
                    step = indices[0] - before[0]
                    what = f"{operation}: {key} from {before[1]!r}"
                    if step > 1:
                        yield "poll-skip", f"{what} to {values[0]!r} over {step - 1} others"
                    elif step < 1:
                        yield "nonmonotonic-poll", f"{what} back to {values[0]!r}"
                position[key] = indices[-1], values[-1]


def _retained(key: Key, operation: Operation) -> bool:
    wanted = operation.value or []
    return key in wanted if operation.f == "assign" else key.rpartition("-")[0] in wanted


def nonmonotonic_send(known: Knowledge) -> Iterator[str]:
    """From a process's last send of a key to its next; ok and info count."""
    last: dict[int | str, dict[Key, tuple[int, Value]]] = {}
    for operation in known.done:
        position = last.setdefault(operation.process, {})
        if operation.f == "crash":
            position.clear()
        elif id(operation) in known.committed:
            for key, indices, values in known.index_runs(operation, "send"):
                before = position.get(key)
                if before is not None and indices[0] <= before[0]:
                    yield f"{operation}: {key} {values[0]!r} stands before the earlier {before[1]!r}"
                position[key] = indices[-1], values[-1]

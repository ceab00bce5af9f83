"""What the history says about each key's log: the order of versions, their writers, and their readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hapax_checker.record import Key, Operation, Value


class Versions:
    """The log of one key as dense indices: offsets without known content (markers, aborted records) are dropped."""

    __slots__ = ("at_index", "first", "last", "offsets")

    def __init__(self, values_at: dict[int, set[Value]]) -> None:
        self.offsets = sorted(values_at)
        self.at_index: list[list[Value]] = [sorted(values_at[offset], key=str) for offset in self.offsets]
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        for index, values in enumerate(self.at_index):
            for value in values:
                self.first.setdefault(value, index)
                self.last[value] = index


class Knowledge:
    """Built once from the completions. Every check reads it.

    A send counts in the order of versions only if it must have committed: its operation is ok, or it is info and an ok
    operation read one of its values. Polls always count, even those of failed operations.
    """

    def __init__(self, done: Sequence[Operation]) -> None:
        self.done = done
        self.writers: dict[tuple[Key, Value], list[Operation]] = {}
        self.read_by_ok: dict[Key, set[Value]] = {}
        self.values_at: dict[Key, dict[int, set[Value]]] = {}
        for operation in done:
            for key, _, value in operation.sends():
                self.writers.setdefault((key, value), []).append(operation)
            for key, pairs in operation.polls():
                log = self.values_at.setdefault(key, {})
                for offset, value in pairs:
                    log.setdefault(offset, set()).add(value)
                if operation.type == "ok":
                    self.read_by_ok.setdefault(key, set()).update(value for _, value in pairs)
        self.committed: set[int] = {id(o) for o in done if self._must_have_committed(o)}
        for operation in done:
            if id(operation) in self.committed:
                for key, offset, value in operation.sends():
                    if offset is not None and offset >= 0:
                        self.values_at.setdefault(key, {}).setdefault(offset, set()).add(value)
        self.versions = {key: Versions(log) for key, log in self.values_at.items()}

    def _must_have_committed(self, operation: Operation) -> bool:
        if operation.type == "ok":
            return True
        if operation.type != "info":
            return False
        return any(value in self.read_by_ok.get(key, ()) for key, _, value in operation.sends())

    def index_runs(self, operation: Operation, what: str) -> Iterator[tuple[Key, list[int], list[Value]]]:
        """For each key, the indices of an operation's values, in the order of its micro-operations. `what` is `poll` or
        `send`. If a value has several indices, only the first counts for further reading, so that a duplicate is
        reported once, as a duplicate."""
        runs: dict[Key, list[Value]] = {}
        if what == "poll":
            for key, pairs in operation.polls():
                runs.setdefault(key, []).extend(value for _, value in pairs)
        else:
            for key, _, value in operation.sends():
                runs.setdefault(key, []).append(value)
        for key, values in runs.items():
            first = self.versions[key].first if key in self.versions else {}
            known = [value for value in values if value in first]
            if known:
                yield key, [first[value] for value in known], known

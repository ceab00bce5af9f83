"""Several writers of one multi-writer transaction and the driver that decides it, as in an engine such as Spark."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.errors import ErrorCode
from hapax_explore.clients import ABORTED, COMMITTED, UNKNOWN, Connected, Outcome
from hapax_explore.component import Choice

_TRY_AGAIN: Final = frozenset({
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
})


class Tasks(Connected):
    """Each member joins under a commit token and writes a batch. The first member wins. Another member wins if its
    batch was acknowledged when the commit is sent. Otherwise its records must never become readable."""

    def __init__(
        self, name: str, writes: tuple[tuple[str, str], ...], *, transactional_id: str = "tx", coordinator: str = "c1"
    ) -> None:
        """`writes`: (partition, value) of each member. The value identifies the member."""
        super().__init__(name, transactional_id, coordinator)
        self.writes = writes
        self.joined: dict[str, tuple[int, int]] = {}
        self.written: dict[str, str] = {}
        """Member -> "flying", "stored" or "lost"."""
        self.winners: tuple[str, ...] = ()
        self.end = ""
        """Empty if no commit was sent."""

    # --- the application ----------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        found = []
        for partition, member in self.writes:
            if not self.asked and member not in self.joined and self.end != ABORTED:
                found.append(Choice(f"join:{member}"))
            elif member in self.joined and member not in self.written:
                found.append(Choice(f"write:{member}"))
            if self.written.get(member) == "flying":
                found.append(Choice(f"reconnect:{partition}", "reconnect"))
        if not self.asked and not self.end and self.written.get(self.writes[0][1]) == "stored":
            found.append(Choice("commit"))
        if self.asked and not self.stuck:
            found.append(Choice(f"reconnect:{self.asked_at}", "reconnect"))
        return list(dict.fromkeys(found))

    def _do_join(self, member: str) -> None:
        self._ask("join", member)

    def _do_write(self, member: str) -> None:
        self.written[member] = "flying"
        partition = next(where for where, value in self.writes if value == member)
        self._send(partition, "produce", 12, self.transactional_id, *self.joined[member], 0, member)

    def _do_commit(self, rest: str) -> None:
        self.winners = tuple(member for _, member in self.writes if self.written.get(member) == "stored")
        self.end = UNKNOWN
        partitions = {value: where for where, value in self.writes}
        self._ask("decide", tuple((*self.joined[each], partitions[each]) for each in self.winners))

    def _do_reconnect(self, source: str) -> None:
        self._lost(source)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _on_produced(self, partition: str, connection: int, value: str, error: int) -> None:
        if not self._current(partition, connection) or self.written.get(value) != "flying":
            return
        if error in _TRY_AGAIN:
            self._do_write(value)
        else:
            self.written[value] = "lost" if error else "stored"

    def _writes_lost(self, partition: str) -> None:
        """It is unknown whether these members' records are stored, so the members do not win."""
        for where, member in self.writes:
            if where == partition and self.written.get(member) == "flying":
                self.written[member] = "lost"

    def _replied(self, kind: str, code: int, producer_id: int, epoch: int) -> None:
        if code in _TRY_AGAIN:
            self._ask(*self.asked)
            return
        asked, self.asked = self.asked, ()
        if kind == "decide":
            self.end = ABORTED if code else COMMITTED
        elif not code and producer_id >= 0:
            self.joined[asked[1]] = producer_id, epoch
        else:  # the transaction is over
            self.joined[asked[1]] = -1, -1
            self.written[asked[1]] = "lost"

    def view(self) -> tuple[Any, ...]:
        """The view of a producer. Records that did not win count as an aborted transaction."""
        waits = bool(self.asked) or "flying" in self.written.values()
        if not self.end:
            return (Outcome(self.writes, UNKNOWN),), waits, (), False
        won = Outcome(tuple(each for each in self.writes if each[1] in self.winners), self.end)
        lost = Outcome(tuple(each for each in self.writes if each[1] not in self.winners), ABORTED)
        return (won, lost) if self.end == COMMITTED else (won,), waits, (), False

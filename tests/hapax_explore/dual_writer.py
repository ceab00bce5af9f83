"""A program that writes a database and the log in one atomic step (KIP-939). Its processes die, the database lives."""

from __future__ import annotations

from typing import Any

from hapax.core.producer.machine import ClientProducer, ProducerOptions
from hapax.core.producer.partition_queue import NO_IDENTITY, Identity
from hapax.core.producer.states import Ended, RequestProducerId, State
from hapax_explore.clients import ABORTED, COMMITTED, UNKNOWN, Choice, NativeProducer, Planned, _identity


class DualWriter(NativeProducer):
    """Prepares each transaction, then commits or rolls back the database, and ends the transaction as the database
    says. An outcome is what the database says, from the moment that it says it."""

    def __init__(self, name: str, plan: tuple[Planned, ...]) -> None:
        super().__init__(name, plan, version=2)
        self.decided: Identity | None = None
        """In the database: the last transaction that it has committed."""
        self.rolled_back = False
        self.kept: Identity | None = None
        self._new_process()

    def _new_process(self) -> None:
        self.machine = ClientProducer(ProducerOptions(
            transactional=True, version=2, two_phase=True, retry_backoff_ms=0, retry_backoff_max_ms=0))
        self.kept, self.rolled_back = None, False

    def choices(self) -> list[Choice]:
        state = self.machine.state
        found = []
        if state is State.UNINITIALIZED:
            found.append(Choice("init"))
        elif state is State.READY and self.begun < len(self.plan) and not self.asked:
            found.append(Choice("begin"))
        elif state is State.IN_TRANSACTION and not self.machine.pending:
            found.append(Choice("prepare"))
        elif state is State.PREPARED_TRANSACTION:
            if self._outcome() == UNKNOWN:
                found += [Choice("decide"), Choice("roll_back")]
            else:
                found.append(Choice("complete"))
        elif state is State.ABORTABLE_ERROR and not self.asked:
            found.append(Choice("abort"))
        if self.flying:
            leaders = dict.fromkeys(leader for _, (_, leader) in self.flying.values())
            found += [Choice(f"reconnect:{each}", "reconnect") for each in leaders]
        if self.asked and not self.stuck:
            found.append(Choice(f"reconnect:{self.asked_at}", "reconnect"))
        if state not in (State.UNINITIALIZED, State.FATAL_ERROR):
            found.append(Choice("die", "producer dies"))
        return found

    def _outcome(self) -> str:
        return self.outcomes[-1].end if self.outcomes else ABORTED

    def _database(self, end: str) -> None:
        *before, last = self.outcomes
        self.outcomes = (*before, last._replace(end=end))

    def _do_prepare(self, rest: str) -> None:
        self.machine.prepare()

    def _do_decide(self, rest: str) -> None:
        """The database's commit holds the transaction's name."""
        self.decided = self.machine.prepared
        self._database(COMMITTED)

    def _do_roll_back(self, rest: str) -> None:
        self._database(ABORTED)

    def _do_complete(self, rest: str) -> None:
        if self.machine.prepared == self.decided:
            self.machine.commit()
        else:
            self.machine.abort()

    def _do_die(self, rest: str) -> None:
        """What the database has not committed, it never will. The next process may start at any time."""
        for to in list(self.connections):
            self._close(to)
        self.asked, self.stuck = (), False
        self.flying, self.homeless = {}, {}
        if self._outcome() == UNKNOWN:
            self._database(ABORTED)
        self._new_process()

    def _on_answered(
        self, source: str, connection: int, kind: str, code: int, producer_id: int, epoch: int, *kept: int
    ) -> None:
        self.kept = _identity(*kept) if kept else None
        super()._on_answered(source, connection, kind, code, producer_id, epoch)

    def _replied(self, kind: str, code: int, producer_id: int, epoch: int) -> None:
        if kind == "init" and not code:
            self.asked = ()
            self.machine.initialized(_identity(producer_id, epoch), kept=self.kept)
        else:
            super()._replied(kind, code, producer_id, epoch)

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, RequestProducerId):
            self._ask("init", *effect.current, True, effect.current == NO_IDENTITY)
        elif isinstance(effect, Ended):
            if self._outcome() == UNKNOWN:  # it could not be prepared
                self._database(ABORTED)
        else:
            super()._carry_out(effect)

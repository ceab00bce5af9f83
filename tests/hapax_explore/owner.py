"""An owner of a coordinator's shard, of either kind. It does the work of `coordinator/shard.py` and
`coordinator/log_writer.py` without their futures: a call that waits for the log is a value here."""

from __future__ import annotations

from typing import Any, NamedTuple

from hapax.core.errors import ErrorCode
from hapax_explore.component import Choice, Component, Effect, Send


class Call(NamedTuple):
    """A client's call or another service's. `answer_to` and `channel` say where its answer is sent."""

    kind: str
    transactional_id: str
    answer_to: str
    channel: str
    connection: int
    arguments: tuple[Any, ...]


class Unit(NamedTuple):
    """Records that are stored together, and what follows once they are stored."""

    records: tuple[Any, ...]
    call: Call | None
    reply: Any = None


class Owner(Component):
    """`serves`: whether it owns the shard from the start. Another owner may take over."""

    def __init__(self, name: str, log: str, told: tuple[str, ...], *, serves: bool, successor: str) -> None:
        """`log`: the component that keeps its records; if empty, they are stored at once. `told`: the components that
        learn of its take-over. `successor`: the owner that takes over if this one dies, which it then may."""
        self.name = name
        self.log = log
        self.told = told
        self.successor = successor
        self.assigned = 1 if serves else 2
        self.incarnation = 0
        self.serving = serves
        self.taking_over = False
        self.gone = False
        """Whether it was fenced or released."""
        self.is_assigned = False
        """Whether the controller has given it the shard."""
        self.queue: list[Unit] = []
        self.sent: list[Unit] = []
        self.confirming: list[tuple[Call, Any]] = []
        """Answers on which others decide. They are sent once it is certain that no other owner has taken over."""
        self.confirms_sent: list[tuple[Call, Any]] = []
        self.stored_records = 0
        self.later: list[Call] = []
        """Calls that arrived or were interrupted while it loads again. Their callers repeat them until it serves."""
        self.out: list[Effect] = []

    @property
    def epoch(self) -> int:
        return self.assigned << 4 | self.incarnation

    # --- implemented by each kind -------------------------------------------------------------------------------------

    def _begin_load(self) -> None:
        """Creates a new machine."""
        raise NotImplementedError

    def _load(self, record: Any, offset: int) -> None:
        raise NotImplementedError

    def _loaded(self) -> None:
        raise NotImplementedError

    def _stored(self, unit: Unit, offset: int) -> None:
        """Called when the unit is durable. `offset` is that of its first record; -1 if the log already had it."""
        raise NotImplementedError

    def _waiting(self) -> list[Call]:
        """Returns and forgets the calls that wait for something other than the log."""
        raise NotImplementedError

    def _answer(self, call: Call, reply: Any) -> None:
        raise NotImplementedError

    def _refuse(self, call: Call, code: ErrorCode) -> None:
        raise NotImplementedError

    def _again(self, call: Call) -> None:
        """Lets the call's sender repeat it."""
        raise NotImplementedError

    # --- messages -----------------------------------------------------------------------------------------------------

    def receive(self, body: tuple[Any, ...]) -> list[Effect]:
        getattr(self, "_on_" + body[0])(*body[1:])
        return self._done()

    def _done(self) -> list[Effect]:
        self._flush()
        out, self.out = self.out, []
        return out

    def _on_appended(self, epoch: int, code: int, offset: int) -> None:
        if epoch != self.epoch or not self.serving:
            return
        sent, self.sent = self.sent, []
        confirmed, self.confirms_sent = self.confirms_sent, []
        if code == ErrorCode.OFFSET_NOT_AVAILABLE:
            for call, _ in confirmed:
                self._refuse(call, ErrorCode.NOT_COORDINATOR)
            return
        if code:
            self.sent, self.confirms_sent = sent, confirmed
            self._released()
            return
        for unit in sent:
            self._stored(unit, offset)
            offset += len(unit.records) if offset >= 0 else 0
        for call, reply in confirmed:
            self._answer(call, reply)

    def _on_fenced(self, epoch: int, code: int, records: tuple[Any, ...]) -> None:
        if epoch != self.epoch or not self.taking_over:
            return
        self.taking_over = False
        later, self.later = self.later, []
        if code:
            self.gone = True
            for call in later:
                self._refuse(call, ErrorCode.NOT_COORDINATOR)
            return
        self._begin_load()
        for offset, record in enumerate(records):
            self._load(record, offset)
        self.serving = True
        self._loaded()
        if not self.incarnation:
            self.out += [Send(each, ("moved", self.name)) for each in self.told]
        for call in later:
            self._again(call)

    def _on_assigned(self) -> None:
        """The controller's message: the shard now belongs to this node."""
        self.is_assigned = True

    # --- log ----------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Keeps one request in flight. Records that arrive meanwhile go into the next one."""
        while self.serving and not self.sent and not self.confirms_sent and (self.queue or self.confirming):
            self.sent = self.queue[:1] if not self._groups(self.queue) else self.queue
            self.queue = self.queue[len(self.sent) :]
            self.confirms_sent, self.confirming = self.confirming, []
            records = tuple(record for unit in self.sent for record in unit.records)
            if self.log:
                self.out.append(Send(self.log, ("append", self.name, self.epoch, records)))
            else:
                offset = self.stored_records
                self.stored_records += len(records)
                self._on_appended(self.epoch, 0, offset)

    def _groups(self, queue: list[Unit]) -> bool:
        """Whether all of the queue forms one batch."""
        return True

    def _released(self) -> None:
        """Called when the log holds a higher epoch, or the process has died."""
        waiting = self._stop()
        self.gone = True
        for call in waiting:
            self._refuse(call, ErrorCode.NOT_COORDINATOR)

    def _stop(self) -> list[Call]:
        """Returns the calls that waited."""
        self.serving = False
        waiting = [unit.call for unit in (*self.sent, *self.queue) if unit.call is not None]
        waiting += [*self._waiting(), *(call for call, _ in (*self.confirms_sent, *self.confirming))]
        self.queue, self.sent, self.confirming, self.confirms_sent = [], [], [], []
        self._begin_load()
        return waiting

    # --- timers and faults --------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        if self.taking_over and self.later:
            return [Choice("give-up", late=True)]
        if self.gone or self.taking_over:
            return []
        if not self.serving:
            return [Choice("take-over", "" if self.is_assigned else "take-over")]
        found = []
        if self.successor:
            found.append(Choice("crash", "coordinator crash"))
        if self.sent and self.log:
            found.append(Choice("lose-log", "lost append", late=True))
        return found

    def act(self, choice: str) -> list[Effect]:
        what, _, rest = choice.partition(":")
        getattr(self, "_do_" + what.replace("-", "_"))(rest)
        return self._done()

    def _do_crash(self, rest: str) -> None:
        """Connections break: the outcome of the waiting calls is unknown. Records in flight to the log may still be
        stored."""
        self._released()
        self.out.append(Send(self.successor, ("assigned",)))

    def _do_lose_log(self, rest: str) -> None:
        """The request in flight gets no answer, so the content of the log is unknown. The owner starts again under a
        higher epoch."""
        self.later = self._stop()
        self.incarnation += 1
        self._do_take_over(rest)

    def _do_give_up(self, rest: str) -> None:
        """The owner never begins to serve; its callers try elsewhere."""
        later, self.later = self.later, []
        for call in later:
            self._refuse(call, ErrorCode.NOT_COORDINATOR)

    def _do_take_over(self, rest: str) -> None:
        self.taking_over = True
        self.out.append(Send(self.log, ("fence", self.name, self.epoch)))

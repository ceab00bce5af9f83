"""An owner of a group shard: the real `GroupShard`, and a model of `coordinator/groups.py`."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.machine import GroupShard
from hapax.core.group.offsets import CommitRequest, MarkerDecision, OffsetRecord, OffsetsMarker, TxnOffsetCommit
from hapax.core.transaction.connection_fencing import ConnectionFencing
from hapax.core.types import Millis, Now, PartitionIndex, TimestampMs, TopicPartition
from hapax_explore.broker import MOVING
from hapax_explore.component import Send
from hapax_explore.owner import Call, Owner, Unit

GROUP: Final = "group"
SOURCE: Final = TopicPartition("source", PartitionIndex(0))
_NOW: Final = TimestampMs(0)


class GroupOwner(Owner):
    """`process` numbers the owner's questions to the coordinator, as it numbers those of calls."""

    def __init__(
        self, name: str, log: str, told: tuple[str, ...], *, serves: bool = True, successor: str = "",
        coordinator: str = "c1",
    ) -> None:
        super().__init__(name, log, told, serves=serves, successor=successor)
        self.coordinator = coordinator
        self._begin_load()

    def _begin_load(self) -> None:
        self.machine = GroupShard()
        self.connections = ConnectionFencing()
        self.marking: dict[int, tuple[Call, ...]] = {}
        """Producers whose marker is being appended -> the calls that wait for it."""
        self.verifying: dict[int, Call] = {}
        """Ticket of a question to the coordinator -> the call that waits for its answer."""
        self.tickets = 0
        self.unasked: tuple[int, ...] = ()

    # --- log ----------------------------------------------------------------------------------------------------------

    def _groups(self, queue: list[Unit]) -> bool:
        """Returns False: the real log has batches of one producer each, and separate batches for markers, so here each
        unit is one batch."""
        return False

    def _load(self, record: Any, offset: int) -> None:
        self._replay(record, offset)

    def _replay(self, record: Any, offset: int) -> None:
        if isinstance(record, Marker):
            self.machine.replay_marker(_offsets_marker(record), _NOW)
        else:
            offsets, producer_id, epoch = record
            if producer_id < 0:
                self.machine.replay_offset(offsets, offset)
            else:
                self.machine.replay_txn_offset(offsets, offset, producer_id, epoch)

    def _loaded(self) -> None:
        pass

    def _stored(self, unit: Unit, offset: int) -> None:
        if offset >= 0:
            for place, record in enumerate(unit.records):
                self._replay(record, offset + place)
        [first] = unit.records
        assert unit.call is not None
        self._answer(unit.call, ErrorCode.NONE)
        if isinstance(first, Marker):
            for call in self.marking.pop(first.producer_id, ()):
                self._call(call)

    def _waiting(self) -> list[Call]:
        waiting = [*self.verifying.values(), *(call for calls in self.marking.values() for call in calls)]
        self.verifying, self.marking = {}, {}
        return waiting

    # --- messages -----------------------------------------------------------------------------------------------------

    def _on_offsets(
        self, client: str, connection: int, txid: str, producer_id: int, epoch: int, offset: int, version: int
    ) -> None:
        decided = self.machine.last_decided(producer_id)  # type: ignore[arg-type]
        arguments = (producer_id, epoch, offset, version, None, decided)
        self._call(Call("offsets", txid, client, f"{self.name}>{client}#{connection}", connection, arguments))

    def _on_read(self, client: str, connection: int, txid: str) -> None:
        self._call(Call("read", txid, client, f"{self.name}>{client}#{connection}", connection, ()))

    def _on_marker(
        self, coordinator: str, coordinator_epoch: int, txid: str, serial: int, producer_id: int, producer_epoch: int,
        commit: bool, version: int, first_offset: int,
    ) -> None:
        marker = Marker(producer_id, producer_epoch, commit, coordinator_epoch, serial, 0)
        self._call(Call("marker", txid, coordinator, "", -1, (marker,)))

    def _on_verified(self, asked_by: tuple[Any, ...], error: int, epoch: int, serial: int, asked: str) -> None:
        _, ticket, *_ = asked_by
        call = self.verifying.get(ticket)
        if call is None or asked_by[0] != self.epoch:
            return
        if error in MOVING:
            if asked != self.coordinator:
                self._verify(ticket, call)
            else:
                self.unasked = (*self.unasked, ticket)
            return
        del self.verifying[ticket]
        if error:
            self._refuse(call, ErrorCode(error))
            return
        producer_id, epoch, offset, version, _, decided = call.arguments
        self._call(call._replace(arguments=(producer_id, epoch, offset, version, serial, decided)))

    def _on_moved(self, coordinator: str) -> None:
        self.coordinator = coordinator
        unasked, self.unasked = self.unasked, ()
        for ticket in unasked:
            self._verify(ticket, self.verifying[ticket])

    def _verify(self, ticket: int, call: Call) -> None:
        producer_id, epoch, _, version, *_ = call.arguments
        self.out.append(Send(self.coordinator, (
            "verify", self.name, self.epoch, ticket, call.transactional_id, producer_id, epoch, version >= 2, 0
        )))

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, call: Call) -> None:
        if self.taking_over:
            self.later.append(call)
            return
        try:
            if not self.serving:
                raise Refusal(ErrorCode.NOT_COORDINATOR)
            getattr(self, "_" + call.kind)(call)
        except Refusal as refusal:
            self._refuse(call, refusal.code)

    def _again(self, call: Call) -> None:
        if call.kind == "offsets":
            producer_id, epoch, offset, version, *_ = call.arguments
            decided = self.machine.last_decided(producer_id)
            call = call._replace(arguments=(producer_id, epoch, offset, version, None, decided))
        self._call(call)

    def _offsets(self, call: Call) -> None:
        """As `OffsetsShard.txn_offset_commit`."""
        producer_id, epoch, offset, version, verified, decided = call.arguments
        machine = self.machine
        if producer_id in self.marking:
            self.marking[producer_id] = (*self.marking[producer_id], call)
            return
        if verified is None and machine.needs_verification(producer_id, epoch):
            self.tickets += 1
            self.verifying[self.tickets] = call
            self._verify(self.tickets, call)
            return
        if verified is not None and machine.is_decided(producer_id, verified):
            raise Refusal(ErrorCode.INVALID_TXN_STATE)
        wanted = CommitRequest(SOURCE, offset, -1, "")
        request = TxnOffsetCommit("", GROUP, producer_id, epoch, -1, "", None, (wanted,))
        decision = machine.decide_txn_offset_commit(request, Now(Millis(0), _NOW))
        if version < 2:
            if self.connections.admit(call.transactional_id, producer_id, epoch, call.connection) is not None:
                self.out.append(Send(call.answer_to, ("closed", self.name, call.connection), call.channel))
                return
            if machine.last_decided(producer_id) > decided:
                raise Refusal(ErrorCode.INVALID_TXN_STATE)
        record: tuple[OffsetRecord, int, int] = (decision.records[0], producer_id, epoch)
        self.queue.append(Unit((record,), call))

    def _marker(self, call: Call) -> None:
        """As `OffsetsShard.write_marker`."""
        [marker] = call.arguments
        if marker.producer_id in self.marking:
            self.marking[marker.producer_id] = (*self.marking[marker.producer_id], call)
        elif self.machine.decide_marker(_offsets_marker(marker)) is MarkerDecision.DUPLICATE:
            self.confirming.append((call, ErrorCode.NONE))
        else:
            self.marking[marker.producer_id] = ()
            self.queue.append(Unit((marker,), call))

    def _read(self, call: Call) -> None:
        """Corresponds to `OffsetsShard.offset_fetch`: reads the offset once it is certain that no other owner has taken
        over."""
        self.confirming.append((call, ErrorCode.NONE))

    def _refuse(self, call: Call, code: ErrorCode) -> None:
        self._answer(call, code)

    def _answer(self, call: Call, reply: Any) -> None:
        code = int(reply)
        if call.kind == "marker":
            [marker] = call.arguments
            self.out.append(Send(call.answer_to, (
                "marked", marker.coordinator_epoch, call.transactional_id, marker.serial, marker.producer_id,
                "offsets", code,
            )))
            return
        offset = -1
        if call.kind == "read" and not code:
            [found] = self.machine.fetch(GROUP, (SOURCE,), require_stable=True)
            code = int(found.error)
            offset = -1 if found.committed is None else found.committed.offset
        self.out.append(Send(
            call.answer_to, ("answered", self.name, call.connection, call.kind, code, offset, -1), call.channel
        ))

    # --- what is visible ----------------------------------------------------------------------------------------------

    def view(self) -> tuple[Any, ...]:
        """(serving, committed offset, number of open transactions, whether calls wait)."""
        [found] = self.machine.fetch(GROUP, (SOURCE,), require_stable=False)
        offset = -1 if found.committed is None else found.committed.offset
        waits = bool(self.queue or self.sent or self.confirming or self.verifying or self.marking)
        return self.serving, offset, len(self.machine.open_transactions()), waits


def _offsets_marker(marker: Marker) -> OffsetsMarker:
    return OffsetsMarker(
        marker.producer_id, marker.producer_epoch, marker.commit, marker.coordinator_epoch, marker.serial  # type: ignore[arg-type]
    )

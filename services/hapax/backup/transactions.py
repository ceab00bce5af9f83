"""What the internal topics say of transactions, for a backup that is taken and for one that is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from hapax.codec.internal_records import decode_batch
from hapax.codec.offsets_log import decode_record
from hapax.core.backup.cut import Decided, ReadUpTo
from hapax.core.batch import BatchHeader
from hapax.core.control import Control, Marker
from hapax.core.group.offsets import OffsetRecord
from hapax.core.transaction.record import Transaction
from hapax.core.transaction.states import State
from hapax.core.types import TopicPartition

AT_REST: Final = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


class Ids(NamedTuple):
    decided: Decided
    preparing: dict[str, int]
    """Transactional id -> serial of a transaction whose markers may not all be stored."""
    highest_producer_id: int


def owned_ids(record: Transaction) -> list[int]:
    """The producer ids with which the transactional id's records are written."""
    owned = {record.producer_id, record.next_producer_id, record.previous_producer_id}
    owned |= {member.producer_id for member in record.members}
    owned |= {member.producer_id for member in record.idle_members}
    return [each for each in owned if each >= 0]


def through_of(record: Transaction) -> int:
    """Serial of the id's last decided transaction."""
    return record.serial - 1 if record.state is State.ONGOING else record.serial


def ids_of(records: Iterable[Transaction], highest: int) -> Ids:
    ids: dict[int, str] = {}
    through: dict[str, int] = {}
    preparing: dict[str, int] = {}
    for record in records:
        name = record.transactional_id
        through[name] = through_of(record)
        if record.state not in (*AT_REST, State.ONGOING):
            preparing[name] = record.serial
        ids |= dict.fromkeys(owned_ids(record), name)
    return Ids(Decided(ids, through), preparing, highest)


def merged(one: Ids, other: Ids) -> Ids:
    decided = Decided({**one.decided.ids, **other.decided.ids}, {**one.decided.through, **other.decided.through})
    return Ids(decided, one.preparing | other.preparing, max(one.highest_producer_id, other.highest_producer_id))


class OffsetsReader:
    """The offsets that transactions commit, from the batches of one partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self._pending: dict[int, list[tuple[TopicPartition, int]]] = {}

    def data(self, batch: memoryview, header: BatchHeader) -> None:
        if header.producer_id < 0:
            return
        for _, key, value in decode_batch(batch, header):
            record = decode_record(key, value)
            if isinstance(record, OffsetRecord) and record.value is not None:
                self._pending.setdefault(header.producer_id, []).append((record.partition, record.value.offset))

    def control(self, header: BatchHeader, control: Control) -> list[ReadUpTo]:
        """What the transaction has read that a commit marker ends."""
        if not isinstance(control, Marker):
            return []
        committed = self._pending.pop(control.producer_id, [])
        return [ReadUpTo(control.producer_id, control.serial, *each) for each in committed if control.commit]

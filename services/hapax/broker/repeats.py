"""A transactional batch that has the sequences of a stored one of its transaction, and another checksum.

It is a retry if the topic's `compression.type` or level was changed between: then the broker has stored other bytes
than it would store now. Otherwise it is another batch, which must not be answered as the stored one (rule 24). Their
records decide. They are compared off the loop, in at most as many threads as look at clients' records.
"""

from __future__ import annotations

from typing import Final, Protocol

from hapax.broker.replica_context import ReplicaContext
from hapax.broker.waiters import Settles
from hapax.codec.batch import read_header
from hapax.codec.incoming import same_records
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import AppendDecision, PartitionMachine
from hapax.core.partition.values import Duplicate, OtherBatch, WriteResult
from hapax.log.reading import Cold
from hapax.log.segment_log import SegmentLog
from hapax.log.soundness import Damaged
from hapax.runtime import supervision, telemetry

log = telemetry.logger("repeats")

_WARMING_ROUNDS: Final = 4


class RepeatedPartition(Protocol):
    """`replica.Replica`."""

    name: str
    context: ReplicaContext
    machine: PartitionMachine
    serving: bool

    @property
    def log(self) -> SegmentLog: ...
    def refused(self, batch: memoryview | bytearray, refusal: Refusal, call: Settles) -> WriteResult: ...
    def carry_out(
        self, decision: AppendDecision, batch: memoryview, header: BatchHeader, call: Settles, number: int, local: bool
    ) -> None: ...


def compares(
    partition: RepeatedPartition, batch: memoryview | bytearray, refusal: Refusal, call: Settles, number: int,
    transactional_id: str,
) -> bool:
    """Whether the write is settled later, once its records are compared with the stored ones. `batch` is valid during
    the call only."""
    if not isinstance(refusal, OtherBatch):
        return False
    supervision.once(
        _compare(partition, bytearray(batch), refusal, call, number, transactional_id), "repeats", partition.name)
    return True


async def _compare(
    partition: RepeatedPartition, batch: bytearray, refusal: OtherBatch, call: Settles, number: int,
    transactional_id: str,
) -> None:
    answer: Refusal = refusal
    try:
        if await _is_stored(partition, batch, refusal.stored):
            header = read_header(batch)
            partition.carry_out(refusal.stored, memoryview(batch), header, call, number, False)
            return
    except Refusal as other:
        answer = other
    except (Damaged, OSError) as error:
        # The refusal stands: it makes the client abort, and nothing is lost.
        log.warning("a batch could not be compared with the stored one", partition=partition.name, error=str(error))
    except Exception as error:  # as where a request fails: whether the batch is stored is not known
        supervision.failed("repeats", error, partition.name)
        call.drop("a write could not be compared with the stored one")
        return
    partition.context.settle_refused(
        call, number, partition.refused(batch, answer, call), answer, transactional_id)


async def _is_stored(partition: RepeatedPartition, batch: bytearray, stored: Duplicate) -> bool:
    """Raises OSError, Damaged, and Refusal(NOT_LEADER_OR_FOLLOWER) if the log was changed meanwhile: the client asks
    the present leader, which may be this one."""
    segments = partition.log
    cuts, same, warmed = segments.cuts, [False], 0

    def look(data: memoryview) -> None:
        same[0] = same_records(data, batch)

    async with partition.context.intake_gate:
        while True:
            if not partition.serving or (partition.log, segments.cuts) != (segments, cuts):
                raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log was changed while its batch was compared")
            if stored.base_offset < segments.start_offset:
                return False  # DeleteRecords has removed it with its segment
            try:
                fetched = segments.read(
                    stored.base_offset, 1, stored.wait_for + 1, warmed=warmed >= _WARMING_ROUNDS)
            except Cold as cold:
                await segments.warm(cold)
                warmed += 1
                continue
            break
        assert fetched.range is not None, "compaction leaves an open transaction alone"
        try:
            await fetched.range.examine(look)
        finally:
            fetched.range.release()
    if not partition.serving or (partition.log, segments.cuts) != (segments, cuts):
        raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log was changed while its batch was compared")
    return same[0]

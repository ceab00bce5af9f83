"""Batches of a backup come into a partition, with the offsets that they had (`hapax restore`).

Only a topic with the configuration `restoring` takes them. Its clients wait meanwhile, so that no other record
comes between. The leader appends and replays each batch as a follower does with its leader's. Batches below the log's
end are skipped, so that an interrupted restore repeats its calls.
"""

from __future__ import annotations

from hapax.broker.replica import Replica
from hapax.codec.batch import check_batch, iterate_batches, patch_prefix, read_header
from hapax.core.errors import ErrorCode, Refusal
from hapax.log.durable import sync_folder
from hapax.log.layout import BEGINS_ANEW
from hapax.runtime import telemetry

log = telemetry.logger("partition")


def check_restored(replica: Replica) -> None:
    """Raises Refusal while the topic is being restored. Clients retry it."""
    if replica.settings.restoring:
        raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the topic is being restored from a backup")


async def import_batches(
    replica: Replica, first_offset: int, batches: bytearray, position: int = 0, size: int = 0
) -> None:
    """Returns once the batches are durable here. `size`: of all batches in bytes, where `batches` is only the part from
    byte `position` on; the last part appends them. Raises Refusal."""
    if not replica.settings.restoring:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{replica.name} is not being restored: a backup is restored into topics that `hapax restore` creates")
    if replica.storage_error:
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, replica.storage_error)
    _check_leads(replica)
    if size:
        context = replica.context
        # No batch is larger than the request that brought it. The topic's own limit may have been lowered since.
        limit = replica.settings.socket_request_max_bytes
        batches = context.import_parts.add(
            replica.id, replica.name, batches, position, size, limit, context.clock.monotonic_ms())
    if replica.machine.log_end_offset < first_offset:
        await _begin_at(replica, first_offset)
        _check_leads(replica)
    try:
        _append(replica, batches)
    except OSError as error:
        replica.context.storage.failed(replica, error)
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, replica.storage_error) from error
    result = await replica.commitment(replica.machine.log_end_offset)
    if result.error and result.error != ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
        raise Refusal(ErrorCode(result.error), result.reason)


def _check_leads(replica: Replica) -> None:
    """A follower keeps no parts of what is not appended here, and its log begins where its leader's does."""
    if not replica.serving:
        raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _append(replica: Replica, batches: bytearray) -> None:
    view = memoryview(batches)
    end = 0
    try:
        for position, header in iterate_batches(view):
            end = position + header.size
            machine = replica.machine
            batch = view[position:end]
            check_batch(batch, header)
            if header.next_offset <= machine.log_end_offset:
                continue
            if header.base_offset < machine.log_end_offset:
                raise Refusal(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{replica.name}: a batch from {header.base_offset} in a log that ends at {machine.log_end_offset}")
            patch_prefix(batch, header.base_offset, replica.leader_epoch)
            header = read_header(batch)
            if header.base_offset > machine.log_end_offset or header.record_count <= header.last_offset_delta:
                replica.log.note_gaps()
            replica.log.append(batch, header.base_offset, header.last_offset, header.max_timestamp)
            replica.replay(header, batch, 0)
        if end != len(view):
            raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"{len(view) - end} bytes are not a batch")
    finally:
        replica.copied(new_epoch=True)
        for pull in replica.pulls:
            pull.appended()


async def _begin_at(replica: Replica, start: int) -> None:
    """Moves the beginning of an empty log. A crash in between leaves a folder that is rebuilt at the next start."""
    if replica.machine.log_end_offset > replica.machine.log_start_offset:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{replica.name} holds records below offset {start}, where the backup begins: delete the topic")
    epoch, folder = replica.leader_epoch, replica.log.folder
    await replica.maintenance.stop()
    try:
        await folder.write_atomically(BEGINS_ANEW, b"")
        replica.maintenance.log_start.begins_anew(start)
        replica.log.restart_at(start)
        replica.restore(None, start, start, (), ())
        await replica.log.sync_names()
        folder.remove(BEGINS_ANEW)
        await sync_folder(folder)
    except OSError as error:
        replica.context.storage.failed(replica, error)
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, replica.storage_error) from error
    finally:
        replica.maintenance.resume()
    if replica.serving and replica.leader_epoch == epoch:
        replica.epoch_start = start
    log.info("begins at the start of a restored log", partition=replica.name, offset=start)

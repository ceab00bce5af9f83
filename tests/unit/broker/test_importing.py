"""Batches of a backup in a partition that is being restored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hapax.broker.importing import import_batches
from hapax.codec.batch import patch_prefix
from hapax.codec.control import encode_control
from hapax.core.backup.import_parts import ABANDONED_MS
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import ProducerEpoch, ProducerId
from unit.broker.broker_fixtures import Harness, batch
from unit.broker.test_periodic_tasks import periodic_tasks


@pytest.fixture
async def restoring(harness: Harness) -> Harness:
    harness.replica.set_settings(replace(harness.settings, restoring="backup"))
    return harness


def stored(offset: int, count: int = 1, **fields: int | bool) -> bytes:
    data = batch(count, **fields)  # type: ignore[arg-type]
    patch_prefix(data, offset, 9)
    return bytes(data)


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    data = encode_control(Marker(ProducerId(producer_id), ProducerEpoch(0), commit, 0), 1_700_000_000_000)
    patch_prefix(data, offset, 9)
    return bytes(data)


async def imported(harness: Harness, *batches: bytes, first: int = 0) -> None:
    await import_batches(harness.replica, first, bytearray(b"".join(batches)))


async def refused(harness: Harness, *batches: bytes, first: int = 0) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        await imported(harness, *batches, first=first)
    return refusal.value


async def test_batches_keep_their_offsets_and_gaps(restoring: Harness) -> None:
    await imported(restoring, stored(0, 3), stored(7, 2))
    assert [(h.base_offset, h.next_offset, h.leader_epoch) for h in restoring.log_headers()] == [(0, 3, 1), (7, 9, 1)]
    assert restoring.replica.machine.high_watermark == 9


async def test_what_is_there_is_not_stored_twice(restoring: Harness) -> None:
    """An answer was lost, or a restore was interrupted."""
    await imported(restoring, stored(0, 3))
    await imported(restoring, stored(0, 3), stored(3))
    assert [h.base_offset for h in restoring.log_headers()] == [0, 3]


async def test_transactions_are_as_they_were(restoring: Harness) -> None:
    await imported(
        restoring, stored(0, producer_id=5, epoch=0, sequence=0, transactional=True),
        stored(1, producer_id=6, epoch=0, sequence=0, transactional=True), marker(2, 5, commit=False),
        marker(3, 6, commit=True))
    machine = restoring.replica.machine
    assert machine.last_stable_offset == 4
    assert [(a.producer_id, a.first_offset) for a in machine.aborted_transactions(0, 4)] == [(5, 0)]
    await restoring.replica.maintenance.last_checkpoint()
    restoring.crash()
    await restoring.open()
    aborted = restoring.replica.machine.aborted_transactions(0, 4)
    assert [(a.producer_id, a.first_offset) for a in aborted] == [(5, 0)]


async def test_a_log_begins_where_the_backup_does(restoring: Harness) -> None:
    await imported(restoring, first=40)
    await imported(restoring, stored(40), first=40)
    restoring.crash()
    again = await restoring.open()
    assert (again.machine.log_start_offset, again.machine.log_end_offset) == (40, 41)


async def test_nothing_else_is_appended_meanwhile(restoring: Harness) -> None:
    (result,) = restoring.replica.write_markers([Marker(ProducerId(5), ProducerEpoch(0), False, 1)])
    assert result[1] is not None and result[1].code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert restoring.log_headers() == []


async def test_only_a_topic_that_is_restored_takes_them(harness: Harness) -> None:
    assert (await refused(harness, stored(0))).code is ErrorCode.INVALID_REQUEST
    assert harness.log_headers() == []


async def test_batches_that_do_not_follow_are_refused(restoring: Harness) -> None:
    await imported(restoring, stored(0, 3))
    assert (await refused(restoring, stored(2, 3))).code is ErrorCode.CORRUPT_MESSAGE
    damaged = bytearray(stored(3))
    damaged[-1] ^= 1
    assert (await refused(restoring, bytes(damaged))).code is ErrorCode.CORRUPT_MESSAGE
    assert (await refused(restoring, stored(3)[:-1])).code is ErrorCode.CORRUPT_MESSAGE
    assert [h.base_offset for h in restoring.log_headers()] == [0]


async def part(harness: Harness, data: bytes, position: int, end: int) -> list[int]:
    """Imports these bytes of the batches. Returns the offsets at which the log's batches begin."""
    await import_batches(harness.replica, 0, bytearray(data[position:end]), position, len(data))
    return [each.base_offset for each in harness.log_headers()]


async def test_batches_that_are_sent_in_parts_are_appended_with_the_last_one(restoring: Harness) -> None:
    data = stored(0, 3) + stored(3)
    assert await part(restoring, data, 0, 50) == []
    assert await part(restoring, data, 50, 80) == []
    assert await part(restoring, data, 80, len(data)) == [0, 3]
    assert restoring.context.import_parts.reserved == 0
    other = stored(4)
    assert await part(restoring, other, 0, 40) == [0, 3]
    assert await part(restoring, other, 40, len(other)) == [0, 3, 4]


async def test_parts_are_repeated(restoring: Harness) -> None:
    """Answers were lost, or two restores of one backup run."""
    data = stored(0, 3)
    for position, end in ((0, 40), (0, 40), (40, 60), (0, 40), (60, len(data))):
        await part(restoring, data, position, end)
    assert [each.base_offset for each in restoring.log_headers()] == [0]


async def test_parts_of_other_batches_are_not_mixed(restoring: Harness) -> None:
    """A restore was interrupted, and another one of an earlier moment follows."""
    data, abandoned = stored(0, 3), stored(0, 5)
    await part(restoring, abandoned, 0, 90)
    await part(restoring, data, 0, 40)
    assert await part(restoring, data, 40, len(data)) == [0]


async def test_what_was_abandoned_behind_the_same_parts_is_not_appended(restoring: Harness) -> None:
    data = stored(0, 3)
    await part(restoring, data + stored(3, 5), 0, len(data) + 70)
    assert await part(restoring, data, 0, 40) == []
    assert await part(restoring, data, 40, len(data)) == [0]


async def test_a_part_without_those_before_it_is_refused(restoring: Harness) -> None:
    """The leader has changed in between. The client begins again."""
    data = stored(0, 3)
    for position, code in ((40, ErrorCode.NOT_LEADER_OR_FOLLOWER), (-1, ErrorCode.INVALID_REQUEST)):
        with pytest.raises(Refusal) as refusal:
            await part(restoring, data, position, len(data))
        assert refusal.value.code is code
    assert restoring.log_headers() == []


async def test_a_batch_that_no_request_could_have_brought_is_refused(restoring: Harness) -> None:
    """Before a byte of it is kept."""
    limit = restoring.settings.socket_request_max_bytes
    with pytest.raises(Refusal, match=r"104857601 bytes, .* at most 104857600 \(socket.request.max.bytes\)") as refusal:
        await import_batches(restoring.replica, 0, bytearray(10), 0, limit + 1)
    assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert restoring.context.import_parts.reserved == 0


async def test_a_follower_keeps_nothing_of_what_it_refuses(restoring: Harness) -> None:
    """Neither parts, whose room others need, nor the beginning of its log, which is its leader's."""
    restoring.replica.resign()
    for position, size in ((0, 0), (0, 1000)):
        with pytest.raises(Refusal) as refusal:
            await import_batches(restoring.replica, 40, bytearray(100), position, size)
        assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert restoring.context.import_parts.reserved == 0
    assert restoring.replica.machine.log_end_offset == 0


async def test_parts_of_a_restore_that_was_given_up_are_let_go(restoring: Harness) -> None:
    data = stored(0, 3)
    await part(restoring, data, 0, 40)
    tasks = periodic_tasks(restoring)
    for later, reserved in ((ABANDONED_MS - 1, len(data)), (1, 0)):
        restoring.clock.now += later
        await tasks.expire()
        assert restoring.context.import_parts.reserved == reserved
    with pytest.raises(Refusal) as refusal:
        await part(restoring, data, 40, len(data))
    assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it begins again"
    await part(restoring, data, 0, 40)
    assert await part(restoring, data, 40, len(data)) == [0]


async def test_a_former_leader_has_room_for_other_partitions_at_once(restoring: Harness) -> None:
    """They would wait for a minute, as long as the restore waits for them."""
    await part(restoring, stored(0, 3), 0, 40)
    restoring.replica.resign()
    assert restoring.context.import_parts.reserved == 0


async def test_records_below_the_backups_beginning_are_not_dropped(restoring: Harness) -> None:
    await imported(restoring, stored(0, 3))
    assert (await refused(restoring, stored(40), first=40)).code is ErrorCode.INVALID_REQUEST
    assert restoring.replica.machine.log_end_offset == 3

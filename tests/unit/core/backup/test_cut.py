"""Which transactions are in a backup: whole or not at all, and never one without those that it depends on."""

from __future__ import annotations

import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from hapax.core.backup.cut import Decided, OpenPiece, Piece, ReadUpTo, Scan, excluded, settle
from hapax.core.batch import CONTROL, TRANSACTIONAL, BatchHeader
from hapax.core.control import Marker
from hapax.core.types import PartitionIndex, TopicPartition

A, B, C = (TopicPartition(name, PartitionIndex(0)) for name in "abc")


def header(offset: int, producer_id: int, *, attributes: int = TRANSACTIONAL, records: int = 1) -> BatchHeader:
    return BatchHeader(offset, 61, 0, 2, 0, attributes, records - 1, 0, 0, producer_id, 3, 0, records)


def test_a_scan_pairs_records_with_their_marker() -> None:
    scan = Scan()
    scan.data(header(0, 7))
    scan.data(header(1, 8))
    scan.data(header(2, 7))
    scan.data(header(3, 9, attributes=0))
    end = header(4, 7, attributes=TRANSACTIONAL | CONTROL)
    assert scan.marker(end, Marker(7, 3, True, 0, serial=5)) == Piece(7, 5, 0, 4)
    assert scan.opened == (OpenPiece(8, 3, 1),)
    assert scan.marker(header(5, 8), Marker(8, 3, False, 0, serial=1)) is None
    assert scan.opened == ()
    assert scan.highest_producer_id == 9


def test_a_scan_continues_where_the_former_backup_ended() -> None:
    scan = Scan([OpenPiece(8, 3, 1)])
    assert scan.marker(header(5, 8), Marker(8, 3, True, 0, serial=1)) == Piece(8, 1, 1, 5)


def test_a_marker_of_a_later_transaction_is_excluded_everywhere() -> None:
    """One of its markers was stored before the log was read to the end, the other one was not."""
    decided = Decided({7: "t"}, {"t": 1})
    pieces = {A: [Piece(7, 1, 0, 1), Piece(7, 2, 2, 3)], B: [Piece(7, 1, 0, 1)]}
    through = settle(decided, pieces, [])
    assert through == {"t": 1}
    assert excluded(decided, through, pieces[A]) == [3]
    assert excluded(decided, through, pieces[B]) == []


def test_a_producer_that_the_log_does_not_know_is_newer_than_the_cut() -> None:
    decided = Decided({}, {})
    assert excluded(decided, settle(decided, {A: [Piece(9, 1, 0, 1)]}, []), [Piece(9, 1, 0, 1)]) == [1]


def test_what_has_read_an_excluded_transaction_leaves_too() -> None:
    """`t`'s shard was read before its decision, `u`'s after its own. `u` has read what `t` wrote."""
    decided = Decided({7: "t", 8: "u", 9: "v"}, {"t": 0, "u": 1, "v": 1})
    pieces = {A: [Piece(7, 1, 10, 12)], B: [Piece(8, 1, 0, 1)], C: [Piece(9, 1, 0, 1)]}
    reads = [ReadUpTo(8, 1, A, 11), ReadUpTo(9, 1, B, 1)]
    assert settle(decided, pieces, reads) == {"t": 0, "u": 0, "v": 0}


def test_what_has_read_up_to_an_excluded_transaction_stays() -> None:
    decided = Decided({7: "t", 8: "u"}, {"t": 0, "u": 1})
    pieces = {A: [Piece(7, 1, 10, 12)], B: [Piece(8, 1, 0, 1)]}
    assert settle(decided, pieces, [ReadUpTo(8, 1, A, 10)]) == {"t": 0, "u": 1}


def test_later_transactions_of_an_id_leave_with_an_earlier_one() -> None:
    decided = Decided({7: "t", 8: "u", 9: "v"}, {"t": 0, "u": 3, "v": 4})
    pieces = {A: [Piece(7, 1, 5, 6)], B: [Piece(8, 2, 0, 1), Piece(8, 3, 2, 3)], C: []}
    reads = [ReadUpTo(8, 2, A, 6), ReadUpTo(9, 4, B, 3)]
    assert settle(decided, pieces, reads) == {"t": 0, "u": 1, "v": 3}


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_the_cut_is_closed(data: st.DataObject) -> None:
    """Against the definition: repeat until no transaction in the backup depends on one that is not."""
    ids = {pid: f"t{pid}" for pid in range(4)}
    serials = {name: data.draw(st.integers(0, 5)) for name in ids.values()}
    pieces: dict[TopicPartition, list[Piece]] = {A: [], B: [], C: []}
    for partition in pieces:
        at = 0
        for pid, serial in data.draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), max_size=8)):
            pieces[partition].append(Piece(pid, serial, at, at + 1))
            at += 2
    reads = [ReadUpTo(*each) for each in data.draw(st.lists(st.tuples(
        st.integers(0, 3), st.integers(1, 6), st.sampled_from([A, B, C]), st.integers(0, 16)), max_size=10))]
    decided = Decided(ids, serials)
    through = settle(decided, pieces, reads)
    naive = dict(serials)
    while True:
        beyond = {
            partition: min(
                (p.first_offset for p in found if p.serial > naive.get(ids.get(p.producer_id, ""), -1)), default=99)
            for partition, found in pieces.items()}
        bad = [r for r in reads if r.serial <= naive[ids[r.producer_id]] and r.offset > beyond[r.partition]]
        if not bad:
            break
        for read in bad:
            naive[ids[read.producer_id]] = min(naive[ids[read.producer_id]], read.serial - 1)
    assert through == naive


def test_a_hundred_thousand_transactions_take_no_longer_than_their_sorting() -> None:
    """Each has read what the one before it wrote, and the first one is not in the backup."""
    count = 100_000
    chance = random.Random(1)
    order = list(range(count))
    chance.shuffle(order)
    ids = {pid: f"t{pid}" for pid in range(count)}
    decided = Decided(ids, {name: 1 if name != "t0" else 0 for name in ids.values()})
    parts = [TopicPartition("p", PartitionIndex(index)) for index in range(count)]
    pieces = {parts[pid]: [Piece(pid, 1, 0, 1)] for pid in order}
    reads = [ReadUpTo(pid, 1, parts[pid - 1], 1) for pid in order if pid]
    began = time.process_time()
    assert set(settle(decided, pieces, reads).values()) == {0}
    assert time.process_time() - began < 10

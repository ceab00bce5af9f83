"""The packed table behaves like a dictionary of producers, whatever its size."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable

from hapax.core.control import LEASE_COUNTED, LEASE_RELEASED
from hapax.core.partition.producer_table import ROWS_PER_PAGE, Producer, ProducerTable, read_page


def test_rows_are_found_while_the_table_grows_and_shrinks() -> None:
    rng = random.Random(1)
    table = ProducerTable(())
    model: dict[int, tuple[int, int]] = {}
    for step in range(6000):
        pid = rng.choice([rng.randrange(1, 4000), rng.randrange(1 << 40, (1 << 40) + 500), rng.randrange(1 << 62)])
        if table.get(pid) is None:
            assert pid not in model
            table.put_new(pid, epoch := rng.randrange(100))
            model[pid] = (epoch, -1)
        else:
            table.put_batch(step, 0, step, 0, step, 1)
            model[pid] = (model[pid][0], step)
    assert table.count == len(model)
    assert table.pages > len(model) // ROWS_PER_PAGE - 1
    for pid, (epoch, sequence) in model.items():
        found = table.get(pid)
        assert found is not None
        assert (found.epoch, found.last_sequence) == (epoch, sequence)
    assert sorted(table.ids()) == sorted(model)


def test_the_highest_id_survives_removal_and_a_snapshot() -> None:
    table = ProducerTable(())
    assert table.highest == -1
    for producer_id in (3, 900, 17, 0):
        table.put_new(producer_id, 0)
    assert table.highest == 900
    table.expired_below, table.expired_at_ms = 1, 1
    table.sweep(10, 0)
    assert (table.count, table.highest) == (0, 900)
    table.put_new(256, 0)
    table.put_new(41, 0)
    loaded = ProducerTable(())
    loaded.load(table.freeze(), array("q"))
    assert loaded.highest == 256, "a snapshot knows the ids that it holds"
    loaded.load(table.freeze(), array("q", (5, 377)))
    assert loaded.highest == 377, "and those whose lease ended"


def test_keys_that_overlap_in_the_page_are_not_confused() -> None:
    """A key's last bytes and its neighbour's first ones may spell a third key."""
    table = ProducerTable(())
    first, second = 0x0000000000000102, 0x0304000000000000
    table.put_new(first, 1)
    table.put_new(second, 2)
    spelt = int.from_bytes((first.to_bytes(8, "big") + second.to_bytes(8, "big"))[3:11], "big")
    assert table.get(spelt) is None


def test_the_window_keeps_the_last_five_and_wraps() -> None:
    table = ProducerTable(())
    table.put_new(7, 0)
    for i, sequence in enumerate((2**31 - 3, 2**31 - 1, 1, 3, 5, 7)):
        table.get(7)
        table.put_batch(sequence, 1, 10 * i + 1, 99, 2 * i, 2 * i)
    found = table.get(7)
    assert found is not None and found.last_sequence == 7
    assert [(entry.first_sequence, entry.last_sequence, entry.first_offset) for entry in table.window()] == [
        (6, 7, 50), (4, 5, 40), (2, 3, 30), (0, 1, 20), (2**31 - 2, 2**31 - 1, 10),
    ]  # fmt: skip


def test_a_new_epoch_empties_the_window_and_keeps_the_rest() -> None:
    table = ProducerTable(())
    table.put_new(7, 0)
    table.put_batch(4, 4, 104, 55, 5, 5)
    table.put_lease(1000)
    table.put_marker(3, 9)
    table.put_epoch(1)
    assert table.get(7) == Producer(
        epoch=1, last_sequence=-1, last_delta=-1, last_batch_offset=-1, last_offset=104, last_timestamp=55,
        record_count=5, epoch_records=0, keep_until_ms=1000, serial=3, coordinator_epoch=9,
    )  # fmt: skip
    assert table.window() == []


def test_the_sweep_removes_the_dead_and_remembers_ended_leases() -> None:
    opened = {3}
    table = ProducerTable(opened)
    for pid in range(200):
        table.put_new(pid, 0)
        table.put_activity(pid, 0, 1)
        if pid % 50 == 0:
            table.put_lease(LEASE_COUNTED)
        if pid == 51:
            table.put_lease(500)
        if pid == 52:
            table.put_lease(LEASE_RELEASED)
    assert table.sweep(table.pages, due_below=100)
    assert table.count == 200, "nothing is dead yet"

    table.expired_below, table.expired_at_ms = 100, 1000
    alive = {3, 51, 52, *range(100, 200)}
    assert set(table.ids()) == alive
    assert table.get(50) is None and table.lease_has_ended(50)
    assert not table.sweep(table.pages, due_below=100)
    assert table.count == len(alive)
    assert set(table.ids()) == alive
    assert list(table.ended_leases()) == [0, 50]
    assert table.lease_has_ended(50) and not table.lease_has_ended(49) and not table.lease_has_ended(51)
    assert table.may_have_forgotten(49) and table.may_have_forgotten(50) and not table.may_have_forgotten(51)

    opened.clear()
    assert table.get(3) is None, "its transaction kept it alive, and is over"


def test_a_dead_row_is_reused_by_its_own_producer() -> None:
    table = ProducerTable(())
    table.put_new(7, 4)
    table.put_batch(9, 9, 9, 0, 10, 10)
    table.expired_below = 10
    assert table.get(7) is None
    table.put_new(7, 5)
    table.put_batch(0, 0, 10, 0, 1, 1)
    found = table.get(7)
    assert found is not None and (found.epoch, found.record_count) == (5, 1)
    assert table.count == 1


def test_a_table_loads_the_pages_it_froze() -> None:
    for count in (0, 1, 15, 16, 17, 33, 64, 65, 500, 1023):
        table = ProducerTable(())
        for pid in range(count):
            table.put_new(pid * 7, pid % 5)
        pages = table.freeze()
        copy = ProducerTable(())
        copy.load(pages, array("q", [1]))
        assert copy.count == count
        assert sorted(copy.ids()) == [pid * 7 for pid in range(count)]
        assert sum(1 for page in pages for _ in read_page(*page)) == count
        for pid in range(count, count + 40):
            copy.put_new(pid * 7, 1)
        assert all(copy.get(pid * 7) is not None for pid in range(count + 40))
        assert copy.lease_has_ended(1)


def stored(table: ProducerTable, producer_id: int) -> Producer | None:
    """What the pages hold, dead or alive, without the table's lookup."""
    return dict(each for page in table.freeze() for each in read_page(*page)).get(producer_id)


def activity_of_all(table: ProducerTable, ids: Iterable[int]) -> dict[int, int]:
    return {each: found.last_offset for each in ids if (found := stored(table, each)) is not None}


def test_a_change_is_seen_by_the_next_lookup_of_the_same_producer() -> None:
    table = ProducerTable(set())
    table.put_new(7, 0)
    changes: list[Callable[[], None]] = [
        lambda: table.put_batch(4, 4, 4, 1000, 5, 5),
        lambda: table.put_epoch(1),
        lambda: table.put_activity(9, 1001, 5),
        lambda: table.put_marker(3, 2),
        lambda: table.put_lease(5000),
        lambda: table.put_new(7, 2),
    ]
    for change in changes:
        before = table.get(7)
        assert table.get(7) == before
        change()
        assert table.get(7) == stored(table, 7) != before


def table_of(count: int) -> ProducerTable:
    """Producers from 0 on. The last offset of odd ones is 1, of even ones 1000."""
    table = ProducerTable(set())
    for number in range(count):
        table.put_new(number, 0)
        table.put_activity(1 if number % 2 else 1000, 0, 0)
    return table


def test_a_change_is_of_the_row_that_was_found_when_pages_split() -> None:
    table = table_of(200)
    before = activity_of_all(table, range(200))
    for number in range(200):
        assert table.get(number) is not None
        table.put_new(1000 + number, 0)
        assert table.get(number) is not None
        table.put_activity(before[number], 1, 0)
    assert activity_of_all(table, range(200)) == before
    assert set(activity_of_all(table, range(1000, 1200)).values()) == {-1}


def test_a_change_is_of_the_row_that_was_found_when_dead_rows_are_removed() -> None:
    for number in range(0, 60, 2):
        table = table_of(60)
        assert table.get(number) is not None
        table.expired_below = 50
        table.sweep(table.pages, 0)
        assert table.get(number) is not None
        table.put_activity(2000, 0, 0)
        assert activity_of_all(table, range(60)) == dict.fromkeys(range(0, 60, 2), 1000) | {number: 2000}


def test_what_was_found_before_a_load_or_an_expiry_does_not_count() -> None:
    other = ProducerTable(set())
    other.put_new(2, 5)
    table = table_of(3)
    assert table.get(2) is not None
    table.load(other.freeze(), other.ended_leases())
    assert table.get(2) == stored(other, 2)
    table = table_of(3)
    assert table.get(1) is not None
    table.expired_below = 50
    assert table.get(1) is None

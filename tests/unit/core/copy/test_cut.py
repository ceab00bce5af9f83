"""The cut keeps transactions whole, and takes all that it can."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from hapax.core.copy.cut import QUIET_MS, SLACK_MS, Lane, Piece, cut, split

NOW = 1_000_000
Read = Sequence[tuple[str, int] | str]
"""What is read of a partition, in order: ("data", w) and ("commit", w), ("abort", w) of writer w, or "plain"."""


def lane(read: Read, *, tick: int = 1, current: bool = True, time_ms: int = 1000) -> Lane:
    """`current`: everything that there was is read."""
    found = Lane(0)
    for offset, what in enumerate(read):
        writer = None if what == "plain" else (int(what[1]), 0)
        commits = {"commit": True, "abort": False}.get(what[0]) if what != "plain" else None
        found.push(Piece(offset, offset + 1, writer, commits, time_ms if commits is not None else -1), tick, NOW)
    if current:
        found.seen_end(tick, len(read))
    return found


def taken(lanes: Mapping[str, Lane], now: int = NOW) -> dict[str, int]:
    return cut(lanes, now)


def test_batches_of_no_transaction_are_taken_at_once() -> None:
    assert taken({"a": lane(["plain"] * 3, current=False), "b": lane([], current=False)}) == {"a": 3, "b": 0}


def test_a_transaction_waits_for_its_marker() -> None:
    assert taken({"a": lane(["plain", ("data", 1), "plain", ("data", 1)])}) == {"a": 1}
    assert taken({"a": lane(["plain", ("data", 1), "plain", ("commit", 1)])}) == {"a": 4}


def test_a_marker_of_the_next_epoch_ends_a_transaction() -> None:
    """Transactions version 2, and a producer that was fenced."""
    one = Lane(0)
    one.push(Piece(0, 1, (7, 3)), 1, NOW)
    one.push(Piece(1, 2, (7, 4), True, 1000), 1, NOW)
    assert taken({"a": one}) == {"a": 2}


def test_a_transaction_whose_marker_is_lost_holds_nothing_back() -> None:
    one = Lane(0)
    one.push(Piece(0, 1, (7, 3)), 1, NOW)
    one.push(Piece(1, 2, (7, 5)), 1, NOW)
    one.push(Piece(2, 3, (7, 5), True, 1000), 1, NOW)
    assert taken({"a": one}) == {"a": 3}


def test_a_transaction_of_which_one_marker_was_not_read_stays_out_everywhere() -> None:
    lanes = {
        "a": lane(["plain", ("data", 1), ("commit", 1), "plain"]),
        "b": lane([("data", 2), ("commit", 2), ("data", 1)])}
    assert taken(lanes) == {"a": 1, "b": 2}
    lanes["b"].push(Piece(3, 4, (1, 0), True, 1000), 2, NOW)
    assert taken(lanes) == {"a": 4, "b": 4}


def test_what_is_left_out_takes_others_with_it() -> None:
    """1 is not complete; 2 stands behind it in b, and before 3 in c."""
    lanes = {
        "a": lane([("data", 1), ("commit", 1)]),
        "b": lane([("data", 1), ("data", 2), ("commit", 2)]),
        "c": lane(["plain", ("data", 2), ("data", 3), ("commit", 2), ("commit", 3)]),
        "d": lane(["plain", "plain", ("data", 3), ("commit", 3)])}
    assert taken(lanes) == {"a": 0, "b": 0, "c": 1, "d": 2}


def test_an_aborted_transaction_holds_nothing_back() -> None:
    lanes = {"a": lane([("data", 1), ("abort", 1), "plain"]), "b": lane(["plain"], current=False)}
    assert taken(lanes) == {"a": 3, "b": 1}


def test_another_partition_vouches_once_it_was_read_to_an_end_seen_later() -> None:
    lanes = {"a": lane([("data", 1), ("commit", 1)], tick=5), "b": lane(["plain"], tick=4)}
    assert taken(lanes) == {"a": 0, "b": 1}
    lanes["b"].seen_end(4, 1)  # the request had left before the marker was read
    assert taken(lanes)["a"] == 0
    lanes["b"].seen_end(5, 2)  # and this answer names an end that was not reached
    assert taken(lanes)["a"] == 0
    lanes["b"].push(Piece(1, 2), 6, NOW)
    assert taken(lanes) == {"a": 2, "b": 2}


def test_another_partition_vouches_by_a_later_marker() -> None:
    lanes = {"a": lane([("data", 1), ("commit", 1)], time_ms=1000), "b": Lane(0)}
    lanes["b"].push(Piece(0, 1, (9, 0), True, 1000 + SLACK_MS - 1), 2, NOW)
    assert taken(lanes)["a"] == 0
    lanes["b"].push(Piece(1, 2, (9, 0), True, 1000 + SLACK_MS), 2, NOW)
    assert taken(lanes) == {"a": 2, "b": 2}


def test_another_partition_vouches_after_a_while_without_transactions() -> None:
    lanes = {"a": lane([("data", 1), ("commit", 1)], tick=5), "b": lane(["plain"], tick=6, current=False)}
    assert taken(lanes, NOW + QUIET_MS - 1) == {"a": 0, "b": 1}
    assert not lanes["b"].passed_over
    assert taken(lanes, NOW + QUIET_MS) == {"a": 2, "b": 1}
    assert lanes["b"].passed_over and not lanes["a"].passed_over, "it is told"
    lanes["b"].push(Piece(1, 2, (9, 0)), 7, NOW)
    assert taken(lanes, NOW + QUIET_MS)["a"] == 0
    assert lanes["b"].passed_over
    lanes["b"].seen_end(6, 2)
    assert not lanes["b"].passed_over


def test_an_end_that_was_reported_earlier_is_reached() -> None:
    one = Lane(0)
    one.seen_end(3, 1)
    one.passed_over = True
    one.push(Piece(0, 1), 4, NOW)
    assert not one.passed_over


def test_a_partition_that_cannot_be_read_holds_nothing_back() -> None:
    lanes = {"a": lane([("data", 1), ("commit", 1)]), "b": lane([("data", 1), "plain"], current=False)}
    assert taken(lanes) == {"a": 0, "b": 0}
    lanes["b"].ended = True
    assert taken(lanes) == {"a": 2, "b": 2}


def test_a_transaction_that_is_split() -> None:
    lanes = {"a": lane([("data", 1), "plain"]), "b": lane([("data", 1), ("commit", 1)])}
    assert taken(lanes) == {"a": 0, "b": 0}
    assert split(lanes.values(), lanes["a"]) == (1, 0)
    assert taken(lanes) == {"a": 2, "b": 2}
    lanes["a"].take(1)
    lanes["a"].push(Piece(2, 3, (1, 0)), 2, NOW)
    assert taken(lanes) == {"a": 2, "b": 2}


def test_the_next_transaction_of_the_same_producer_is_not_split_too() -> None:
    """A producer of version 1 keeps its epoch."""
    lanes = {"a": Lane(0), "b": Lane(0)}
    for offset, time_ms in ((0, 1_000), (2, 9_000)):
        for name, each in lanes.items():
            each.push(Piece(offset, offset + 1, (1, 0)), 1, NOW)
            each.push(Piece(offset + 1, offset + 2, (1, 0), True, time_ms + (name == "b")), 1, NOW)
    assert split(lanes.values(), lanes["a"]) == (1, 0)
    assert [[part.marked_ms for part in each.parts()] for each in lanes.values()] == [[9_000], [9_001]]


def test_transactions_of_one_epoch_are_told_apart_by_their_markers_times() -> None:
    """Of three transactions of a producer of version 1, the last one is not complete in b."""
    lanes = {"a": Lane(0), "b": Lane(0)}
    for number, (name, at) in enumerate([("a", 100), ("b", 101), ("a", 120), ("a", 140)]):
        each = lanes[name]
        each.push(Piece(each.end, each.end + 1, (1, 0)), number, NOW)
        each.push(Piece(each.end, each.end + 1, (1, 0), True, at), number, NOW)
    lanes["b"].push(Piece(2, 3, (1, 0)), 9, NOW)
    lanes["a"].seen_end(9, lanes["a"].end)
    lanes["b"].seen_end(9, lanes["b"].end)
    assert taken(lanes) == {"a": 4, "b": 2}


@st.composite
def histories(draw: st.DrawFn) -> dict[str, list[tuple[str, int] | str]]:
    """Transactions over up to four partitions, interleaved, each read up to some offset."""
    names = "abcd"[: draw(st.integers(1, 4))]
    events: list[tuple[int, str, tuple[str, int] | str]] = []
    for writer in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["commit", "commit", "abort"]))
        begin = draw(st.integers(0, 30))
        end = begin + draw(st.integers(1, 20))
        for name in sorted(draw(st.sets(st.sampled_from(names), min_size=1))):
            events.append((begin + draw(st.integers(0, end - begin - 1)), name, ("data", writer)))
            events.append((end + draw(st.integers(0, 5)), name, (kind, writer)))
    for _ in range(draw(st.integers(0, 6))):
        events.append((draw(st.integers(0, 40)), draw(st.sampled_from(names)), "plain"))
    events.sort(key=lambda each: each[0])
    return {name: [what for _, of, what in events if of == name][: draw(st.integers(0, 30))] for name in names}


def consistent(reads: Mapping[str, Read], counts: Mapping[str, int]) -> bool:
    """Each committed transaction is wholly below the cut or wholly above it, and no part below is undecided."""
    below, above = set(), set()
    for name, read in reads.items():
        for i, what in enumerate(read):
            if what == "plain" or what[0] != "data":
                continue
            writer = int(what[1])
            if ("abort", writer) in read:
                continue
            if ("commit", writer) not in read:
                if i < counts[name]:
                    return False
                above.add(writer)
            elif i < counts[name]:
                below.add(writer)
            else:
                above.add(writer)
    return not below & above


@given(histories())
def test_the_cut_is_the_largest_consistent_one(reads: dict[str, list[tuple[str, int] | str]]) -> None:
    found = taken({name: lane(read) for name, read in reads.items()})
    assert consistent(reads, found)
    # Consistent cuts have a largest one, so a cut that is larger in one partition alone need not be tried with others.
    small = {name: range(found[name], min(len(read), found[name] + 6) + 1) for name, read in reads.items()}
    for counts in itertools.islice(itertools.product(*small.values()), 3000):
        other = dict(zip(small, counts, strict=True))
        assert other == found or not consistent(reads, other)


def test_the_search_is_not_quadratic() -> None:
    """Many transactions that all have to be left out, one after another."""

    def seconds(count: int) -> float:
        chain = {"a": Lane(0), "b": Lane(0)}
        for number in range(count):  # each overlaps the next one, alternately in a and b
            for name in "ab":
                chain[name].push(Piece(chain[name].end, chain[name].end + 1, (number, 0)), 1, NOW)
            if number:
                for name in "ab":
                    for commits in (None, True):
                        chain[name].push(
                            Piece(chain[name].end, chain[name].end + 1, (number - 1, 0), commits, 1000), 1, NOW)
        for each in chain.values():
            each.seen_end(1, each.end)
        began = time.process_time()
        assert taken(chain) == {"a": 0, "b": 0}
        return time.process_time() - began

    small = min(seconds(500) for _ in range(3))
    assert min(seconds(4000) for _ in range(3)) < 8 * 4 * small + 0.05

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.runtime.guarded_writes import GuardedWrite, write_changes
from hapax.runtime.ports import Compare, Delete, Put, TxnResult
from hapax_sim.metadata import MemoryMetadata, MetadataModel

FENCE = Compare("fence", "create_revision", 2)


class Counting(MemoryMetadata):
    transactions = 0

    async def txn(self, compares: object, writes: object) -> TxnResult:
        self.transactions += 1
        return await super().txn(compares, writes)  # type: ignore[arg-type]


def store() -> Counting:
    model = MetadataModel()
    model.txn([], [Put("fence", b"")])
    return Counting(model)


def change(number: int, *, stale: bool = False, writes: int = 1) -> GuardedWrite:
    return GuardedWrite(
        (Compare(f"k{number}", "create_revision", 99 if stale else 0),),
        tuple(Put(f"k{number}" if i == 0 else f"k{number}/{i}", b"x") for i in range(writes)))


@pytest.mark.parametrize(("changes", "transactions"), [(1, 1), (127, 1), (128, 2), (254, 2), (255, 3)])
async def test_as_few_transactions_as_their_limit_allows(changes: int, transactions: int) -> None:
    counting = store()
    outcome = await write_changes(counting, FENCE, [change(i) for i in range(changes)])
    assert (len(outcome.done), len(outcome.stale), counting.transactions) == (changes, 0, transactions)
    assert outcome.revision == counting.model.revision


async def test_a_wide_change_stays_whole() -> None:
    counting = store()
    outcome = await write_changes(counting, FENCE, [change(0, writes=100), change(1, writes=100), change(2)])
    assert len(outcome.done) == 3 and counting.transactions == 2


async def test_nothing_to_write_costs_nothing() -> None:
    counting = store()
    assert (await write_changes(counting, FENCE, [])).revision == 0 and counting.transactions == 0


@given(st.lists(st.booleans(), max_size=300))
async def test_a_stale_change_holds_up_no_other(stale: list[bool]) -> None:
    counting = store()
    changes = [change(i, stale=is_stale) for i, is_stale in enumerate(stale)]
    outcome = await write_changes(counting, FENCE, changes)
    assert outcome.done == [c for c, is_stale in zip(changes, stale, strict=True) if not is_stale]
    assert outcome.stale == [c for c, is_stale in zip(changes, stale, strict=True) if is_stale]
    for number, is_stale in enumerate(stale):
        assert (counting.model.get(f"k{number}") is None) == is_stale


async def test_without_the_fence_nothing_is_written() -> None:
    counting = store()
    outcome = await write_changes(counting, Compare("fence", "create_revision", 1), [change(i) for i in range(5)])
    assert len(outcome.stale) == 5 and counting.model.revision == 2


async def test_two_changes_of_one_key_are_written_one_after_the_other() -> None:
    """etcd refuses a transaction that writes a key twice, and would refuse it again for ever."""
    counting = store()
    outcome = await write_changes(counting, FENCE, [
        change(0), GuardedWrite((), (Put("k", b"first"),)), GuardedWrite((), (Delete("k"),)),
        GuardedWrite((), (Put("k", b"last"),)), change(0), change(1)])
    assert (len(outcome.done), outcome.stale) == (5, [change(0)])
    kv = counting.model.get("k")
    assert kv is not None and kv.value == b"last"

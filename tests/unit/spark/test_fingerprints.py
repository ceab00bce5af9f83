"""Fingerprints of a micro-batch."""

from __future__ import annotations

import json
import random
import time
import timeit
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from hapax_spark.fingerprints import END, OFFSETS, RecordDigest, local_checkpoint, plan_of, together

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20) | st.binary(min_size=500, max_size=530),
        st.none() | st.text(max_size=5),
        st.none() | st.integers(0, 5),
        st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=2), "value": st.none() | st.binary()})),
    ),
    max_size=8,
)  # fmt: skip


def table(given: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = list(zip(*given, strict=True)) or [(), (), (), ()]
    types = (pa.binary(), pa.string(), pa.int32(), HEADERS)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["value", "key", "partition", "headers"])


def digest_of(*batches: pa.RecordBatch, topic: str | None = "t") -> bytes:
    parts = []
    for batch in batches:
        digest = RecordDigest(topic)
        digest.add(batch)
        parts.append(digest.digest)
    return together(parts)


@settings(max_examples=60, deadline=None)
@given(rows, st.randoms(use_true_random=False), st.integers(0, 8))
def test_records_have_one_digest_in_any_order_and_any_number_of_tasks(
    records: list[tuple[object, ...]], shuffler: random.Random, cut: int
) -> None:
    mixed = list(records)
    shuffler.shuffle(mixed)
    whole = digest_of(table(records))
    assert digest_of(table(mixed[:cut]), table(mixed[cut:])) == whole
    sliced = table([*records, *records]).slice(len(records))
    assert digest_of(sliced) == whole


@settings(max_examples=60, deadline=None)
@given(rows, rows)
def test_other_records_have_another(one: list[tuple[object, ...]], other: list[tuple[object, ...]]) -> None:
    # By Arrow's own lists: the fields of a generated header come in any order.
    same = sorted(map(repr, table(one).to_pylist())) == sorted(map(repr, table(other).to_pylist()))
    assert (digest_of(table(one)) == digest_of(table(other))) == same


def test_what_belongs_to_which_record_counts() -> None:
    plain = pa.RecordBatch.from_pydict({"key": [b"a", b"b"], "value": [b"1", b"2"]})
    crossed = pa.RecordBatch.from_pydict({"key": [b"a", b"b"], "value": [b"2", b"1"]})
    assert digest_of(plain) != digest_of(crossed)
    moved = pa.RecordBatch.from_pydict({"key": [b"a1", b"b"], "value": [b"", b"2"]})
    assert digest_of(plain) != digest_of(moved)
    assert digest_of(plain) != digest_of(plain, topic="u")
    empty, nothing = ({"value": pa.array([each], pa.binary())} for each in (b"", None))
    assert digest_of(pa.RecordBatch.from_pydict(empty)) != digest_of(pa.RecordBatch.from_pydict(nothing))


def test_arrows_large_types_hold_the_same_records() -> None:
    """spark.sql.execution.arrow.useLargeVarTypes."""
    small = pa.RecordBatch.from_pydict({"key": pa.array(["a", None]), "value": pa.array([b"1", b"2"])})
    large = pa.RecordBatch.from_pydict({
        "key": pa.array(["a", None], pa.large_string()), "value": pa.array([b"1", b"2"], pa.large_binary())})
    assert digest_of(large) == digest_of(small)


def checkpoint(folder: Path, query: str = "q", batches: int = 3) -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    for batch in range(batches):
        (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{batch}")
    return folder


def test_a_plan_is_the_same_while_spark_has_not_planned_anew(tmp_path: Path) -> None:
    here, copy = checkpoint(tmp_path / "a b"), checkpoint(tmp_path / "copy")
    planned = plan_of(str(here), "t")
    assert planned is not None and planned[:2] == ("q", 2) and planned == plan_of(f"file://{tmp_path}/a%20b", "t")
    assert planned == plan_of(copy.as_uri(), "t") == plan_of(str(here), "t", 2)
    another = plan_of(str(here), "another")
    assert another is not None and dict(another.fingerprints)[OFFSETS] != dict(planned.fingerprints)[OFFSETS]
    (copy / "offsets" / "1").write_text("v1\n{}\n7")
    assert planned != plan_of(str(copy), "t"), "the batch begins elsewhere"


def test_a_plan_tells_which_one_it_follows(tmp_path: Path) -> None:
    here = checkpoint(tmp_path / "here", batches=1)
    first = plan_of(str(here), "t")
    (here / "offsets" / ".1.crc").write_text("")
    (here / "offsets" / "1").write_text("v1\n{}\n1")
    second = plan_of(str(here), "u")
    assert first is not None and second is not None and first.followed == ()
    assert dict(second.followed) == {END: dict(first.fingerprints)[END]}


def test_a_checkpoint_that_is_not_here_tells_nothing(tmp_path: Path) -> None:
    here = checkpoint(tmp_path / "here")
    for location in (None, "s3a://bucket/here", "hdfs:///here", str(tmp_path / "elsewhere")):
        assert local_checkpoint(location) is None and plan_of(location, None) is None
    assert plan_of(str(here), None, 9) is None
    (here / "offsets" / "1").unlink()
    assert plan_of(str(here), None) is None, "where the newest batch begins is not known"
    assert plan_of(str(checkpoint(tmp_path / "planned nothing", batches=0)), None) is None


def test_a_million_records_take_well_below_a_second_of_hashing() -> None:
    values = pa.array([b"%0100d" % i for i in range(20_000)], pa.binary())
    batch = pa.RecordBatch.from_arrays([values], names=["value"])
    took = min(timeit.repeat(lambda: RecordDigest("t").add(batch), number=1, repeat=5, timer=time.process_time))
    assert took * 50 < 3, f"{took * 50:.2f} s for a million: the bound leaves room for a busy machine"

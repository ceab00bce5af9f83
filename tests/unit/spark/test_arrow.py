"""Record batches <-> Arrow: the rows are the same whatever batches the broker answers with."""

from __future__ import annotations

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from hapax_spark.arrow import HEADERS_TYPE, SchemaError, arrow_to_rows, batches_to_arrow, output_columns


def batch(base: int, rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for delta, (key, value, headers) in enumerate(rows):
        builder.append(delta, 1_700_000_000_000 + base + delta, key, value, headers)
    raw = builder.build()
    raw[0:8] = base.to_bytes(8, "big")
    return bytes(raw)


def rows(*batches: bytes, start: int, end: int, include_headers: bool = False) -> list[dict[str, object]]:
    out = batches_to_arrow(batches, "t", 3, start, end, include_headers=include_headers)
    return [row for part in out for row in part.to_pylist()]


def test_range_cuts_batches_on_both_sides() -> None:
    first = batch(10, [(b"k%d" % i, b"v%d" % i, []) for i in range(5)])
    second = batch(15, [(None, None, [])] * 5)
    assert [r["offset"] for r in rows(first, second, start=12, end=17)] == [12, 13, 14, 15, 16]


def test_columns_are_those_of_the_kafka_source() -> None:
    (row,) = rows(batch(7, [(b"k", None, [("h", b"x"), ("n", None)])]), start=0, end=100, include_headers=True)
    assert row["key"] == b"k" and row["value"] is None
    assert (row["topic"], row["partition"], row["offset"], row["timestampType"]) == ("t", 3, 7, 0)
    assert row["timestamp"].timestamp() == 1_700_000_000.007  # type: ignore[attr-defined]
    assert row["headers"] == [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]


def test_a_record_without_headers_has_null_headers() -> None:
    (row,) = rows(batch(0, [(None, b"v", [])]), start=0, end=1, include_headers=True)
    assert row["headers"] is None


def schema(**columns: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (schema(key=BinaryType()), "no column 'value'"),
        (schema(value=LongType()), "column 'value' is bigint; cast it to binary or string"),
        (schema(value=StringType(), delay=LongType()), "column 'delay' cannot be written"),
    ],
)
def test_schema_errors_say_what_to_do(columns: StructType, sentence: str) -> None:
    with pytest.raises(SchemaError, match=sentence):
        output_columns(columns, "t")


def test_a_topic_is_needed_from_the_option_or_a_column() -> None:
    with pytest.raises(SchemaError, match="no topic"):
        output_columns(schema(value=BinaryType()), None)
    assert output_columns(schema(value=BinaryType(), topic=StringType()), None).topic == 1


def test_rows_keep_nulls_headers_and_explicit_partitions() -> None:
    columns = output_columns(
        StructType([*schema(key=StringType(), value=BinaryType()).fields, StructField("headers", HEADERS_TYPE)]), "t"
    )
    data = pa.record_batch(
        {
            "key": pa.array(["a", None]),
            "value": pa.array([None, b"\x00"], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"1"}], None]),
        }
    )
    one, two = arrow_to_rows(data, columns, "t")
    assert (one.key, one.value, one.topic, one.partition, one.headers) == (b"a", None, "t", None, [("h", b"1")])
    assert (two.key, two.value, two.headers) == (None, b"\x00", [])


def test_a_null_topic_is_refused() -> None:
    columns = output_columns(schema(value=BinaryType(), topic=StringType()), None)
    data = pa.record_batch({"value": pa.array([b"v"]), "topic": pa.array([None], pa.string())})
    with pytest.raises(SchemaError, match="null topic"):
        list(arrow_to_rows(data, columns, None))

"""Records <-> Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from hapax.client.records import Record
from hapax_spark.arrow import HEADERS_TYPE, SchemaError, arrow_to_rows, output_columns, records_to_arrow


def rows(*records: Record, include_headers: bool = False, max_rows: int = 100) -> list[dict[str, object]]:
    out = records_to_arrow(records, include_headers=include_headers, max_rows=max_rows)
    return [row for part in out for row in part.to_pylist()]


def record(offset: int, key: bytes | None, value: bytes | None, *headers: tuple[str, bytes | None]) -> Record:
    return Record("t", 3, offset, 1_700_000_000_000 + offset, 0, key, value, headers)


def test_columns_are_those_of_the_kafka_source() -> None:
    (row,) = rows(record(7, b"k", None, ("h", b"x"), ("n", None)), include_headers=True)
    assert row["key"] == b"k" and row["value"] is None
    assert (row["topic"], row["partition"], row["offset"], row["timestampType"]) == ("t", 3, 7, 0)
    assert row["timestamp"].timestamp() == 1_700_000_000.007  # type: ignore[attr-defined]
    assert row["headers"] == [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]


def test_a_record_without_headers_has_null_headers() -> None:
    (row,) = rows(record(0, None, b"v"), include_headers=True)
    assert row["headers"] is None


def test_rows_keep_their_order_over_arrow_batches() -> None:
    assert [r["offset"] for r in rows(*(record(i, None, b"") for i in range(25)), max_rows=10)] == list(range(25))


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

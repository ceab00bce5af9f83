"""Record batches of the log <-> Arrow record batches of Spark.

Reading yields the columns of Spark's own Kafka source (key, value, topic, partition, offset, timestamp,
timestampType, headers), so that a query changes one word when it changes sides. Writing takes the columns that
Spark's Kafka sink takes: value, and optionally key, topic, partition, headers, timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    from hapax.client import Record

    Headers = list[tuple[str, bytes | None]]

HEADERS_TYPE = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())]), containsNull=True
)


def source_schema(include_headers: bool) -> StructType:
    """Columns of the source; `headers` only where the option `includeHeaders` asks for it, as in Spark's source."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        fields.append(StructField("headers", HEADERS_TYPE))
    return StructType(fields)


_ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _arrow_schema(include_headers: bool) -> pa.Schema:
    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
    if include_headers:
        fields.append(("headers", _ARROW_HEADERS))
    return pa.schema(fields)


def records_to_arrow(
    records: Iterable[Record], *, include_headers: bool, max_rows: int = 10_000
) -> Iterator[pa.RecordBatch]:
    """Rows of the source, `max_rows` to an Arrow batch."""
    source = iter(records)
    while rows := list(islice(source, max_rows)):
        yield _rows_to_arrow(rows, include_headers)


def _rows_to_arrow(rows: Sequence[Record], include_headers: bool) -> pa.RecordBatch:
    schema = _arrow_schema(include_headers)
    topics, partitions, offsets, times, kinds, keys, values, headers = zip(*rows, strict=True)
    columns: list[Any] = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(topics, pa.string()),
        pa.array(partitions, pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array(times, pa.timestamp("ms", tz="UTC")).cast(schema.field("timestamp").type),
        pa.array(kinds, pa.int32()),
    ]
    if include_headers:
        # Spark's Kafka source shows a record without headers as null, not as an empty list.
        columns.append(
            pa.array([[{"key": k, "value": v} for k, v in h] or None for h in headers], _ARROW_HEADERS)
        )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class SchemaError(ValueError):
    """The DataFrame's columns cannot be written; the sentence says which column and what to do."""


class OutputColumns(NamedTuple):
    """Positions of the columns in each Arrow batch; None where the DataFrame has no such column."""

    value: int
    key: int | None
    topic: int | None
    partition: int | None
    headers: int | None
    timestamp: int | None


_ACCEPTED: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "topic": (StringType,),
    "partition": (IntegerType, ShortType),
    "headers": (ArrayType,),
    "timestamp": (TimestampType,),
}


def output_columns(schema: StructType, topic_option: str | None) -> OutputColumns:
    """Checks a DataFrame's schema once, before any task runs.

    Raises SchemaError: `value` is missing, a column has another type, an unknown column, or no topic is named.
    """
    positions: dict[str, int] = {}
    for index, column in enumerate(schema.fields):
        accepted = _ACCEPTED.get(column.name)
        if accepted is None:
            raise SchemaError(
                f"column {column.name!r} cannot be written; the sink takes {', '.join(_ACCEPTED)}: "
                "select() what is to be stored, for instance to_json(struct('*')) as value"
            )
        if not isinstance(column.dataType, accepted):
            names = " or ".join(t.typeName() for t in accepted)
            raise SchemaError(
                f"column {column.name!r} is {column.dataType.simpleString()}; cast it to {names}"
            )
        if column.name == "headers" and column.dataType.simpleString() != HEADERS_TYPE.simpleString():
            raise SchemaError(
                f"column 'headers' is {column.dataType.simpleString()}; it must be {HEADERS_TYPE.simpleString()}"
            )
        positions[column.name] = index
    if "value" not in positions:
        raise SchemaError("the DataFrame has no column 'value' (binary or string)")
    if "topic" not in positions and not topic_option:
        raise SchemaError("no topic: set the option 'topic' or add a column 'topic'")
    return OutputColumns(
        value=positions["value"],
        key=positions.get("key"),
        topic=positions.get("topic"),
        partition=positions.get("partition"),
        headers=positions.get("headers"),
        timestamp=positions.get("timestamp"),
    )


class OutputRow(NamedTuple):
    """One record to write; `timestamp` in ms, None: the time of writing."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int | None
    headers: Headers
    timestamp: int | None


def arrow_to_rows(
    batch: pa.RecordBatch, columns: OutputColumns, topic_option: str | None
) -> Iterator[OutputRow]:
    """The rows of one Arrow batch. Raises SchemaError for a null topic: such a record has nowhere to go."""
    n = batch.num_rows

    def column(index: int | None, fill: Any = None) -> list[Any]:
        return [fill] * n if index is None else batch.column(index).to_pylist()

    def octets(index: int | None) -> list[bytes | None]:
        if index is None:
            return [None] * n
        array = batch.column(index)
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            array = array.cast(pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary())
        return array.to_pylist()  # type: ignore[no-any-return]

    times: list[int | None] = [None] * n
    if columns.timestamp is not None:
        in_ms = batch.column(columns.timestamp).cast(pa.timestamp("ms", tz="UTC"), safe=False)
        times = in_ms.cast(pa.int64()).to_pylist()
    headers = column(columns.headers)
    topics = column(columns.topic)
    for key, value, topic, partition, header, time in zip(
        octets(columns.key),
        octets(columns.value),
        topics,
        column(columns.partition),
        headers,
        times,
        strict=True,
    ):
        where = topic_option or topic
        if where is None:
            raise SchemaError("a row has a null topic; filter such rows or set the option 'topic'")
        yield OutputRow(
            key, value, where, partition, [(h["key"], h["value"]) for h in header] if header else [], time
        )

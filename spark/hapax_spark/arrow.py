"""Record batches of the log <-> Arrow record batches of Spark.

Reading yields the columns of Spark's own Kafka source (key, value, topic, partition, offset, timestamp,
timestampType, headers), so that a query changes one word when it changes sides. Writing takes the columns that
Spark's Kafka sink takes: value, and optionally key, topic, partition, headers, timestamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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


ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def arrow_schema(include_headers: bool) -> pa.Schema:
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
        fields.append(("headers", ARROW_HEADERS))
    return pa.schema(fields)


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
                f"The sink has no column {column.name!r}, only {', '.join(_ACCEPTED)}. select() what is to be stored, "
                "for instance to_json(struct('*')) as value"
            )
        if not isinstance(column.dataType, accepted):
            names = " or ".join(t.typeName() for t in accepted)
            raise SchemaError(
                f"Column {column.name!r} is {column.dataType.simpleString()}. Cast it to {names}"
            )
        if column.name == "headers" and column.dataType.simpleString() != HEADERS_TYPE.simpleString():
            raise SchemaError(
                f"Column 'headers' is {column.dataType.simpleString()}. Make it {HEADERS_TYPE.simpleString()}"
            )
        if column.name in positions:
            raise SchemaError(f"Two columns have the name {column.name!r}. Leave one out, or give it another name")
        positions[column.name] = index
    if "value" not in positions:
        raise SchemaError(
            "The DataFrame has no column 'value'. Add one, binary or string, for instance to_json(struct('*')) as value"
        )
    if "topic" not in positions and not topic_option:
        raise SchemaError("Nothing says where to write. Set the option 'topic', or add a column 'topic' (string)")
    return OutputColumns(
        value=positions["value"],
        key=positions.get("key"),
        topic=positions.get("topic"),
        partition=positions.get("partition"),
        headers=positions.get("headers"),
        timestamp=positions.get("timestamp"),
    )

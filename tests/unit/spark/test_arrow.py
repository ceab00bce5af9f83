"""Columns to write: what is accepted."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from hapax_spark.arrow import SchemaError, output_columns


def schema(**columns: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (schema(key=BinaryType()), "has no column 'value'. Add one"),
        (schema(value=LongType()), "Column 'value' is bigint. Cast it to binary or string"),
        (schema(value=StringType(), delay=LongType()), "The sink has no column 'delay'"),
        (StructType([StructField("value", BinaryType())] * 2), "Two columns have the name 'value'. Leave one out"),
    ],
)
def test_schema_errors_say_what_to_do(columns: StructType, sentence: str) -> None:
    with pytest.raises(SchemaError, match=sentence):
        output_columns(columns, "t")


def test_a_topic_is_needed_from_the_option_or_a_column() -> None:
    with pytest.raises(SchemaError, match="Set the option 'topic'"):
        output_columns(schema(value=BinaryType()), None)
    assert output_columns(schema(value=BinaryType(), topic=StringType()), None).topic == 1

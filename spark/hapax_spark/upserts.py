"""Upserts: each row that a stateful query has changed becomes the newest record of its key.

Spark gives Python sinks append and complete mode only, so an aggregation would write its whole result with each
micro-batch. `foreachBatch` has update mode:

    changed = flights.groupBy("origin").agg(F.sum("delay").alias("minutes"))
    changed.writeStream.outputMode("update").foreachBatch(upserts.into(
        "delays", app_id="delays-by-origin", key="origin",
        options={"kafka.bootstrap.servers": "127.0.0.1:9092"},
    )).option("checkpointLocation", "/durable/delays").start()

Each micro-batch is one transaction, named by the application and the batch id, so a batch that Spark replays has its
effect once. A compacted topic keeps the newest row of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, DataType, DoubleType, FloatType, StringType, StructType
from pyspark.sql.utils import to_str

from hapax_spark.arrow import SchemaError
from hapax_spark.options import OptionError, parse
from hapax_spark.tokens import Token

_OURS: Final = ("topic", "txnAppId", "txnVersion")
_CONSECUTIVE: Final = "txnConsecutive"
_MICROSECONDS: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_JSON: Final = {
    "ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": f"{_MICROSECONDS}'Z'",
    "timestampNTZFormat": _MICROSECONDS,
}  # fmt: skip
"""Two rows have the same key in JSON exactly where their columns are equal, whatever the session's time zone is."""
_TEXT: Final = (StringType, BinaryType)


def into(
    topic: str, *, app_id: str, key: str | Sequence[str], options: Mapping[str, object], value: str | None = None,
    deleted: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.outputMode("update").foreachBatch`.

    `key`: the columns that identify a row. One column, string or binary, is the record's key as it is; others are a
    JSON object. `value`: the column, string or binary, that is the record's value; else it is the row as JSON.
    `deleted`: a boolean column; a row where it is true removes its key, as a null `value` does. `app_id` names the
    query and nothing else (`txnAppId`). `options` are those of batch writes; `txnConsecutive` is true unless it says
    otherwise.

    Raises OptionError. The function raises SchemaError where the rows lack these columns, and the errors of
    `hapax_spark.refusals`.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys:
        raise OptionError("key=() identifies no row: name the columns that do, such as those of groupBy")
    taken = {name.lower() for name in options}
    for name in _OURS:
        if name.lower() in taken:
            raise OptionError(f"leave the option {name!r} out: upserts.into() sets it")
    given = {name: text for name, option in options.items() if (text := to_str(option)) is not None}
    given |= {"topic": topic, "txnAppId": app_id}
    if _CONSECUTIVE.lower() not in taken:
        given[_CONSECUTIVE] = "true"
    Token.for_write(parse({**given, "txnVersion": "0"}), "")  # errors are raised here, not by the first micro-batch

    def upsert(batch: DataFrame, batch_id: int) -> None:
        writer = records(batch, keys, value, deleted).write.format("hapax").options(**given)
        writer.option("txnVersion", batch_id).mode("append").save()

    return upsert


def records(batch: DataFrame, keys: Sequence[str], value: str | None, deleted: str | None) -> DataFrame:
    """Rows -> columns `key` and `value` of the sink. Fails where two rows have one key. Raises SchemaError."""
    schema = batch.schema
    for name in keys:
        _type(schema, "key", name)
    if value is not None and not isinstance(_type(schema, "value", value), _TEXT):
        raise SchemaError(
            f"Column {value!r}, the value, is {schema[value].dataType.simpleString()}. Cast it to string or binary, or "
            "leave 'value' out: then the row is written as JSON"
        )
    if deleted is not None and not isinstance(_type(schema, "deleted", deleted), BooleanType):
        raise SchemaError(
            f"Column {deleted!r}, which marks deleted rows, is {schema[deleted].dataType.simpleString()}. Make it "
            "boolean"
        )
    columns = [_column(name) for name in schema.names if name != deleted]
    content = F.to_json(F.struct(*columns), _JSON) if value is None else _column(value)
    if deleted is not None:
        content = F.when(_column(deleted), F.lit(None)).otherwise(content)
    return (
        batch.withColumns({_ROWS: F.count(F.lit(1)).over(Window.partitionBy(*[_column(name) for name in keys]))})
        .select(_key(schema, keys).alias("key"), content.alias("value"))
    )


_ROWS: Final = "__hapax_rows_of_the_key"


def _key(schema: StructType, keys: Sequence[str]) -> Column:
    named = F.to_json(F.struct(*[_in_json(schema, name) for name in keys]), _JSON)
    (first, *others) = keys
    as_it_is = not others and isinstance(schema[first].dataType, _TEXT)
    found = _column(first) if as_it_is else named
    twice = F.concat(
        F.lit(f"{SchemaError.__name__}: One micro-batch has more than one row of the key "), named,
        F.lit(", and it is not known which is the newest. Give upserts.into() all columns that distinguish rows, such "
              "as those of groupBy, or write one row of each key"),
    )  # fmt: skip
    without = (
        f"{SchemaError.__name__}: A row has a null in the column {first!r}, its key. Filter such rows, or give them "
        f"a key, for instance coalesce({first}, 'none')"
    )
    checked = F.when(F.col(_ROWS) > 1, F.raise_error(twice))
    return (checked.when(found.isNull(), F.raise_error(F.lit(without))) if as_it_is else checked).otherwise(found)


def _in_json(schema: StructType, name: str) -> Column:
    """-0.0 and 0.0 are equal, but their texts differ."""
    column, kind = _column(name), schema[name].dataType
    if not isinstance(kind, FloatType | DoubleType):
        return column
    return F.when(column == 0, F.lit(0).cast(kind)).otherwise(column).alias(name)


def _type(schema: StructType, role: str, name: str) -> DataType:
    if name not in schema.names:
        raise SchemaError(
            f"The rows have no column {name!r}, which {role}={name!r} names, only {', '.join(schema.names)}"
        )
    return schema[name].dataType


def _column(name: str) -> Column:
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")

"""Options of the data source, under the names that Spark's Kafka source and sink use.

`bootstrap.servers` and any other client setting may be given bare or with the prefix `kafka.`; what Spark's own
source calls by a name has the same name here. Unknown options are refused: a misspelt `startingOffset` that is
ignored costs a day.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

LATEST = -1
EARLIEST = -2

OffsetSpec = Literal["earliest", "latest"] | dict[str, dict[int, int]]
"""`earliest`, `latest`, or {topic: {partition: offset}} where -2 is earliest and -1 is latest."""


class OptionError(ValueError):
    """An option is unknown or has a bad value; the sentence says what to write instead."""


class Option(NamedTuple):
    """One line of the table of docs/spark.md."""

    name: str
    used: str
    default: str
    meaning: str


OPTIONS: Final = (
    Option("kafka.bootstrap.servers", "both", "–", "`host:port` of one or more nodes"),
    Option("subscribe", "reading", "–", "topics, comma-separated"),
    Option("assign", "reading", "–", '`{"topic": [0, 1]}` instead of `subscribe`'),
    Option(
        "startingOffsets", "reading", "`latest`, batch: `earliest`",
        '`earliest`, `latest`, or `{"topic": {"0": 23, "1": -2}}` for every partition (-2 earliest, -1 latest)',
    ),
    Option("endingOffsets", "reading, batch", "`latest`", "as above, without `earliest`"),
    Option("startingTimestamp", "reading", "–", "ms since 1970; the first record at or after it, instead of offsets"),
    Option("endingTimestamp", "reading, batch", "–", "the same for the end, which is not read any more"),
    Option(
        "maxOffsetsPerTrigger", "reading, streaming", "–",
        "records in a micro-batch at most, shared out over partitions by what waits",
    ),
    Option("minPartitions", "reading", "–", "splits long ranges into at least so many tasks"),
    Option(
        "failOnDataLoss", "reading", "`true`",
        "`false`: go on, with a warning, where records or topics were deleted before they were read",
    ),
    Option("includeHeaders", "reading", "`false`", "the column `headers`"),
    Option("topic", "writing", "–", "where to write; else the column `topic`"),
    Option("delivery", "writing", "`exactly-once`", "or `at-least-once`: no transaction"),
    Option(
        "transactional.id", "writing", "`spark-<scope>`",
        "name of the transactions; under a TransactionalProducer its id, or its prefix and the scope",
    ),
    Option("transaction.timeout.ms", "writing", "`60000`", "of a micro-batch's transaction"),
    Option("scope", "writing", "query id", "names the sequence of commits; set it to go on with a new checkpoint"),
    Option("allowOtherRecordCount", "writing", "`false`", "accept a replay with another number of records"),
    Option(
        "allowUnknownHistory", "writing", "`false`",
        "accept a batch id above 0 where no commit of the scope is known",
    ),
    Option("compression.type", "writing", "`none`", "or `gzip`, `snappy`, `lz4`, `zstd`"),
    Option("batch.size", "writing", "`262144`", "bytes at which a batch of records is full; below the topic's limit"),
)  # fmt: skip

_KNOWN = {option.name.lower() for option in OPTIONS}


def options_table() -> str:
    """The table of docs/spark.md."""
    lines = ["| option | used for | default | meaning |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| `{o.name}` | {o.used} | {o.default} | {o.meaning} |" for o in OPTIONS]) + "\n"


_IGNORED = {"path", "checkpointlocation", "queryname", "includeexistingfiles", "outputmode"}
"""What Spark itself puts among the options."""


@dataclass(frozen=True)
class Options:
    """Everything a reader or writer needs; picklable, so that it can travel to the tasks."""

    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    assign: dict[str, tuple[int, ...]] = field(default_factory=dict)
    starting: OffsetSpec = "latest"
    starting_given: bool = False
    ending: OffsetSpec = "latest"
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    topic: str | None = None
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once"
    transactional_id: str | None = None
    transactional_prefix: str = "spark-"
    """Of the transactional id where none is given; the scope follows it."""
    transaction_timeout_ms: int = 60_000
    scope: str | None = None
    allow_other_record_count: bool = False
    allow_unknown_history: bool = False
    client: dict[str, str] = field(default_factory=dict)
    """Further client settings, passed on as they are (`kafka.` removed)."""

    def source_topics(self) -> tuple[str, ...]:
        """Names of the topics to read; raises OptionError where neither `subscribe` nor `assign` names any."""
        names = self.topics or tuple(self.assign)
        if not names:
            raise OptionError("set option 'subscribe' (topics, comma-separated) or 'assign' ({\"topic\": [0, 1]})")
        return names


def parse(options: Mapping[str, str]) -> Options:
    """Spark's options (keys in any case) -> Options. Raises OptionError."""
    given = {key.lower(): value for key, value in options.items()}
    client: dict[str, str] = {}
    for key in list(given):
        if key.startswith("kafka."):
            client[key.removeprefix("kafka.")] = given.pop(key)
    bootstrap = given.pop("bootstrap.servers", None) or client.pop("bootstrap.servers", None)
    if not bootstrap:
        raise OptionError("set option 'kafka.bootstrap.servers' to host:port of one or more nodes")
    for key in ("compression.type", "batch.size"):
        if key in given:
            client[key] = given.pop(key)
    # Spark's Kafka users write the sink's client settings with the prefix.
    for key in ("transactional.id", "transaction.timeout.ms"):
        if key in client:
            given.setdefault(key, client.pop(key))
    unknown = sorted(set(given) - _KNOWN - _IGNORED)
    if unknown:
        known = ", ".join(option.name for option in OPTIONS)
        raise OptionError(f"Unknown option {unknown[0]!r}. Use one of {known}, or a client setting as 'kafka.<name>'")
    if "subscribe" in given and "assign" in given:
        raise OptionError("give 'subscribe' or 'assign', not both")
    delivery = given.get("delivery", "exactly-once")
    if delivery not in ("exactly-once", "at-least-once"):
        raise OptionError(f"delivery={delivery!r}; it is 'exactly-once' or 'at-least-once'")
    return Options(
        bootstrap_servers=bootstrap,
        topics=tuple(t.strip() for t in given.get("subscribe", "").split(",") if t.strip()),
        assign=_assign(given.get("assign")),
        starting=_offsets("startingOffsets", given.get("startingoffsets", "latest"), LATEST),
        starting_given="startingoffsets" in given or "startingtimestamp" in given,
        ending=_offsets("endingOffsets", given.get("endingoffsets", "latest"), EARLIEST),
        starting_timestamp=_integer("startingTimestamp", given.get("startingtimestamp")),
        ending_timestamp=_integer("endingTimestamp", given.get("endingtimestamp")),
        max_offsets_per_trigger=_integer("maxOffsetsPerTrigger", given.get("maxoffsetspertrigger"), least=1),
        min_partitions=_integer("minPartitions", given.get("minpartitions"), least=1),
        fail_on_data_loss=_boolean("failOnDataLoss", given.get("failondataloss", "true")),
        include_headers=_boolean("includeHeaders", given.get("includeheaders", "false")),
        topic=given.get("topic"),
        delivery="at-least-once" if delivery == "at-least-once" else "exactly-once",
        # What the operator gives to the driver of a TransactionalProducer, whose ids these are.
        transactional_id=given.get("transactional.id") or os.environ.get("HAPAX_SPARK_TRANSACTIONAL_ID"),
        transactional_prefix=os.environ.get("HAPAX_SPARK_TRANSACTIONAL_ID_PREFIX", "spark-"),
        transaction_timeout_ms=_integer("transaction.timeout.ms", given.get("transaction.timeout.ms"), least=1000)
        or 60_000,
        scope=given.get("scope"),
        allow_other_record_count=_boolean("allowOtherRecordCount", given.get("allowotherrecordcount", "false")),
        allow_unknown_history=_boolean("allowUnknownHistory", given.get("allowunknownhistory", "false")),
        client=client,
    )


def _integer(name: str, text: str | None, least: int = 0) -> int | None:
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"{name}={text!r} is not a whole number") from None
    if number < least:
        raise OptionError(f"{name}={number}; it must be at least {least}")
    return number


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(f"{name}={text!r}; it is true or false")
    return text.lower() == "true"


def _assign(text: str | None) -> dict[str, tuple[int, ...]]:
    if text is None:
        return {}
    try:
        return {str(topic): tuple(int(p) for p in parts) for topic, parts in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f'assign={text!r}; write {{"topic": [0, 1]}}') from None


def _offsets(name: str, text: str, senseless: int) -> OffsetSpec:
    if text.lower() == "earliest" and senseless != EARLIEST:
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    try:
        parsed = {str(t): {int(p): int(o) for p, o in parts.items()} for t, parts in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        allowed = "'latest'" if senseless == EARLIEST else "'earliest', 'latest'"
        raise OptionError(f'{name}={text!r}; write {allowed} or {{"topic": {{"0": 23, "1": -2}}}}') from None
    for topic, parts in parsed.items():
        for partition, offset in parts.items():
            if offset < EARLIEST or (offset == EARLIEST and senseless == EARLIEST):
                raise OptionError(f"{name}: offset {offset} of {topic}-{partition} means nothing here")
    return parsed

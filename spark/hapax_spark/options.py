"""Options of the data source, under the names that Spark's Kafka source and sink use.

`bootstrap.servers` and any other client setting may be given bare or with the prefix `kafka.`. Options of Spark's own
source have the same names here. Unknown options are refused, so that a misspelt `startingOffset` is not ignored.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from hapax.codec.metadata import INTERNAL_TOPICS

LATEST = -1
EARLIEST = -2

OffsetSpec = Literal["earliest", "latest"] | dict[str, dict[int, int]]
"""`earliest`, `latest`, or {topic: {partition: offset}} where -2 is earliest and -1 is latest."""


class OptionError(ValueError):
    """An option is unknown or has a bad value. The message states what to write instead."""


class Option(NamedTuple):
    """One line of the table of docs/spark.md."""

    name: str
    used: str
    default: str
    meaning: str


OPTIONS: Final = (
    Option("kafka.bootstrap.servers", "both", "–", "`host:port` of one or more nodes"),
    Option("subscribe", "reading", "–", "topics, comma-separated"),
    Option(
        "subscribePattern", "reading", "–",
        "instead of `subscribe`: all topics whose whole name matches this [RE2](https://github.com/google/re2) pattern",
    ),
    Option("assign", "reading", "–", '`{"topic": [0, 1]}` instead of `subscribe`'),
    Option(
        "startingOffsets", "reading", "`latest`, batch: `earliest`",
        '`earliest`, `latest`, or `{"topic": {"0": 23, "1": -2}}` (-2 earliest, -1 latest; others: earliest)',
    ),
    Option("endingOffsets", "reading, batch", "`latest`", "as above, without `earliest` (others: latest)"),
    Option(
        "startingOffsetsByTimestamp", "reading", "–",
        '`{"topic": {"0": 1767225600000}}`: the first record at or after it, ms since 1970 (others: earliest)',
    ),
    Option(
        "endingOffsetsByTimestamp", "reading, batch", "–", "the same for the end, which is not read (others: latest)",
    ),
    Option("startingTimestamp", "reading", "–", "the same for all partitions; overrides the other start options"),
    Option("endingTimestamp", "reading, batch", "–", "the same for the end"),
    Option(
        "startingOffsetsByTimestampStrategy", "reading", "`error`",
        "if a partition has no record at or after the time: `error`, or `latest` to start at its end",
    ),
    Option(
        "maxOffsetsPerTrigger", "reading, streaming", "–",
        "maximum number of records in a micro-batch, divided over the partitions by the number of waiting ones",
    ),
    Option(
        "minOffsetsPerTrigger", "reading, streaming", "–",
        "no micro-batch before this many records wait, or `maxTriggerDelay` has passed since the last one",
    ),
    Option("maxTriggerDelay", "reading, streaming", "`15m`", "a duration such as `500ms`, `30s`, `15m`"),
    Option("minPartitions", "reading", "–", "splits long ranges into at least this many tasks"),
    Option("maxRecordsPerPartition", "reading", "–", "splits ranges into tasks of at most this many records"),
    Option(
        "kafka.group.id", "reading, streaming", "–",
        "consumer group that shows the query's position ([progress](#the-lag-of-a-query)); the query does not read it",
    ),
    Option(
        "failOnDataLoss", "reading", "`true`",
        "`false`: continue, with a warning, if records or topics were deleted before they were read",
    ),
    Option("includeHeaders", "reading", "`false`", "the column `headers`"),
    Option("topic", "writing", "–", "the topic to write; without it, the column `topic` names it"),
    Option("delivery", "writing", "`exactly-once`", "or `at-least-once`: no transaction"),
    Option(
        "transactional.id", "writing", "`spark-<scope>`",
        "name of the transactions; under a TransactionalProducer its id, or its prefix and the scope",
    ),
    Option("transaction.timeout.ms", "writing", "`60000`", "time-out of a micro-batch's transaction"),
    Option("scope", "writing, streaming", "query id", "names the sequence of commits, which belong to one query"),
    Option(
        "continueFrom", "writing", "–",
        "continue after this commit of another query or of a newer checkpoint; the value is in the error message",
    ),
    Option(
        "txnAppId", "writing, batch", "–",
        "with `txnVersion`: name of the writing application; a repeated version is committed once",
    ),
    Option(
        "txnVersion", "writing, batch", "–",
        "number of the write, which rises with each write of `txnAppId`; in `foreachBatch` the batch id",
    ),
    Option(
        "txnConsecutive", "writing, batch", "`false`, in `foreachBatch` `true`",
        "versions have no gaps, like batch ids: a version that does not follow the newest commit is refused",
    ),
    Option("allowOtherRecordCount", "writing", "`false`", "confirm a replay with another number of records"),
    Option(
        "allowOtherRecords", "writing", "`false`",
        "confirm a replay whose records differ from the committed ones; never a batch with another plan",
    ),
    Option(
        "allowUnknownHistory", "writing", "`false`",
        "accept a batch if the commit before it is unknown or a different one",
    ),
    Option("compression.type", "writing", "`none`", "or `gzip`, `snappy`, `lz4`, `zstd`"),
    Option("batch.size", "writing", "`262144`", "bytes at which a batch of records is full; below the topic's limit"),
)  # fmt: skip

_TIME: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Units of Spark's time strings, in ms."""

_KNOWN = {option.name.lower() for option in OPTIONS}


def options_table() -> str:
    """The table of docs/spark.md."""
    lines = ["| option | used for | default | meaning |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| `{o.name}` | {o.used} | {o.default} | {o.meaning} |" for o in OPTIONS]) + "\n"


_IGNORED = {"path", "checkpointlocation", "queryname", "includeexistingfiles", "outputmode"}
"""Options that Spark itself adds."""


@dataclass(frozen=True)
class Options:
    """All options of a reader or writer. Picklable, because it is sent to the tasks."""

    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    assign: dict[str, tuple[int, ...]] = field(default_factory=dict)
    starting: OffsetSpec = "latest"
    starting_given: bool = False
    ending: OffsetSpec = "latest"
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    starting_timestamps: dict[str, dict[int, int]] | None = None
    ending_timestamps: dict[str, dict[int, int]] | None = None
    timestamp_strategy: Literal["error", "latest"] = "error"
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    topic: str | None = None
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once"
    transactional_id: str | None = None
    transactional_prefix: str = "spark-"
    """Prefix of the transactional id if none is given; the scope follows it."""
    transaction_timeout_ms: int = 60_000
    scope: str | None = None
    continue_from: tuple[str, int] | None = None
    """Owner and value of a commit."""
    txn_app_id: str | None = None
    txn_version: int | None = None
    txn_consecutive: bool | None = None
    """None: in `foreachBatch`, where the version is the batch id."""
    checkpoint_location: str | None = None
    allow_other_records: bool = False
    allow_other_record_count: bool = False
    allow_unknown_history: bool = False
    client: dict[str, str] = field(default_factory=dict, repr=False)
    """Further client settings, passed on as they are (`kafka.` removed). Some are secrets, so none is shown."""

    ends_given: tuple[str, ...] = ()
    """The given options for the end of reading, which only batch queries accept."""

    @property
    def group_id(self) -> str | None:
        """The consumer group that shows the query's position."""
        return self.client.get("group.id")

    def named_topics(self) -> tuple[str, ...]:
        """Names of the topics to read; () if a pattern selects them. Raises OptionError if there is neither."""
        names = self.topics or tuple(self.assign)
        if not names and self.subscribe_pattern is None:
            raise OptionError(
                "set option 'subscribe' (topics, comma-separated), 'subscribePattern' (a regular expression) or "
                "'assign' ({\"topic\": [0, 1]})"
            )
        return names

    def wanted_topics(self, there: Iterable[str]) -> tuple[str, ...]:
        """The topics to read: the named ones, even if they do not exist, or the existing ones that match the
        pattern."""
        if self.subscribe_pattern is None:
            return self.named_topics()
        matches = _pattern(self.subscribe_pattern).fullmatch
        return tuple(name for name in sorted(there) if matches(name) and name not in INTERNAL_TOPICS)

    def described(self) -> str:
        """A description for people: `subscribe flights, delays`."""
        if self.subscribe_pattern is not None:
            return f"subscribePattern {self.subscribe_pattern}"
        if self.topics:
            return f"subscribe {', '.join(self.topics)}"
        return "assign " + ", ".join(f"{topic}-{p}" for topic, parts in self.assign.items() for p in parts)


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
    # Users of Spark's Kafka sink write these client settings with the prefix.
    for key in ("transactional.id", "transaction.timeout.ms"):
        if key in client:
            given.setdefault(key, client.pop(key))
    unknown = sorted(set(given) - _KNOWN - _IGNORED)
    if unknown:
        known = ", ".join(option.name for option in OPTIONS)
        raise OptionError(f"Unknown option {unknown[0]!r}. Use one of {known}, or a client setting as 'kafka.<name>'")
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(chosen) > 1:
        raise OptionError(f"give {chosen[0]!r} or {chosen[1]!r}, not both")
    delivery = given.get("delivery", "exactly-once")
    if delivery not in ("exactly-once", "at-least-once"):
        raise OptionError(f"delivery={delivery!r}; it must be 'exactly-once' or 'at-least-once'")
    least = _integer("minOffsetsPerTrigger", given.get("minoffsetspertrigger"), least=1)
    most = _integer("maxOffsetsPerTrigger", given.get("maxoffsetspertrigger"), least=1)
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}")
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy={strategy!r}; it must be 'error' or 'latest'")
    pattern = given.get("subscribepattern", "").strip() or None
    if pattern is not None:
        _pattern(pattern)
    return Options(
        bootstrap_servers=bootstrap,
        topics=tuple(t.strip() for t in given.get("subscribe", "").split(",") if t.strip()),
        subscribe_pattern=pattern,
        assign=_assign(given.get("assign")),
        starting=_offsets("startingOffsets", given.get("startingoffsets", "latest"), LATEST),
        starting_given="startingoffsets" in given,
        ending=_offsets("endingOffsets", given.get("endingoffsets", "latest"), EARLIEST),
        starting_timestamp=_integer("startingTimestamp", given.get("startingtimestamp")),
        ending_timestamp=_integer("endingTimestamp", given.get("endingtimestamp")),
        starting_timestamps=_times("startingOffsetsByTimestamp", given.get("startingoffsetsbytimestamp")),
        ending_timestamps=_times("endingOffsetsByTimestamp", given.get("endingoffsetsbytimestamp")),
        timestamp_strategy="latest" if strategy == "latest" else "error",
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms("maxTriggerDelay", given.get("maxtriggerdelay", "15m")),
        min_partitions=_integer("minPartitions", given.get("minpartitions"), least=1),
        max_records_per_partition=_integer("maxRecordsPerPartition", given.get("maxrecordsperpartition"), least=1),
        fail_on_data_loss=_boolean("failOnDataLoss", given.get("failondataloss", "true")),
        include_headers=_boolean("includeHeaders", given.get("includeheaders", "false")),
        topic=given.get("topic"),
        delivery="at-least-once" if delivery == "at-least-once" else "exactly-once",
        # The operator sets these variables for the driver of a TransactionalProducer.
        transactional_id=given.get("transactional.id") or os.environ.get("HAPAX_SPARK_TRANSACTIONAL_ID"),
        transactional_prefix=os.environ.get("HAPAX_SPARK_TRANSACTIONAL_ID_PREFIX", "spark-"),
        transaction_timeout_ms=_integer(
            "transaction.timeout.ms", given.get("transaction.timeout.ms"), least=1000, most=2**31 - 1) or 60_000,
        scope=given.get("scope"),
        continue_from=_commit(given.get("continuefrom")),
        txn_app_id=given.get("txnappid") or None,
        txn_version=_integer("txnVersion", given.get("txnversion")),
        txn_consecutive=_boolean("txnConsecutive", given["txnconsecutive"]) if "txnconsecutive" in given else None,
        checkpoint_location=given.get("checkpointlocation"),
        allow_other_records=_boolean("allowOtherRecords", given.get("allowotherrecords", "false")),
        allow_other_record_count=_boolean("allowOtherRecordCount", given.get("allowotherrecordcount", "false")),
        allow_unknown_history=_boolean("allowUnknownHistory", given.get("allowunknownhistory", "false")),
        client=client,
        ends_given=tuple(
            name for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp") if name.lower() in given
        ),
    )


@functools.cache
def _pattern(text: str) -> Any:
    import re2  # tasks that read named topics need not load it

    quiet = re2.Options()
    quiet.log_errors = False
    try:
        return re2.compile(text, quiet)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else error
        raise OptionError(
            f"subscribePattern={text!r}: {reason}. Write a pattern of RE2, which has neither look-around nor back "
            "references"
        ) from None


def _duration_ms(name: str, text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _TIME:
        raise OptionError(f"{name}={text!r}; write a number and a unit, such as 500ms, 30s, 15m, 1h")
    return int(found[1]) * _TIME[found[2]]


def _times(name: str, text: str | None) -> dict[str, dict[int, int]] | None:
    if text is None:
        return None
    try:
        parsed = {str(t): {int(p): int(time) for p, time in parts.items()} for t, parts in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f'{name}={text!r}; write {{"topic": {{"0": 1767225600000}}}} in ms since 1970') from None
    if any(not 0 <= time < 2**63 for parts in parsed.values() for time in parts.values()):
        raise OptionError(f"{name}={text!r}; times must be ms since 1970, from 0 to 2^63 - 1")
    return parsed


def _integer(name: str, text: str | None, least: int = 0, most: int = 2**63 - 1) -> int | None:
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"{name}={text!r} is not a whole number") from None
    if number < least:
        raise OptionError(f"{name}={number}; it must be at least {least}")
    if number > most:
        raise OptionError(f"{name}={number}; it must be at most {most}")
    return number


def _commit(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    owner, colon, value = text.rpartition(":")
    if not colon or not value.isdecimal():
        raise OptionError(f"continueFrom={text!r}; write the commit as in the error message, QUERY:NUMBER")
    return owner, _integer("continueFrom", value) or 0


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(f"{name}={text!r}; it must be true or false")
    return text.lower() == "true"


def _assign(text: str | None) -> dict[str, tuple[int, ...]]:
    if text is None:
        return {}
    try:
        parsed = json.loads(text)
        if any(not isinstance(parts, list) or not parts for parts in parsed.values()):
            raise ValueError
        return {str(topic): tuple(int(p) for p in parts) for topic, parts in parsed.items()}
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
                raise OptionError(f"{name}: offset {offset} of {topic}-{partition} is not allowed here")
    return parsed

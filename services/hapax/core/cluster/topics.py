"""What a topic may be called and how it may be configured: Kafka's rules, checked before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Final

from hapax.core.errors import ErrorCode, Refusal

MAX_NAME_LENGTH: Final = 249
"""A folder is named `<topic>-<partition>` on file systems that allow 255 bytes."""
MAX_PARTITIONS: Final = 10_000
"""Of one topic: a guard against a slip of the keyboard that fills the store."""

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1


def check_topic_name(name: str | None) -> None:
    """Raises Refusal (INVALID_TOPIC_EXCEPTION) for a name that Kafka would not take."""
    if not name:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "a topic's name must not be empty")
    if name in (".", ".."):
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "a topic must not be named '.' or '..'")
    if len(name) > MAX_NAME_LENGTH:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"a topic's name has at most {MAX_NAME_LENGTH} characters")
    if not _LEGAL_NAME.fullmatch(name):
        raise Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "a topic's name consists of ASCII letters, digits, '.', '_' and '-'",
        )


_BOOLEAN: Final = re.compile(r"true|false", re.IGNORECASE)
_THROTTLED: Final = re.compile(r"(\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?")

TOPIC_CONFIGS: Final[Mapping[str, tuple[int, int] | re.Pattern[str]]] = {
    "cleanup.policy": re.compile(r"((delete|compact)(,(delete|compact))*)?"),
    "compression.gzip.level": (-1, 9),
    "compression.lz4.level": (1, 17),
    "compression.type": re.compile(r"producer|uncompressed|gzip|snappy|lz4|zstd"),
    "compression.zstd.level": (-131_072, 22),
    "delete.retention.ms": (0, _INT64_MAX),
    "file.delete.delay.ms": (0, _INT64_MAX),
    "flush.messages": (1, _INT64_MAX),
    "flush.ms": (0, _INT64_MAX),
    "follower.replication.throttled.replicas": _THROTTLED,
    "index.interval.bytes": (0, _INT32_MAX),
    "leader.replication.throttled.replicas": _THROTTLED,
    "max.compaction.lag.ms": (1, _INT64_MAX),
    "max.message.bytes": (0, _INT32_MAX),
    "message.timestamp.after.max.ms": (0, _INT64_MAX),
    "message.timestamp.before.max.ms": (0, _INT64_MAX),
    "message.timestamp.type": re.compile(r"CreateTime|LogAppendTime"),
    "min.cleanable.dirty.ratio": re.compile(r"0(\.[0-9]+)?|1(\.0+)?"),
    "min.compaction.lag.ms": (0, _INT64_MAX),
    "min.insync.replicas": (1, _INT32_MAX),
    "preallocate": _BOOLEAN,
    "restoring": re.compile(r"[A-Za-z0-9-]{0,64}"),
    "retention.bytes": (-1, _INT64_MAX),
    "retention.ms": (-1, _INT64_MAX),
    "segment.bytes": (1024, _INT32_MAX),
    "segment.index.bytes": (4, _INT32_MAX),
    "segment.jitter.ms": (0, _INT64_MAX),
    "segment.ms": (1, _INT64_MAX),
    "unclean.leader.election.enable": _BOOLEAN,
}
"""Kafka's topic settings: the range of a number (inclusive), or the form of a text (of a list: as `plain_list` gives
it)."""

IDLE_TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "file.delete.delay.ms": "60000",
    "flush.messages": str(_INT64_MAX),
    "flush.ms": str(_INT64_MAX),
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
    "max.compaction.lag.ms": str(_INT64_MAX),
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "preallocate": "false",
    "segment.jitter.ms": "0",
}
"""Those that are checked and kept but have no effect, with Kafka's defaults."""

LIST_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
}
"""Topic settings that are lists, and what values are added to, or taken from, where the topic has no list of its own:
Kafka's default, whatever the brokers' setting is."""


def plain_list(text: str) -> list[str]:
    """The values of a list, without blanks, each once, in their order. An empty text is an empty list."""
    return list(dict.fromkeys(value.strip() for value in text.split(",") if value.strip()))


def plain_config(config: Mapping[str, str]) -> dict[str, str]:
    """With lists in one form: as DescribeConfigs shows them, and as other code reads them."""
    return {name: ",".join(plain_list(value)) if name in LIST_CONFIGS else value for name, value in config.items()}


def changed_list(name: str, current: str | None, values: str, *, append: bool) -> str:
    """A list with these values added, or taken away (IncrementalAlterConfigs, KIP-339). `current`: None where the topic
    has no list of its own. Raises Refusal (INVALID_CONFIG): the setting is no list."""
    if name not in LIST_CONFIGS:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"Can't {'APPEND' if append else 'SUBTRACT'} to key {name} because its type is not LIST.")
    former, given = plain_list(LIST_CONFIGS[name] if current is None else current), plain_list(values)
    return ",".join(
        [*former, *(each for each in given if each not in former)] if append
        else [each for each in former if each not in given])


def check_topic_config(config: Mapping[str, str | None]) -> None:
    """Raises Refusal (INVALID_CONFIG) at the first setting that is unknown, null or out of its range."""
    for name, value in config.items():
        form = TOPIC_CONFIGS.get(name)
        if form is None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"unknown topic config name: {name}")
        if value is None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} has no value")
        if isinstance(form, tuple):
            least, most = form
            if not re.fullmatch(r"-?[0-9]{1,19}", value) or not least <= int(value) <= most:
                raise Refusal(ErrorCode.INVALID_CONFIG, f"{name}={value}: expected a number from {least} to {most}")
        elif not form.fullmatch(value):
            raise Refusal(ErrorCode.INVALID_CONFIG, f"{name}={value}: expected {form.pattern}")


def check_partition_count(partitions: int) -> None:
    """Raises Refusal (INVALID_PARTITIONS) unless the count is -1 (the cluster's default) or a sensible number."""
    if partitions != -1 and not 1 <= partitions <= MAX_PARTITIONS:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS, f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")


def check_assignment(assignment: Sequence[Sequence[int]], brokers: Container[int]) -> None:
    """Raises Refusal (INVALID_REPLICA_ASSIGNMENT) unless each partition has as many replicas, distinct live brokers."""
    for index, replicas in enumerate(assignment):
        check_replicas(replicas, brokers, f"the assignment of partition {index}")
        if len(replicas) != len(assignment[0]):
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the assignment of partition {index} has {len(replicas)} replicas, but the first partition has "
                f"{len(assignment[0])}")


def check_replicas(replicas: Sequence[int], brokers: Container[int], what: str) -> None:
    """Raises Refusal (INVALID_REPLICA_ASSIGNMENT) unless they are distinct live brokers, at least one. `what`: the
    subject of the message."""
    fault = ""
    if not replicas:
        fault = "has no replicas"
    elif len(set(replicas)) < len(replicas):
        fault = f"names a broker twice: {list(replicas)}"
    elif strangers := [node for node in replicas if node not in brokers]:
        fault = f"names broker {strangers[0]}, which is not alive"
    if fault:
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{what} {fault}")


def check_replication_factor(replication_factor: int, brokers: int) -> None:
    """Raises Refusal (INVALID_REPLICATION_FACTOR). -1 stands for the cluster's default."""
    if replication_factor == -1:
        return
    if replication_factor < 1:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be at least 1")
    if replication_factor > brokers:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} is larger than the number of live brokers, {brokers}",
        )

"""How the commands reach a cluster: options, the client that they use, and what a failure becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer

from hapax.cli import output
from hapax.client import Admin, ConfigValue, HapaxError, TopicInfo, TopicPartition
from hapax.client.errors import RetriableError, from_code
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex
from hapax.runtime.settings import SettingsError, parse_assignments

T = TypeVar("T")

Bootstrap = Annotated[
    str, typer.Option("--bootstrap", help="Where to find the cluster: host:port,...", envvar="HAPAX_BOOTSTRAP")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

_FIND_MS = 5_000
_PATIENCE_MS = 15_000
_MISSING = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.GROUP_ID_NOT_FOUND,
})  # fmt: skip


def client_options(bootstrap: str) -> dict[str, object]:
    """Of every client that a command makes: a person waits for it."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "hapax-command",
        "request.timeout.ms": _FIND_MS,
        "default.api.timeout.ms": _PATIENCE_MS,
    }


def administer(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Runs `work` with an admin client. Whatever fails ends the command, see `finish`."""

    async def run() -> T:
        admin = Admin(client_options(bootstrap))
        try:
            await admin.start()
        except RetriableError as error:
            output.fail(str(error), output.NOT_RUNNING)
        try:
            return await work(admin)
        finally:
            await admin.close()

    return finish(run())


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's work; a failure becomes one line on stderr and an exit code that says which: 4 for what does
    not exist, else 1. Ctrl-C is 130, as in shells."""
    try:
        return asyncio.run(work)
    except HapaxError as error:
        output.fail(str(error), output.NOT_FOUND if error.code in _MISSING else output.FAILED)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def assignments(texts: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE` options; a wrong one is wrong usage."""
    try:
        return parse_assignments(texts or ())
    except SettingsError as error:
        output.fail(str(error), output.USAGE)


def reads_committed(isolation_level: str) -> bool:
    """Another word is wrong usage: it must not pass for the one or the other."""
    if isolation_level not in ("read_committed", "read_uncommitted"):
        output.fail(f"{isolation_level!r} is not read_committed or read_uncommitted", output.USAGE)
    return isolation_level == "read_committed"


async def find_topic(admin: Admin, name: str) -> TopicInfo:
    """Raises FatalError where the cluster has no such topic."""
    for topic in await admin.list_topics():
        if topic.name == name:
            return topic
    raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")


async def find_partitions(admin: Admin, topic: str, chosen: Sequence[int] | None) -> list[TopicPartition]:
    """The chosen partitions of a topic, or all of them. Raises FatalError for one that is not there."""
    known = sorted(each.partition for each in (await find_topic(admin, topic)).partitions)
    missing = [index for index in chosen or () if index not in known]
    if missing:
        raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{missing[0]}")
    return [TopicPartition(topic, PartitionIndex(index)) for index in chosen or known]


def print_config(as_json: bool, found: Mapping[str, ConfigValue]) -> None:
    shown = [{"name": name, **each._asdict()} for name, each in found.items()]
    output.print_records(as_json, "", shown, ("name", "value", "source", "default"))


def partition_name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"

"""What the commands share to reach a cluster: options, clients, and how a failure is shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, Protocol, TypeVar

import typer

from hapax.cli import output
from hapax.cli.command_config import command_config
from hapax.client import (
    AbortableError,
    Admin,
    ConfigValue,
    FencedError,
    HapaxError,
    RetriableError,
    TopicPartition,
    errors,
)
from hapax.client.settings import known_to
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex
from hapax.runtime.settings import SettingsError, parse_assignments

T = TypeVar("T")

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", help="Addresses of any nodes of the cluster: host:port,...", envvar="HAPAX_BOOTSTRAP"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic. Repeatable. Default: all topics.")
]
PartitionNumbers = Annotated[
    list[int] | None, typer.Option("--partition", help="Only this partition. Repeatable. Default: all partitions.")
]
ISOLATION_HELP: Final = "read_committed or read_uncommitted: whether to leave out open and aborted transactions."

_FIND_TIMEOUT_MS = 5_000
CALL_TIMEOUT_MS = 15_000
_MISSING = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND,
})  # fmt: skip


def client_options(bootstrap: str) -> dict[str, object]:
    """For the clients of commands. A person waits for the answer, so timeouts are shorter than the defaults."""
    defaults = {"request.timeout.ms": _FIND_TIMEOUT_MS, "default.api.timeout.ms": CALL_TIMEOUT_MS}
    return reaching(bootstrap, "a", defaults)


def patient_options(bootstrap: str) -> dict[str, object]:
    """For the clients of commands that work for minutes, often without a person who would start them again: with the
    clients' usual time-outs, a failover or a node that is slow for seconds does not end them."""
    return reaching(bootstrap, "a", {})


def reaching(bootstrap: str, user: str, defaults: Mapping[str, object]) -> dict[str, object]:
    """Settings of a command's client: `defaults`, and what the file of --command-config says. `user`: as in
    `client.settings.Setting`. The file's addresses apply where the command has none of its own."""
    try:
        configured = known_to(user, command_config())
    except (OSError, SettingsError, errors.SettingsError) as error:
        output.fail(f"--command-config: {error}", output.USAGE)
    if bootstrap != DEFAULT_BOOTSTRAP or "bootstrap.servers" not in configured:
        configured["bootstrap.servers"] = bootstrap
    return {"client.id": "hapax-command", **defaults, **configured}


class _Client(Protocol):
    async def start(self) -> Any: ...
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Client)


@asynccontextmanager
async def connected(client: C) -> AsyncIterator[C]:
    """Starts and closes a command's client. Ends the command if the cluster does not answer."""
    try:
        await client.start()
    except RetriableError as error:
        output.fail(str(error), output.NOT_RUNNING)
    try:
        yield client
    finally:
        await client.close()


def administer(bootstrap: str, task: Callable[[Admin], Awaitable[T]]) -> T:
    """Runs `task` with an admin client. A failure ends the command, see `finish`."""

    async def run() -> T:
        async with connected(Admin(client_options(bootstrap))) as admin:
            return await task(admin)

    return finish(run())


def finish(task: Coroutine[Any, Any, T]) -> T:
    """Runs a command's task. A failure becomes one line on stderr and an exit code: 2 for a wrong setting, 4 for
    something that does not exist, otherwise 1; 130 after Ctrl-C, as in shells."""
    try:
        return asyncio.run(task)
    except HapaxError as error:
        code = output.FAILED
        if isinstance(error, errors.SettingsError):
            code = output.USAGE
        elif error.code in _MISSING:
            code = output.NOT_FOUND
        output.fail(sentence(error), code)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def sentence(error: HapaxError) -> str:
    """What happened and what to do, for a person at a terminal. (The client's own advice is for a program.)"""
    advice = error.advice
    if isinstance(error, FencedError):
        advice = "Another client holds this transactional id or lease now"
    elif isinstance(error, AbortableError):
        advice = "The open transaction was aborted: none of its records becomes visible"
    elif error.maybe_written:
        advice = "Some records may have been written: check the end of the topic before you send them again"
    return f"{error.message}. {advice}" if advice else error.message


def assignments(texts: Sequence[str] | None) -> dict[str, str]:
    """Reads `NAME=VALUE` options. A wrong one ends the command with the exit code for wrong usage."""
    try:
        return parse_assignments(texts or ())
    except SettingsError as error:
        output.fail(str(error), output.USAGE)


def reads_committed(isolation_level: str) -> bool:
    """Any other word ends the command with the exit code for wrong usage."""
    if isolation_level not in ("read_committed", "read_uncommitted"):
        output.fail(
            f"--isolation-level is read_committed or read_uncommitted, not {isolation_level!r}", output.USAGE)
    return isolation_level == "read_committed"


def chosen_partitions(
    topic: str, existing: Iterable[int], wanted: Sequence[int] | None
) -> list[TopicPartition]:
    """The wanted partitions of a topic, or all of them. Raises HapaxError with UNKNOWN_TOPIC_OR_PARTITION if one does
    not exist."""
    there = sorted(existing)
    for index in wanted or ():
        if index not in there:
            has = f"the topic has the partitions {output.joined(there)}"
            raise errors.from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{index}", has)
    return [TopicPartition(topic, PartitionIndex(index)) for index in wanted or there]


async def find_partitions(admin: Admin, topic: str, wanted: Sequence[int] | None) -> list[TopicPartition]:
    """Like `chosen_partitions`. Raises HapaxError if there is no such topic."""
    found = await admin.describe_topic(topic)
    return chosen_partitions(topic, (each.partition for each in found.partitions), wanted)


def print_config(as_json: bool, found: Mapping[str, ConfigValue]) -> None:
    shown = [{"name": name, **each._asdict()} for name, each in found.items()]
    output.print_records(as_json, "", shown, ("name", "value", "source", "default"))


def partition_name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"

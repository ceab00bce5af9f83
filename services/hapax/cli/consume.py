"""`hapax consume TOPIC`: prints the records of a topic."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import (
    CALL_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ISOLATION_HELP,
    AsJson,
    Bootstrap,
    PartitionNumbers,
    assignments,
    chosen_partitions,
    connected,
    finish,
    reaching,
)
from hapax.client import Consumer, Record
from hapax.core.types import PartitionIndex, TopicPartition

_POLL_MS = 500
_COMMIT_S = 5.0


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: PartitionNumbers = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the first record. Default: at the end.")
    ] = False,
    offset: Annotated[int | None, typer.Option(help="Start at this offset in each partition.", min=0)] = None,
    isolation_level: Annotated[str, typer.Option(help=ISOLATION_HELP)] = "read_committed",
    maximum: Annotated[int, typer.Option("--max", help="Stop after this many records. 0: no limit.", min=0)] = 0,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the offsets where the partitions end now.")
    ] = False,
    group: Annotated[
        str | None, typer.Option(help="Start at this group's committed offsets, and commit offsets for it.")
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Print the key, a tab and the value.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the consumer. Repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Print the values of a topic's records, or with --json one JSON object per record."""
    chosen = assignments(settings)
    options: dict[str, object] = {
        **reaching(bootstrap, "c", {"default.api.timeout.ms": CALL_TIMEOUT_MS}),
        "isolation.level": isolation_level,
        "auto.offset.reset": "earliest" if from_beginning else "latest",
        **chosen,
    }
    if group is not None:
        options["group.id"] = group

    count = 0

    def show(record: Record) -> bool:
        nonlocal count
        print_record(record, as_json, keys)
        count += 1
        return count == maximum

    finish(read(options, topic, partitions or (), offset, until_end, show))


async def read(
    options: Mapping[str, object], topic: str, partitions: Sequence[int], offset: int | None, until_end: bool,
    show: Callable[[Record], bool],
) -> None:
    """Calls `show` with each record until it returns True. With `until_end`, stops at the offsets where the partitions
    end when reading starts. The group's offsets are committed here and not by the consumer, whose positions include
    records that were read but not shown. Raises HapaxError."""
    commits = "group.id" in options and str(options.get("enable.auto.commit", "true")).lower() == "true"
    async with connected(Consumer({**options, "enable.auto.commit": False})) as consumer:
        existing = await consumer.partitions(topic)
        wanted = chosen_partitions(topic, (each.partition for each in existing), partitions)
        consumer.assign(wanted)
        if offset is not None:
            for each in wanted:
                consumer.seek(each, offset)
        ends = await consumer.end_offsets(wanted) if until_end else {}
        shown = _Shown(consumer if commits else None)
        try:
            await _poll(consumer, ends, show, shown)
        finally:
            await shown.commit()


async def _poll(
    consumer: Consumer, ends: Mapping[TopicPartition, int], show: Callable[[Record], bool], shown: _Shown
) -> None:
    """Without `ends`, only `show` ends it."""
    while True:
        for record in await consumer.poll(_POLL_MS):
            enough = show(record)
            shown.record(record)
            if enough:
                return
        shown.positions({each: await consumer.position(each) for each in consumer.assignment()})
        if ends and all([await consumer.position(each) >= end for each, end in ends.items()]):
            return
        await shown.commit_from_time_to_time()


class _Shown:
    """The offsets behind the records that were shown. `consumer`: commits them; None: nothing is committed."""

    def __init__(self, consumer: Consumer | None) -> None:
        self._consumer = consumer
        self._next: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._due = 0.0

    def record(self, record: Record) -> None:
        self._next[TopicPartition(record.topic, PartitionIndex(record.partition))] = record.offset + 1

    def positions(self, found: Mapping[TopicPartition, int]) -> None:
        """`found`: positions of a consumer whose records were all shown, also behind markers and aborted records."""
        self._next.update(found)

    async def commit_from_time_to_time(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._due:
            self._due = now + _COMMIT_S
            await self.commit()

    async def commit(self) -> None:
        """Raises HapaxError."""
        if self._consumer is not None and self._next != self._committed:
            sys.stdout.flush()
            await self._consumer.commit(self._next)
            self._committed = dict(self._next)


def print_record(record: Record, as_json: bool, keys: bool) -> None:
    if as_json:
        plain: dict[str, Any] = record._asdict()
        plain["headers"] = [[name, output.text_of(value)] for name, value in record.headers]
        output.print_json(plain | {"key": output.text_of(record.key), "value": output.text_of(record.value)})
    else:
        value = output.text_of(record.value) or ""
        print(f"{output.text_of(record.key) or ''}\t{value}" if keys else value, flush=True)

"""`hapax consume TOPIC`: prints records."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, assignments, finish
from hapax.client import Consumer, Record
from hapax.client.errors import from_code
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition

_POLL_MS = 500
_COMMIT_S = 5.0


def consume(
    topic: str,
    partition: Annotated[list[int] | None, typer.Option(help="Repeatable; default: all.")] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Default: from the end.")] = False,
    offset: Annotated[int | None, typer.Option(help="Begin here, in every partition that is read.", min=0)] = None,
    isolation_level: Annotated[str, typer.Option(help="read_committed or read_uncommitted.")] = "read_committed",
    maximum: Annotated[int, typer.Option("--max", help="End after so many records; 0: never.", min=0)] = 0,
    until_end: Annotated[bool, typer.Option("--until-end", help="End where the topic ended when it began.")] = False,
    group: Annotated[str | None, typer.Option(help="Begin at this group's offsets, and commit them.")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Keys too, with a tab between.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A consumer's setting; repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Print records: their values, or with --json one object per line."""
    chosen = assignments(settings)
    options: dict[str, object] = {
        "bootstrap.servers": bootstrap,
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

    finish(read(options, topic, partition or (), offset, until_end, show))


async def read(
    options: Mapping[str, object], topic: str, partitions: Sequence[int], offset: int | None, until_end: bool,
    show: Callable[[Record], bool],
) -> None:
    """Shows records as they come, until `show` returns True; with `until_end` until those below the ends that the
    partitions have now were shown. A group's offsets are committed here, not by the consumer: a position of its own
    counts records that were read and never shown. Raises HapaxError."""
    wished = str(options.get("enable.auto.commit", "true")).lower() == "true"
    async with Consumer({**options, "enable.auto.commit": False}) as consumer:
        known = await consumer.partitions(topic)
        wanted = [each for each in known if not partitions or each.partition in partitions]
        missing = sorted(set(partitions) - {each.partition for each in wanted})
        if missing:
            raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{missing[0]}")
        consumer.assign(wanted)
        if offset is not None:
            for each in wanted:
                consumer.seek(each, offset)
        ends = await consumer.end_offsets(wanted) if until_end else {}
        shown = _Shown(consumer if wished and "group.id" in options else None)
        try:
            await _poll(consumer, ends, show, shown)
        finally:
            await shown.commit()


async def _poll(
    consumer: Consumer, ends: Mapping[TopicPartition, int], show: Callable[[Record], bool], shown: _Shown
) -> None:
    """Without `ends` there is no end but `show`'s."""
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
    """What was shown and is to be committed. `consumer`: None where nothing is."""

    def __init__(self, consumer: Consumer | None) -> None:
        self._consumer = consumer
        self._next: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._due = 0.0

    def record(self, record: Record) -> None:
        self._next[TopicPartition(record.topic, PartitionIndex(record.partition))] = record.offset + 1

    def positions(self, found: Mapping[TopicPartition, int]) -> None:
        """All that was read was shown: these are behind markers and aborted records, too."""
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

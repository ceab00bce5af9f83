"""`hapax consume TOPIC`: prints records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, assignments, finish
from hapax.client import Consumer, Record

_POLL_MS = 500


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

    async def run() -> None:
        count = 0
        async for record in read(options, topic, partition or (), offset, until_end):
            print_record(record, as_json, keys)
            count += 1
            if count == maximum:
                return

    finish(run())


async def read(
    options: Mapping[str, object], topic: str, partitions: Sequence[int], offset: int | None, until_end: bool
) -> AsyncIterator[Record]:
    """Records as they come; with `until_end` those below the ends that the partitions have now."""
    async with Consumer(options) as consumer:
        wanted = [each for each in await consumer.partitions(topic) if not partitions or each.partition in partitions]
        consumer.assign(wanted)
        if offset is not None:
            for each in wanted:
                consumer.seek(each, offset)
        ends = await consumer.end_offsets(wanted) if until_end else {}
        while True:
            for record in await consumer.poll(_POLL_MS):
                yield record
            if until_end:
                positions = [(await consumer.position(each), end) for each, end in ends.items()]
                if all(position >= end for position, end in positions):
                    return


def print_record(record: Record, as_json: bool, keys: bool) -> None:
    if as_json:
        plain: dict[str, Any] = record._asdict()
        plain["headers"] = [[name, output.text_of(value)] for name, value in record.headers]
        output.print_json(plain | {"key": output.text_of(record.key), "value": output.text_of(record.value)})
    else:
        value = output.text_of(record.value) or ""
        print(f"{output.text_of(record.key) or ''}\t{value}" if keys else value, flush=True)

"""`hapax produce TOPIC`: writes one record for each line of standard input."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, assignments, connected, finish, reaching
from hapax.client import DeliveryReport, Producer


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    key_separator: Annotated[
        str, typer.Option(help="Text between key and value. Default: lines are values without keys.")
    ] = "",
    partition: Annotated[
        int | None, typer.Option(help="Write to this partition. Default: by key, as in Kafka.")
    ] = None,
    transactional_id: Annotated[str | None, typer.Option(help="Write in transactions with this id.")] = None,
    per_transaction: Annotated[
        int, typer.Option(help="Records in each transaction. 0: one transaction for all records.", min=0)
    ] = 0,
    idempotent: Annotated[
        bool, typer.Option("--idempotent/--no-idempotent", help="Whether retries may duplicate no record.")
    ] = True,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the producer. Repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Write each line of standard input as a record. With --json, print where each record was stored."""
    chosen = assignments(settings)
    options: dict[str, object] = {
        **reaching(bootstrap, "p", {}), "enable.idempotence": idempotent, **chosen}
    if transactional_id is not None:
        options["transactional.id"] = transactional_id
    written, transactions = finish(
        _produce(options, topic, key_separator.encode(), partition, per_transaction, as_json)
    )
    if not as_json:
        within = f" in {transactions} transactions" if transactional_id is not None else ""
        print(f"{written} records{within}")


async def _produce(
    options: Mapping[str, object],
    topic: str,
    separator: bytes,
    partition: int | None,
    per_transaction: int,
    as_json: bool,
) -> tuple[int, int]:
    """Returns the numbers of records and of transactions. A failure aborts the open transaction."""
    written = transactions = 0
    async with connected(Producer(options)) as producer:
        lines = _lines()
        while True:
            batch = _first(lines, per_transaction)
            reports: list[asyncio.Future[DeliveryReport]] = []
            count = 0
            async with producer.transaction() if "transactional.id" in options else contextlib.nullcontext():
                async for line in batch:
                    key, value = _split(line, separator)
                    report = await producer.send(topic, value, key, partition=partition)
                    count += 1
                    if as_json:
                        reports.append(report)
                await producer.flush()
            written += count
            transactions += count > 0
            for report in reports:
                output.print_json((await report)._asdict())
            if not count or not per_transaction:
                return written, transactions


async def _lines() -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        yield line.rstrip(b"\r\n")


async def _first(lines: AsyncIterator[bytes], count: int) -> AsyncIterator[bytes]:
    """At most `count` of the remaining lines. 0: all of them."""
    taken = 0
    while count == 0 or taken < count:
        try:
            line = await anext(lines)
        except StopAsyncIteration:
            return
        taken += 1
        yield line


def _split(line: bytes, separator: bytes) -> tuple[bytes | None, Any]:
    if not separator:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else (None, line)

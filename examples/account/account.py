"""An event-sourced account that several processes write at the same time. See README.md.

    echo 'd-1 deposit 100' | python account.py --topic accounts --account ann

Each line is a command: an id, `deposit` or `withdraw`, an amount. Each command becomes one event of the account:
{"id": "d-1", "kind": "deposited", "amount": 100, "balance": 100}, or "refused" if the balance does not suffice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hapax.client import ConditionFailedError, HapaxError, RetriableError, TopicPartition
from hapax.client.blocking import Consumer, Producer
from hapax.client.properties import read_properties


class Command(NamedTuple):
    id: str
    kind: str
    amount: int


class Account:
    """The account's state, as a function of its events."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.balance = 0
        self.handled: dict[str, str] = {}
        """What became of each command."""

    def apply(self, event: dict[str, object]) -> None:
        self.handled[str(event["id"])] = str(event["kind"])
        self.balance = int(str(event["balance"]))

    def decide(self, command: Command) -> dict[str, object]:
        """The command's event."""
        change = command.amount if command.kind == "deposit" else -command.amount
        if self.balance + change < 0:
            return {"id": command.id, "kind": "refused", "amount": command.amount, "balance": self.balance}
        kind = "deposited" if change >= 0 else "withdrawn"
        return {"id": command.id, "kind": kind, "amount": command.amount, "balance": self.balance + change}


def read_on(consumer: Consumer, partition: TopicPartition, account: Account, at_least: int = 0) -> int:
    """Applies the events that are new, up to the end of the partition. Returns the position reached."""
    end = max(at_least, consumer.end_offsets([partition])[partition])
    while consumer.position(partition) < end:
        for record in consumer.poll(200):
            if record.key == account.name:
                account.apply(json.loads(record.value or b""))
    return consumer.position(partition)


def handle(
    producer: Producer, consumer: Consumer, partition: TopicPartition, account: Account, command: Command
) -> str:
    """Returns what became of the command."""
    position = read_on(consumer, partition, account)
    while command.id not in account.handled:
        event = account.decide(command)
        try:
            # Only if the account has no event that this decision does not know.
            producer.append(
                partition.topic, [(account.name, json.dumps(event).encode())], partition=partition.partition,
                expected=position, scope=account.name)
            position = read_on(consumer, partition, account, position + 1)
        except ConditionFailedError as late:
            # Another process was faster. Decide again, by what the account is now.
            position = read_on(consumer, partition, account, late.position)
        except RetriableError as unknown:
            # The event may be there or not. It has the command's id, so reading on tells.
            print(f"{command.id}: asking again: {unknown}", file=sys.stderr)
            position = read_on(consumer, partition, account)
    return account.handled[command.id]


def parse(lines: Iterable[str]) -> list[Command]:
    """Raises ValueError."""
    found = []
    for line in lines:
        if line.strip():
            command_id, kind, amount = line.split()
            if kind not in ("deposit", "withdraw") or int(amount) < 0:
                raise ValueError(f"not a command: {line.strip()!r}")
            found.append(Command(command_id, kind, int(amount)))
    return found


def serve(options: argparse.Namespace) -> None:
    commands = parse(options.commands.read_text().splitlines() if options.commands else sys.stdin)
    settings: dict[str, object] = {"bootstrap.servers": options.bootstrap}
    if options.config:
        settings |= read_properties(options.config)
    reading = {**settings, "auto.offset.reset": "earliest"}
    account = Account(options.account.encode())
    with Producer(settings) as producer, Consumer(reading) as consumer:
        partition = consumer.partitions(options.topic)[0]
        consumer.assign([partition])
        for command in commands:
            print(command.id, handle(producer, consumer, partition, account, command), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--config", type=Path, metavar="FILE", help="client settings, such as security.protocol")
    parser.add_argument("--topic", required=True, help="the events, in its first partition")
    parser.add_argument("--account", required=True)
    parser.add_argument("--commands", type=Path, metavar="FILE", help="instead of standard input")
    try:
        serve(parser.parse_args())
    except (HapaxError, OSError, ValueError) as error:
        sys.exit(f"account: {error}")


if __name__ == "__main__":
    main()

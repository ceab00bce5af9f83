"""Keeps each customer's total in a database, from a topic of orders: each order counts once. See README.md.

    python to_database.py --topic orders --database sqlite:orders.db
    python to_database.py --topic orders --database postgresql://user@host/name
"""

from __future__ import annotations

import argparse
import json
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hapax.client import HapaxError, Record, TopicPartition
from hapax.client.blocking import Admin, Consumer
from hapax.client.properties import read_properties

FENCED = 3
"""Exit status: another process has taken over. Do not start this one again."""
LARGEST = 10**12
"""Largest amount. The database's integers have 64 bits."""
SCHEMA = (
    "create table if not exists readers (topic text primary key, topic_id text not null, epoch bigint not null)",
    "create table if not exists positions (topic text, part bigint, next_offset bigint, primary key (topic, part))",
    "create table if not exists totals (customer text primary key, orders bigint not null, amount bigint not null)",
    "create table if not exists refused (topic_id text, part bigint, at_offset bigint, reason text not null,"
    " primary key (topic_id, part, at_offset))",
)


class Stop(Exception):
    """The program cannot go on; the message says what to do."""


class Fenced(Stop):
    """Another process reads the topic for this database now."""


class Database:
    """A connection to SQLite or PostgreSQL. SQL is written once, with `?` for values."""

    def __init__(self, url: str) -> None:
        self._connection: Any
        if url.startswith("sqlite:"):
            self.errors: type[Exception] = sqlite3.Error
            self._begin, self._mark = "begin immediate", "?"
            self._connection = sqlite3.connect(url.removeprefix("sqlite:"), isolation_level=None, timeout=30)
        elif url.startswith(("postgresql:", "postgres:")):
            import psycopg

            self.errors = psycopg.Error
            self._begin, self._mark = "begin", "%s"
            self._connection = psycopg.connect(url, autocommit=True)
            # A process that stops within its transaction keeps its successor waiting, for no longer than this.
            if self.execute("show idle_in_transaction_session_timeout").fetchone() == ("0",):
                self.execute("set idle_in_transaction_session_timeout = '10s'")
        else:
            raise Stop(f"--database {url}: give sqlite:PATH or postgresql://USER@HOST/NAME")

    def execute(self, sql: str, *values: object) -> Any:
        return self._connection.execute(sql.replace("?", self._mark), values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute(self._begin)
        try:
            yield
        except BaseException:
            with suppress(self.errors):  # a connection that was lost has rolled back already
                self.execute("rollback")
            raise
        self.execute("commit")


def take_over(
    database: Database, topic: str, topic_id: str, *, new_topic: bool
) -> tuple[int, dict[TopicPartition, int]]:
    """From here on no former reader can write. Returns this reader's epoch, and where to go on reading."""
    with database.transaction():
        database.execute("insert into readers values (?, ?, 0) on conflict do nothing", topic, topic_id)
        epoch, known_id = database.execute(
            "update readers set epoch = epoch + 1 where topic = ? returning epoch, topic_id", topic).fetchone()
        if known_id != topic_id:
            if not new_topic:
                raise Stop(
                    f"topic {topic} has the id {topic_id}, and this database was filled from {known_id}: the topic was"
                    f" deleted and created again, or this is another cluster. To read the new topic from its beginning"
                    f" and add to the totals, give --new-topic.")
            database.execute("update readers set topic_id = ? where topic = ?", topic_id, topic)
            database.execute("delete from positions where topic = ?", topic)
        stored = database.execute("select part, next_offset from positions where topic = ?", topic).fetchall()
    return epoch, {TopicPartition(topic, part): next_offset for part, next_offset in stored}


def store(database: Database, topic: str, topic_id: str, epoch: int, records: Sequence[Record]) -> None:
    """Results and positions in one transaction. Raises Fenced, and writes nothing, if there is a later reader."""
    with database.transaction():
        # Also locks the row, so that a successor waits until this transaction has ended.
        mine = database.execute("update readers set epoch = epoch where topic = ? and epoch = ?", topic, epoch)
        if mine.rowcount != 1:
            raise Fenced(f"another process has taken over topic {topic}: its epoch is above {epoch}")
        for record in records:
            apply(database, topic_id, record)
        for part, next_offset in {record.partition: record.offset + 1 for record in records}.items():
            database.execute(
                "insert into positions values (?, ?, ?)"
                " on conflict (topic, part) do update set next_offset = excluded.next_offset",
                topic, part, next_offset)


def parse(order: bytes) -> tuple[str, int]:
    """Whatever the topic contains: an order that this does not refuse can be stored."""
    found = json.loads(order)
    customer, amount = str(found["customer"]), int(found["amount"])
    customer.encode()  # raises ValueError for half a surrogate pair
    if "\0" in customer or abs(amount) > LARGEST:
        raise ValueError(f"a customer with a zero character, or an amount above {LARGEST}")
    return customer, amount


def apply(database: Database, topic_id: str, record: Record) -> None:
    """The effect of one record. One that is no order is kept aside."""
    try:
        customer, amount = parse(record.value or b"")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        database.execute(
            "insert into refused values (?, ?, ?, ?)", topic_id, record.partition, record.offset, repr(error))
        return
    database.execute(
        "insert into totals values (?, 1, ?) on conflict (customer)"
        " do update set orders = totals.orders + 1, amount = totals.amount + excluded.amount",
        customer, amount)


def check_positions(
    positions: dict[TopicPartition, int], starts: dict[TopicPartition, int], ends: dict[TopicPartition, int], *,
    accept_loss: bool,
) -> dict[TopicPartition, int]:
    """Where to read on. Raises Stop if the log does not have what follows a stored position any more, or never had
    what came before it."""
    begin = {}
    for partition, first in starts.items():
        at = positions.get(partition, 0)
        where = f"{partition.topic}-{partition.partition}"
        if at > ends[partition]:
            raise Stop(
                f"{where} ends at offset {ends[partition]}, and this database has records up to {at}: the log was"
                f" restored or truncated. Compare the two before you set the table positions.")
        if at < first and partition in positions and not accept_loss:
            raise Stop(
                f"{where} begins at offset {first}: retention has removed {at} to {first - 1}, which this database"
                f" has not read. To go on without them, give --accept-loss.")
        begin[partition] = max(at, first)
    return begin


def topic_id_of(admin: Admin, topic: str) -> str:
    for found in admin.list_topics():
        if found.name == topic:
            return found.topic_id
    raise Stop(f"there is no topic {topic}: create it first, for example with `hapax topic create {topic}`")


def read(options: argparse.Namespace, database: Database, stopping: list[int]) -> None:
    topic = options.topic
    settings: dict[str, object] = {"bootstrap.servers": options.bootstrap}
    if options.config:
        settings |= read_properties(options.config)
    # Under `none`, the consumer raises where it would otherwise choose another position by itself.
    reading = {**settings, "isolation.level": "read_committed", "auto.offset.reset": "none"}
    for statement in SCHEMA:
        database.execute(statement)
    with Admin(settings) as admin, Consumer(reading) as consumer:
        topic_id = topic_id_of(admin, topic)
        epoch, positions = take_over(database, topic, topic_id, new_topic=options.new_topic)
        partitions = consumer.partitions(topic)
        ends = consumer.end_offsets(partitions)
        begin = check_positions(
            positions, consumer.beginning_offsets(partitions), ends, accept_loss=options.accept_loss)
        consumer.assign(partitions)
        for partition, offset in begin.items():
            consumer.seek(partition, offset)
        print(f"reading {topic} as reader {epoch}", flush=True)
        checked = False
        while not stopping:
            if options.until_end and all(consumer.position(each) >= ends[each] for each in partitions):
                break
            records = consumer.poll(500, max_records=options.batch)
            if not records:
                continue
            if not checked:
                # The consumer has found the topic between two looks at its id. From here on it notices itself.
                if topic_id_of(admin, topic) != topic_id:
                    raise Stop(f"topic {topic} was deleted and created again meanwhile: start again")
                checked = True
            store(database, topic, topic_id, epoch, records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--config", type=Path, metavar="FILE", help="client settings, such as security.protocol")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--database", required=True, help="sqlite:PATH or postgresql://USER@HOST/NAME")
    parser.add_argument("--batch", type=int, default=500, help="most records of one database transaction")
    parser.add_argument("--until-end", action="store_true", help="stop at what is the end of the topic at the start")
    parser.add_argument("--new-topic", action="store_true", help="the topic was created again: read it")
    parser.add_argument("--accept-loss", action="store_true", help="go on although retention has removed records")
    options = parser.parse_args()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    database: Database | None = None
    try:
        database = Database(options.database)
        read(options, database, stopping)
    except Fenced as error:
        print(error, file=sys.stderr)
        sys.exit(FENCED)
    except (Stop, HapaxError, OSError) as error:
        sys.exit(f"to_database: {error}")
    except Exception as error:
        if database is not None and not isinstance(error, database.errors):
            raise
        sys.exit(f"to_database: the database says: {error}")


if __name__ == "__main__":
    main()

"""A service that keeps balances: each request takes effect once and is answered once. See README.md.

    python inbox.py --requests requests --answers answers --database balances.db

A request is {"id": "r-1", "account": "ann", "amount": 10}, its answer {"id": "r-1", "account": "ann", "balance": 10}.
"""

from __future__ import annotations

import argparse
import json
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

from hapax.client import AbortableError, FencedError, HapaxError, Record
from hapax.client.blocking import Consumer, Producer
from hapax.client.properties import read_properties

FENCED = 3
"""Exit status: another process has taken over. Do not start this one again."""
LARGEST = 10**12
"""Largest amount. The database's integers have 64 bits."""
SCHEMA = (
    "create table if not exists balances (account text primary key, balance integer not null)",
    # One row for each message that took effect: where it was read, and what is answered.
    "create table if not exists inbox (message_id text primary key, place text not null, answer text not null,"
    " handled_at text not null default current_timestamp)",
)


def connect(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, timeout=30)
    # A power cut must not take back what was committed. SQLite's default does not sync the removal of its journal.
    database.execute("pragma synchronous = extra")
    with database:
        database.execute("begin immediate")
        for statement in SCHEMA:
            database.execute(statement)
    return database


def handle(database: sqlite3.Connection, records: Sequence[Record]) -> list[str | None]:
    """Effects, inbox rows and answers in one transaction. Returns an answer for each record; None: none is due."""
    with database:
        database.execute("begin immediate")
        return [handle_one(database, record) for record in records]


def parse(request: bytes) -> tuple[str, str, int]:
    """Whatever the topic contains: a request that this does not refuse can be stored."""
    found = json.loads(request)
    message_id, account, amount = str(found["id"]), str(found["account"]), int(found["amount"])
    (message_id + account).encode()  # raises ValueError for half a surrogate pair
    if abs(amount) > LARGEST:
        raise ValueError(f"an amount above {LARGEST}")
    return message_id, account, amount


def handle_one(database: sqlite3.Connection, record: Record) -> str | None:
    place = f"{record.topic}-{record.partition}@{record.offset}"
    try:
        message_id, account, amount = parse(record.value or b"")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        return json.dumps({"error": f"not a request: {error!r}", "place": place})
    known = database.execute("select place, answer from inbox where message_id = ?", (message_id,)).fetchone()
    if known is not None:
        first_place, answer = known
        # The same record again: its answer was in a transaction that was aborted. Another record with the same id: its
        # sender sent it twice, and the first one is answered.
        return str(answer) if first_place == place else None
    ((balance,),) = database.execute(
        "insert into balances values (?, ?) on conflict (account)"
        " do update set balance = balance + excluded.balance returning balance", (account, amount)).fetchall()
    answer = json.dumps({"id": message_id, "account": account, "balance": balance})
    database.execute(
        "insert into inbox (message_id, place, answer) values (?, ?, ?)", (message_id, place, answer))
    return answer


def serve(options: argparse.Namespace, stopping: list[int]) -> None:
    settings: dict[str, object] = {"bootstrap.servers": options.bootstrap}
    if options.config:
        settings |= read_properties(options.config)
    reading = {
        **settings, "group.id": options.name, "enable.auto.commit": False, "auto.offset.reset": "earliest",
        "isolation.level": "read_committed"}
    database = connect(options.database)
    with Producer({**settings, "transactional.id": options.name}) as producer, Consumer(reading) as consumer:
        # The producer's start has fenced a former process and ended its open transaction.
        partitions = consumer.partitions(options.requests)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        print(f"serving {options.requests}", flush=True)
        while not stopping:
            if options.until_end and all(consumer.position(each) >= ends[each] for each in partitions):
                break
            records = consumer.poll(500, max_records=options.batch)
            if not records:
                continue
            answers = handle(database, records)
            # From here on the effects are there. If the process dies now, the records are read again, and handle()
            # returns the same answers from the inbox.
            producer.begin()
            try:
                for record, answer in zip(records, answers, strict=True):
                    if answer is not None:
                        producer.send(options.answers, answer.encode(), key=record.key)
                producer.send_offsets({each: consumer.position(each) for each in partitions}, group=options.name)
                producer.commit()
            except AbortableError:
                producer.abort()  # raises FencedError if the cause is that another process has taken over
                raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--config", type=Path, metavar="FILE", help="client settings, such as security.protocol")
    parser.add_argument("--requests", required=True, metavar="TOPIC")
    parser.add_argument("--answers", required=True, metavar="TOPIC")
    parser.add_argument("--database", required=True, metavar="FILE", help="a SQLite database")
    parser.add_argument("--name", default="inbox", help="group and transactional id")
    parser.add_argument("--batch", type=int, default=500, help="most requests of one transaction")
    parser.add_argument("--until-end", action="store_true", help="end at what is the end of the requests at the start")
    options = parser.parse_args()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    try:
        serve(options, stopping)
    except FencedError as error:
        print(f"another process has taken over: {error}", file=sys.stderr)
        sys.exit(FENCED)
    except (HapaxError, OSError) as error:
        sys.exit(f"inbox: {error}")
    except sqlite3.Error as error:
        sys.exit(f"inbox: the database says: {error}")


if __name__ == "__main__":
    main()

"""Books orders in Hapax and in a database in one atomic step: two-phase commit. See README.md.

    python two_phase.py --topic bookings --orders orders.jsonl --log bookings.db
    python two_phase.py --topic bookings --orders orders.jsonl --log bookings.db --database postgresql://user@host/name
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hapax.client import AbortableError, FencedError, HapaxError, PreparedTransaction
from hapax.client.blocking import Producer
from hapax.client.properties import read_properties

FENCED = 3
"""Exit status: another run has taken over. Do not start this one again."""


class Stop(Exception):
    """The program cannot go on; the message says what to do."""


class Fenced(Stop):
    """Another run works with this log now."""


class Order(NamedTuple):
    order_id: str
    text: str


class Log:
    """The coordinator's log, in SQLite. An order is booked when it is in `decisions`, and not before."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        # A power cut must not take back a decision. SQLite's default does not sync the removal of its journal.
        self._database.execute("pragma synchronous = extra")
        for statement in (
            "create table if not exists holder (only_row integer primary key check (only_row = 1), run text)",
            "create table if not exists decisions (order_id text primary key, name text unique, prepared text unique)",
            "create table if not exists bookings (order_id text primary key, text text)",
            "insert into holder values (1, '') on conflict do nothing",
        ):
            self._database.execute(statement)

    def take_over(self, run: str) -> None:
        """From here on a former run can decide nothing."""
        self._database.execute("update holder set run = ?", (run,))

    def decide(self, run: str, name: str, order: Order, prepared: PreparedTransaction, *, book: bool) -> None:
        """The one moment at which the order becomes booked. `book`: also books it here."""
        with self._database:
            self._database.execute("begin immediate")
            if self._database.execute("select run from holder").fetchone() != (run,):
                raise Fenced("another run has taken over this log")
            self._database.execute("insert into decisions values (?, ?, ?)", (order.order_id, name, str(prepared)))
            if book:
                self._database.execute("insert into bookings values (?, ?)", order)

    def knows(self, column: str, value: object) -> bool:
        sql = f"select 1 from decisions where {column} = ?"
        return self._database.execute(sql, (str(value),)).fetchone() is not None


class Other(Protocol):
    """The other side of the commit."""

    def prepare(self, name: str, order: Order) -> None: ...
    def commit(self, name: str) -> None: ...
    def recover(self, log: Log) -> None:
        """Ends what former runs have left prepared."""


class SameDatabase:
    """The bookings are in the log's own database. `Log.decide` writes them, so nothing has to be prepared."""

    def prepare(self, name: str, order: Order) -> None: ...
    def commit(self, name: str) -> None: ...
    def recover(self, log: Log) -> None: ...


class PostgreSQL:
    """The bookings in PostgreSQL. PREPARE TRANSACTION keeps each under a name, by which any session can commit it."""

    def __init__(self, url: str, job: str) -> None:
        import psycopg

        self._job = job
        self._connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        if self._connection.execute("show max_prepared_transactions").fetchone() == ("0",):
            raise Stop("this PostgreSQL has max_prepared_transactions = 0: set it to 10 or more and restart it")
        self._connection.execute(
            "create table if not exists bookings (order_id text primary key, text text not null)")
        # A run that was fenced may have prepared the same order since: do not wait for it forever.
        self._connection.execute("set lock_timeout = '5s'")
        self._connection.autocommit = False

    def prepare(self, name: str, order: Order) -> None:
        self._connection.tpc_begin(self._connection.xid(1, self._job, name))
        self._connection.execute("insert into bookings values (%s, %s)", order)
        self._connection.tpc_prepare()

    def commit(self, name: str) -> None:
        self._connection.tpc_commit()

    def recover(self, log: Log) -> None:
        for each in self._connection.tpc_recover():
            if each.gtrid != self._job:
                continue  # another program's
            if log.knows("name", each.bqual):
                self._connection.tpc_commit(each)
            else:
                self._connection.tpc_rollback(each)


def run(options: argparse.Namespace) -> None:
    orders = read_orders(options.orders)
    log = Log(options.log)
    other: Other = PostgreSQL(options.database, options.id) if options.database else SameDatabase()
    me = uuid.uuid4().hex
    settings: dict[str, object] = {"bootstrap.servers": options.bootstrap}
    if options.config:
        settings |= read_properties(options.config)
    settings |= {"transactional.id": options.id, "transaction.two.phase.commit.enable": True}
    with Producer(settings) as producer:
        # The producer's start has fenced former runs in Hapax, and kept what is prepared. Now the log fences them, too:
        # what it does not know from here on, it will never know.
        log.take_over(me)
        left = producer.prepared
        decided = left if left is not None and log.knows("prepared", left) else None
        other.recover(log)
        ended = producer.complete(decided)
        if ended is not None:
            print(f"{left}, which a former run prepared, is {'committed' if ended else 'aborted'}", flush=True)
        for order in orders:
            if not log.knows("order_id", order.order_id):
                book(options.topic, order, producer, other, log, me)


def book(topic: str, order: Order, producer: Producer, other: Other, log: Log, me: str) -> None:
    name = f"{order.order_id}/{me}"
    producer.begin()
    producer.send(topic, order.text.encode(), key=order.order_id.encode())
    # First phase: both sides promise.
    try:
        prepared = producer.prepare()
    except AbortableError:
        producer.abort()  # raises FencedError if the cause is that another run has taken over
        raise
    other.prepare(name, order)
    # The decision. Before it, every recovery aborts both; after it, every recovery commits both.
    log.decide(me, name, order, prepared, book=isinstance(other, SameDatabase))
    # Second phase: both sides keep their promise.
    other.commit(name)
    producer.complete(prepared)


def read_orders(path: Path) -> list[Order]:
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found.append(Order(str(json.loads(line)["id"]), line))
        except (ValueError, KeyError, TypeError):
            raise Stop(f'{path}, line {number} is no order: write JSON with an id, such as {{"id": "a-1"}}') from None
    if len({each.order_id for each in found}) < len(found):
        raise Stop(f"{path}: two orders have the same id")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--config", type=Path, metavar="FILE", help="client settings, such as security.protocol")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--orders", type=Path, required=True, metavar="FILE", help="an order in each line, as JSON")
    parser.add_argument("--log", required=True, metavar="FILE", help="the coordinator's log, a SQLite database")
    parser.add_argument("--database", metavar="URL", help="postgresql://USER@HOST/NAME; default: that of --log")
    parser.add_argument("--id", default="bookings", help="transactional id, and mark of transactions in PostgreSQL")
    options = parser.parse_args()
    try:
        run(options)
    except (Fenced, FencedError) as error:
        print(error, file=sys.stderr)
        sys.exit(FENCED)
    except (Stop, HapaxError, OSError, sqlite3.Error) as error:
        sys.exit(f"two_phase: {error}")
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "psycopg":
            raise
        sys.exit(f"two_phase: PostgreSQL says: {error}")


if __name__ == "__main__":
    main()

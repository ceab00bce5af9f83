"""A service that takes orders: the order and the message about it are stored in one transaction. See README.md.

    python service.py --database shop.db ann=10 bob=20
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import uuid

SCHEMA = (
    "create table if not exists orders (order_id text primary key, customer text not null, amount integer not null)",
    # `part` and `position` are the relay's: the message is number `position` (from 0) of partition `part`.
    "create table if not exists outbox (id integer primary key autoincrement, key text not null, value text not null,"
    " part integer, position integer, unique (part, position))",
    # How many messages of a partition have a number, and how many of them are known to be published.
    "create table if not exists outbox_partitions (part integer primary key, numbered integer not null,"
    " published integer not null)",
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


def take_order(database: sqlite3.Connection, customer: str, amount: int) -> str:
    """Both rows, or none."""
    order_id = uuid.uuid4().hex
    message = json.dumps({"order": order_id, "customer": customer, "amount": amount})
    with database:
        database.execute("begin immediate")
        database.execute("insert into orders values (?, ?, ?)", (order_id, customer, amount))
        database.execute("insert into outbox (key, value) values (?, ?)", (customer, message))
    return order_id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--database", required=True, metavar="FILE", help="a SQLite database")
    parser.add_argument("orders", nargs="+", metavar="CUSTOMER=AMOUNT")
    options = parser.parse_args()
    try:
        wanted = [(customer, int(amount)) for customer, _, amount in (each.partition("=") for each in options.orders)]
    except ValueError:
        sys.exit("service: write an order as CUSTOMER=AMOUNT, such as ann=10")
    try:
        database = connect(options.database)
        for customer, amount in wanted:
            print(take_order(database, customer, amount))
    except sqlite3.Error as error:
        sys.exit(f"service: the database says: {error}")


if __name__ == "__main__":
    main()

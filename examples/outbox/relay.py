"""Publishes the messages of an outbox, each once and in order. See README.md.

    python relay.py --database shop.db --topic orders
"""

from __future__ import annotations

import argparse
import signal
import socket
import sqlite3
import sys
import time
from pathlib import Path

from service import connect

from hapax.client import FencedError, HapaxError, Lease, TopicPartition
from hapax.client.blocking import Consumer, Leases, Producer
from hapax.client.partitioner import partition_of
from hapax.client.properties import read_properties

FENCED = 3
"""Exit status: another relay has taken over. Do not start this one again."""
LEASE_MS = 60_000
BATCH = 500
"""Most messages between two looks at the log's answers."""


class Stop(Exception):
    """The relay cannot go on; the message says what to do."""


def number_messages(database: sqlite3.Connection, partitions: int) -> None:
    """Gives each new message its partition and its place there, for good. A restarted relay finds the same numbers, so
    number n of a partition is the same message always."""
    with database:
        database.execute("begin immediate")
        for identity, key in database.execute("select id, key from outbox where part is null order by id").fetchall():
            part = partition_of(key.encode(), partitions)
            ((position,),) = database.execute(
                "insert into outbox_partitions values (?, 1, 0)"
                " on conflict (part) do update set numbered = numbered + 1 returning numbered - 1", (part,)).fetchall()
            database.execute("update outbox set part = ?, position = ? where id = ?", (part, position, identity))


def check_lease(database: sqlite3.Connection, lease: Lease) -> None:
    """Raises Stop if the log holds fewer messages than were published, or others than these."""
    for partition, count in lease.progress.items():
        row = database.execute(
            "select numbered, published from outbox_partitions where part = ?", (partition.partition,)).fetchone()
        numbered, published = row or (0, 0)
        where = f"{partition.topic}-{partition.partition}"
        if count < published:
            raise Stop(
                f"{where} holds {count} messages of lease {lease.name}, and {published} were published: the topic was"
                f" created again, or nobody held the lease for a month. Publish to a new topic under a new lease name"
                f" after you have set numbered and published in outbox_partitions to what is right there.")
        if count > numbered:
            raise Stop(
                f"{where} holds {count} messages of lease {lease.name}, and this database knows {numbered}: it was"
                f" restored from an older backup, or another outbox uses the lease. Give each outbox its own --lease.")


def publish(database: sqlite3.Connection, producer: Producer, next_positions: dict[TopicPartition, int]) -> int:
    """Sends the next messages and waits until they are stored. Returns how many. Raises FencedError."""
    count = 0
    for partition, position in next_positions.items():
        rows = database.execute(
            "select key, value from outbox where part = ? and position >= ? order by position limit ?",
            (partition.partition, position, BATCH)).fetchall()
        for key, value in rows:
            producer.send(partition.topic, value.encode(), key=key.encode(), partition=partition.partition)
        next_positions[partition] += len(rows)
        count += len(rows)
    producer.flush()
    return count


def forget_published(database: sqlite3.Connection, next_positions: dict[TopicPartition, int]) -> None:
    with database:
        database.execute("begin immediate")
        for partition, position in next_positions.items():
            database.execute(
                "delete from outbox where part = ? and position < ?", (partition.partition, position))
            database.execute(
                "update outbox_partitions set published = max(published, ?) where part = ?",
                (position, partition.partition))


def relay(options: argparse.Namespace, stopping: list[int]) -> None:
    settings: dict[str, object] = {"bootstrap.servers": options.bootstrap}
    if options.config:
        settings |= read_properties(options.config)
    database = connect(options.database)
    with Consumer(settings) as asking:
        partitions = asking.partitions(options.topic)
    with Leases(settings) as leases:
        # From here on the log refuses every record of a former relay, and `progress` counts all that it has accepted.
        lease = leases.take(options.lease, partitions, expire_ms=LEASE_MS, holder=socket.gethostname())
        check_lease(database, lease)
        next_positions = dict(lease.progress)
        forget_published(database, next_positions)
        renewed = time.monotonic()
        with Producer(settings, start_from=lease.start_from()) as producer:
            print(f"relay {lease.generation} publishes to {options.topic}", flush=True)
            while not stopping:
                number_messages(database, len(partitions))
                if publish(database, producer, next_positions):
                    forget_published(database, next_positions)
                elif options.until_empty:
                    break
                else:
                    time.sleep(options.pause_ms / 1000)
                if time.monotonic() - renewed > LEASE_MS / 3000:
                    lease = leases.renew(lease, LEASE_MS)
                    renewed = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--config", type=Path, metavar="FILE", help="client settings, such as security.protocol")
    parser.add_argument("--database", required=True, metavar="FILE", help="the service's SQLite database")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--lease", default="outbox", help="name of the lease: one for each outbox")
    parser.add_argument("--pause-ms", type=int, default=200, help="between two looks into an empty outbox")
    parser.add_argument("--until-empty", action="store_true", help="end when the outbox is empty")
    options = parser.parse_args()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    try:
        relay(options, stopping)
    except FencedError as error:
        print(f"another relay has taken over: {error}", file=sys.stderr)
        sys.exit(FENCED)
    except (Stop, HapaxError, OSError) as error:
        sys.exit(f"relay: {error}")
    except sqlite3.Error as error:
        sys.exit(f"relay: the database says: {error}")


if __name__ == "__main__":
    main()

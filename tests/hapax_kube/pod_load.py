"""Runs in a pod: commits transactions one after another until /tmp/stop exists, then prints their outcomes as JSON.

Each transaction writes its number to two partitions, commits it as the group's offset, and has it as commit token. A
transaction that failed is repeated with the same token by a new producer, whatever the outcome of the first attempt, so
each number must be in the log once. The script only needs Hapax's client:
`kubectl exec -i POD -- python3 - TOPIC BOOTSTRAP < this`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hapax.client import CommitToken, HapaxError, NewTopic, OffsetAndMetadata, TopicPartition
from hapax.client.blocking import Admin, Consumer, Producer

STOP = Path("/tmp/stop")


def run(topic: str, bootstrap: str) -> dict[str, object]:
    common = {"bootstrap.servers": bootstrap}
    with Admin(common) as admin:
        admin.create_topics([NewTopic(topic, 2, 3, {"min.insync.replicas": "2"})])
    number, repeated, longest = 0, [], 0.0
    producer: Producer | None = None
    while not STOP.exists():
        began = time.monotonic()
        while True:
            try:
                producer = producer or Producer({**common, "transactional.id": topic}).start()
                attempt(producer, topic, number)
                break
            except HapaxError as error:
                repeated.append(f"{number}: {error}")
                if producer is not None:
                    producer.close()
                producer = None
        longest = max(longest, time.monotonic() - began)
        number += 1
        if number % 50 == 1:
            print(f"{number} committed", file=sys.stderr, flush=True)
    if producer is not None:
        producer.close()
    found, position = contents(common, topic)
    return {"committed": number, "repeated": repeated, "longest_s": longest, "position": position,
            "wrong": [p for p, numbers in found.items() if numbers != list(range(number))],
            "lost": {p: sorted(set(range(number)) - set(numbers))[:20] for p, numbers in found.items()},
            "doubled": {p: sorted({n for n in numbers if numbers.count(n) > 1})[:20]
                        for p, numbers in found.items() if len(set(numbers)) != len(numbers)}}  # fmt: skip


def attempt(producer: Producer, topic: str, number: int) -> None:
    producer.begin()
    for partition in (0, 1):
        producer.send(topic, b"%d" % number, partition=partition)
    producer.send_offsets({TopicPartition(topic, 0): OffsetAndMetadata(number)}, topic)
    producer.commit(CommitToken(topic, number, records=2))


def contents(common: dict[str, str], topic: str) -> tuple[dict[int, list[int]], int]:
    """The committed numbers of each partition, in the order of the log, and the group's offset."""
    found: dict[int, list[int]] = {0: [], 1: []}
    settings = {**common, "group.id": topic, "isolation.level": "read_committed", "enable.auto.commit": "false",
                "auto.offset.reset": "earliest"}  # fmt: skip
    with Consumer(settings) as consumer:
        partitions = consumer.partitions(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        for each in partitions:
            consumer.seek(each, 0)
        while any(consumer.position(p) < ends[p] for p in partitions):
            for record in consumer.poll(500):
                found[record.partition].append(int(record.value or b""))
        where = TopicPartition(topic, 0)
        committed = consumer.committed([where])[where]
        return found, -1 if committed is None else committed.offset


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2])))

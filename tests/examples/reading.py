"""What a reader of committed records finds in a topic."""

from __future__ import annotations

from hapax.client import Record
from hapax.client.blocking import Consumer
from integration.waiting import nothing_is_open, wait_until


def committed(bootstrap: str, topic: str) -> list[Record]:
    """All records, in the order of partition and offset, once no transaction is open in the topic."""
    wait_until(lambda: nothing_is_open(bootstrap, topic), f"end of the transactions in {topic}")
    settings = {
        "bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "isolation.level": "read_committed",
    }
    with Consumer(settings) as consumer:
        partitions = consumer.partitions(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        found: list[Record] = []
        while any(consumer.position(each) < end for each, end in ends.items()):
            found += consumer.poll(100)
    return sorted(found, key=lambda record: (record.partition, record.offset))

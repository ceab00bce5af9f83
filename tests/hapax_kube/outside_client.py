"""`python -m hapax_kube.outside_client BOOTSTRAP SETTINGS TOPIC`: writes to each partition and reads it back.

By librdkafka, in a transaction and a group, so that it reaches brokers and coordinators. Prints what it has read and
the nodes' addresses that it was told.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic


def main(bootstrap: str, settings: str, topic: str) -> None:
    given = {**json.loads(settings), "bootstrap.servers": bootstrap}
    admin = AdminClient(given)
    admin.create_topics([NewTopic(topic, 4)])[topic].result(30)
    producer = Producer({**given, "transactional.id": "outside"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(4):
        producer.produce(topic, str(partition).encode(), partition=partition)
    producer.commit_transaction(60)
    consumer = Consumer({**given, "group.id": "outside", "auto.offset.reset": "earliest",
                         "isolation.level": "read_committed"})
    consumer.subscribe([topic])
    seen: set[bytes] = set()
    for _ in range(120):
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            seen.add(message.value())
        if len(seen) == 4:
            break
    consumer.commit(asynchronous=False)
    consumer.close()
    nodes = admin.list_topics(timeout=30).brokers.values()
    json.dump({"seen": sorted(each.decode() for each in seen),
               "nodes": sorted(f"{each.host}:{each.port}" for each in nodes)}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Run by `helm test`: a committed transaction is read exactly once, and an aborted one is not read."""

import os
import uuid
from pathlib import Path

from hapax.client import NewTopic
from hapax.client.blocking import Admin, Consumer, Producer
from hapax.client.properties import read_properties

profile = os.environ.get("COMMAND_CONFIG")
bootstrap = {
    **(read_properties(Path(profile)) if profile else {}), "bootstrap.servers": os.environ["BOOTSTRAP"]}
topic = f"helm-test-{uuid.uuid4().hex[:8]}"

with Admin(bootstrap) as admin:
    admin.create_topics([NewTopic(topic, 3)])
    try:
        with Producer({**bootstrap, "transactional.id": topic}) as producer:
            with producer.transaction():
                for number in range(100):
                    producer.send(topic, b"kept-%d" % number)
            producer.begin()
            producer.send(topic, b"aborted")
            producer.flush()
            producer.abort()
            with producer.transaction():
                producer.send(topic, b"last")
        seen = []
        with Consumer({**bootstrap, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign(consumer.partitions(topic))
            while b"last" not in seen or len(seen) < 101:
                seen += [record.value for record in consumer.poll()]
        assert sorted(seen) == sorted([b"kept-%d" % number for number in range(100)] + [b"last"]), seen
        print(f"101 records of two committed transactions were read once; none of the aborted one ({topic})")
    finally:
        admin.delete_topics([topic])

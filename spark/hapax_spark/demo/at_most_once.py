"""The same work with at-most-once settings: commit the position first, then process; produce with acks=0.

`--pause-after N` stops the program forever between the commit of a position after record N and the processing of the
records before it. At this moment these settings lose records, and the demo kills the program then.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from hapax.client import Consumer, Producer, TopicPartition


async def process(args: argparse.Namespace) -> int:
    """Returns the number of records processed."""
    settings = {"bootstrap.servers": args.bootstrap}
    reading = {**settings, "group.id": args.group, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    writing = {**settings, "acks": "0", "enable.idempotence": "false", "linger.ms": 1}
    done = 0
    async with Consumer(reading) as consumer, Producer(writing) as producer:
        partitions: list[TopicPartition] = await consumer.partitions(args.input)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while True:
            records = await consumer.poll(timeout_ms=200, max_records=500)
            if not records:
                if all([await consumer.position(p) >= end for p, end in ends.items()]):
                    break
                continue
            await consumer.commit()
            if args.pause_after is not None and done + len(records) > args.pause_after:
                args.pause_file.touch()
                await asyncio.Event().wait()
            for record in records:
                await producer.send(args.output, record.value, record.key, partition=record.partition)
            done += len(records)
        await producer.flush()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--group", default="at-most-once")
    parser.add_argument("--pause-after", type=int)
    parser.add_argument("--pause-file", type=Path)
    print(f"processed {asyncio.run(process(parser.parse_args()))} records")


if __name__ == "__main__":
    main()

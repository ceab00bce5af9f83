"""`hapax topic ...`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    administer,
    assignments,
    client_options,
    find_topic,
)
from hapax.client import Admin, Consumer, NewTopic, TopicInfo
from hapax.core.types import TopicPartition

app = typer.Typer(help="Create, list, describe, extend and delete topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
_SUMMARY = ("topic", "partitions", "topic_id")


@app.command()
def create(
    name: Name,
    partitions: Annotated[int, typer.Option(help="-1: the cluster's num.partitions.", min=-1)] = -1,
    replication_factor: Annotated[
        int, typer.Option(help="Replicas of each partition; -1: the cluster's default.replication.factor.", min=-1)
    ] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="Such as retention.ms=1000; repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create a topic; returns once its leaders accept writes."""
    wanted = NewTopic(name, partitions, replication_factor, assignments(config))

    async def work(admin: Admin) -> TopicInfo:
        await admin.create_topics([wanted])
        return await find_topic(admin, name)

    output.print_records(as_json, "", [_summary(administer(bootstrap, work))], _SUMMARY)


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the topics."""
    topics = administer(bootstrap, lambda admin: admin.list_topics())
    shown = [_summary(each) for each in topics if internal or not each.name.startswith("__")]
    output.print_records(as_json, "", shown, _SUMMARY)


@app.command()
def describe(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a topic's partitions: leaders, replicas, those in sync, and the offsets that readers see."""

    async def work(admin: Admin) -> dict[str, Any]:
        topic = await find_topic(admin, name)
        first, stable, high = await _offsets(bootstrap, topic)
        return _summary(topic) | {
            "partitions": [
                {
                    "partition": each.partition,
                    "leader": each.leader,
                    "leader_epoch": each.leader_epoch,
                    "replicas": list(each.replicas),
                    "isr": list(each.isr),
                    "first": first[each.partition],
                    "last_stable": stable[each.partition],
                    "high_watermark": high[each.partition],
                }
                for each in topic.partitions
            ]
        }

    topic = administer(bootstrap, work)
    if as_json:
        output.print_json(topic)
        return
    columns = ("partition", "leader", "leader_epoch", "replicas", "isr", "first", "last_stable", "high_watermark")
    shown = [each | {name: output.joined(each[name]) for name in ("replicas", "isr")} for each in topic["partitions"]]
    output.print_records(False, f"{topic['topic']} {topic['topic_id']}", shown, columns)


@app.command()
def delete(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete a topic and all its records."""
    administer(bootstrap, lambda admin: admin.delete_topics([name]))


@app.command()
def extend(
    name: Name,
    partitions: Annotated[int, typer.Option(help="The number it shall have.", min=1)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Give a topic more partitions."""
    administer(bootstrap, lambda admin: admin.create_partitions({name: partitions}))


def _summary(topic: TopicInfo) -> dict[str, Any]:
    return {"topic": topic.name, "topic_id": topic.topic_id, "partitions": len(topic.partitions)}


async def _offsets(bootstrap: str, topic: TopicInfo) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """By partition: first offset, last stable offset, high watermark."""
    partitions = [(topic.name, each.partition) for each in topic.partitions]

    def by_index(offsets: dict[TopicPartition, int]) -> dict[int, int]:
        return {partition.partition: offset for partition, offset in offsets.items()}

    options = client_options(bootstrap)
    async with (
        Consumer(options | {"isolation.level": "read_committed"}) as committed,
        Consumer(options | {"isolation.level": "read_uncommitted"}) as uncommitted,
    ):
        return (
            by_index(await uncommitted.beginning_offsets(partitions)),
            by_index(await committed.end_offsets(partitions)),
            by_index(await uncommitted.end_offsets(partitions)),
        )

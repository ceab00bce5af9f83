"""`hapax topic ...`: creates, shows, configures, extends and deletes topics."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import (
    DEFAULT_BOOTSTRAP,
    ISOLATION_HELP,
    AsJson,
    Bootstrap,
    administer,
    assignments,
    find_partitions,
    print_config,
    reads_committed,
)
from hapax.client import Admin, ConfigValue, NewTopic, TopicInfo
from hapax.client.offsets import EARLIEST, LATEST
from hapax.client.preview import Bounds, preview
from hapax.core.types import PartitionIndex, TopicPartition

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
_SUMMARY = ("topic", "partitions", "topic_id")


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int, typer.Option(help="Number of partitions. -1: the cluster's num.partitions.", min=-1)
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option(help="Replicas of each partition. -1: the cluster's default.replication.factor.", min=-1)
    ] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="Such as retention.ms=1000. Repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create a topic. Returns once its partitions have leaders."""
    wanted = NewTopic(name, partitions, replication_factor, assignments(config))

    async def create_topic(admin: Admin) -> TopicInfo:
        await admin.create_topics([wanted])
        return await admin.describe_topic(name)

    output.print_records(as_json, "", [_summary(administer(bootstrap, create_topic))], _SUMMARY)


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also list internal topics.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the topics."""
    topics = administer(bootstrap, lambda admin: admin.list_topics())
    shown = [_summary(each) for each in topics if internal or not each.name.startswith("__")]
    output.print_records(as_json, "", shown, _SUMMARY)


@app.command()
def describe(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a topic's partitions: leaders, replicas, in-sync replicas, and the offsets that readers see."""

    async def describe_offsets(admin: Admin) -> dict[str, Any]:
        topic = await admin.describe_topic(name)
        partitions = {each.partition: TopicPartition(name, PartitionIndex(each.partition)) for each in topic.partitions}
        offsets = await admin.partition_offsets(partitions.values())
        return _summary(topic) | {
            "partitions": [
                {
                    "partition": each.partition,
                    "leader": each.leader,
                    "leader_epoch": each.leader_epoch,
                    "replicas": list(each.replicas),
                    "isr": list(each.isr),
                    **offsets[partitions[each.partition]]._asdict(),
                }
                for each in topic.partitions
            ]
        }

    topic = administer(bootstrap, describe_offsets)
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
    partitions: Annotated[int, typer.Option(help="The new number of partitions.", min=1)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Give a topic more partitions."""

    async def raise_number(admin: Admin) -> None:
        await admin.describe_topic(name)
        await admin.create_partitions({name: partitions})

    administer(bootstrap, raise_number)


@app.command()
def configure(
    name: Name,
    config: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Such as retention.ms=1000. Repeatable.")
    ] = None,
    reset: Annotated[
        list[str] | None, typer.Option("--reset", metavar="NAME", help="Reset to the cluster's default. Repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set and reset values of a topic's configuration. The other values stay."""
    chosen = assignments(config)

    async def change(admin: Admin) -> None:
        await admin.describe_topic(name)
        await admin.change_topic(name, set_configs=chosen, reset_configs=reset or ())

    administer(bootstrap, change)


@app.command()
def config(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a topic's configuration and the source of each value: the topic, its brokers' settings, or the default."""

    async def topic_config(admin: Admin) -> dict[str, ConfigValue]:
        await admin.describe_topic(name)
        return await admin.topic_config(name)

    print_config(as_json, administer(bootstrap, topic_config))


@app.command()
def offsets(
    name: Name,
    at: Annotated[
        str, typer.Option(help="earliest, latest, or a time in ms since 1970: the first record at or after it.")
    ] = "latest",
    isolation_level: Annotated[str, typer.Option(help=ISOLATION_HELP)] = "read_uncommitted",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show each partition's first or last offset, or the offset of the first record at or after a time."""
    if at not in ("earliest", "latest") and not at.isdigit():
        output.fail(f"--at is earliest, latest or a time in ms since 1970, not {at!r}", output.USAGE)
    committed = reads_committed(isolation_level)
    time = EARLIEST if at == "earliest" else LATEST if at == "latest" else int(at)

    async def list_offsets(admin: Admin) -> list[dict[str, Any]]:
        partitions = await find_partitions(admin, name, None)
        found = await admin.list_offsets(
            dict.fromkeys(partitions, time), committed=committed)
        return [
            {"partition": each.partition, "offset": offset, "timestamp_ms": timestamp}
            for each, (offset, timestamp) in sorted(found.items())]

    output.print_records(as_json, name, administer(bootstrap, list_offsets), ("partition", "offset", "timestamp_ms"))


@app.command()
def look(
    name: Name,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    offset: Annotated[
        int | None, typer.Option(help="Start at this offset. Default: where the log begins.", min=0)
    ] = None,
    limit: Annotated[int, typer.Option("--max", help="Show at most this many records.", min=1, max=1000)] = 20,
    isolation_level: Annotated[str, typer.Option(help=ISOLATION_HELP)] = "read_committed",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show batches and records of a partition, whatever they hold. Damaged batches are reported."""
    committed = reads_committed(isolation_level)

    async def read(admin: Admin) -> dict[str, Any]:
        (where,) = await find_partitions(admin, name, [partition])
        begin = (await admin.partition_offsets([where]))[where].first if offset is None else offset
        return await preview(
            admin, where, begin, committed=committed, bounds=Bounds(records=limit))

    found = administer(bootstrap, read)
    if as_json:
        output.print_json(found)
        return
    columns = ("base_offset", "last_offset", "kind", "compression", "producer_id", "hidden", "error", "control")
    output.print_records(False, "batches", found["batches"], columns)
    rows = [
        {name: _shown(each[name]) if name in ("key", "value") else each[name] for name in _RECORD}
        for each in found["records"]]
    output.print_records(False, "records", rows, _RECORD)


_RECORD = ("offset", "timestamp_ms", "key", "value")


def _shown(data: dict[str, Any] | None) -> str | None:
    if data is None:
        return None
    return data["text"] if data["text"] is not None else f"base64:{data['base64']}"


def _summary(topic: TopicInfo) -> dict[str, Any]:
    return {"topic": topic.name, "topic_id": topic.topic_id, "partitions": len(topic.partitions)}

"""`hapax topic ...`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, Administration, AsJson, Bootstrap, administer
from hapax.runtime.settings import SettingsError, parse_assignments

app = typer.Typer(help="Create, list, describe, extend and delete topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC")]


@app.command()
def create(
    name: Name,
    partitions: Annotated[int, typer.Option(help="-1: the cluster's num.partitions.", min=-1)] = -1,
    replication: Annotated[int, typer.Option(help="-1: the cluster's default.replication.factor.", min=-1)] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="Such as retention.ms=1000; repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create a topic; returns once its leaders accept writes."""
    try:
        values = parse_assignments(config or ())
    except SettingsError as error:
        output.fail(str(error), output.USAGE)
    created = administer(bootstrap, lambda cluster: cluster.create_topic(name, partitions, replication, values))
    output.print_records(as_json, "", [created], ("topic", "partitions", "topic_id"))


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the topics."""
    found = [
        each | {"partitions": len(each["partitions"])}
        for each in administer(bootstrap, lambda cluster: cluster.topics())
        if internal or not each["internal"]
    ]
    output.print_records(as_json, "", found, ("topic", "partitions", "topic_id"))


@app.command()
def describe(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a topic's partitions: leaders, and the offsets that readers see."""

    async def work(cluster: Administration) -> dict[str, Any]:
        topic = (await cluster.topics([name]))[0]
        offsets = await cluster.offsets(name, [each["partition"] for each in topic["partitions"]])
        for each in topic["partitions"]:
            first, stable, high = offsets[each["partition"]]
            each |= {"first": first, "last_stable": stable, "high_watermark": high}
        return topic

    topic = administer(bootstrap, work)
    if as_json:
        output.print_json(topic)
        return
    columns = ("partition", "leader", "leader_epoch", "in_sync", "first", "last_stable", "high_watermark")
    output.print_records(False, f"{topic['topic']} {topic['topic_id']}", topic["partitions"], columns)


@app.command()
def delete(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Delete a topic and all its records."""
    administer(bootstrap, lambda cluster: cluster.delete_topic(name))


@app.command()
def extend(
    name: Name,
    partitions: Annotated[int, typer.Option(help="The number it shall have.", min=1)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Give a topic more partitions."""
    administer(bootstrap, lambda cluster: cluster.extend_topic(name, partitions))

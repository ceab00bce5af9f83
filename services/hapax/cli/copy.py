"""`hapax copy`: copies topics from a Kafka cluster to another one, each record once."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import AsJson, finish
from hapax.client.errors import SettingsError
from hapax.copy.copier import Copier, PartitionResult
from hapax.copy.settings import CopySettings
from hapax.runtime.telemetry import HealthServer

_SOURCE_CONFIG = "File of client settings for the source, such as security.protocol and sasl.jaas.config."
_TARGET_CONFIG = "The same for the target."


def copy(
    source: Annotated[str, typer.Option("--from", metavar="HOST:PORT,...", help="Addresses of the source.")] = "",
    target: Annotated[str, typer.Option("--to", metavar="HOST:PORT,...", help="Addresses of the target.")] = "",
    topics: Annotated[
        str, typer.Option("--topics", metavar="PATTERN", help="Topics: a regular expression for the whole name.")
    ] = ".*",
    exclude: Annotated[
        str, typer.Option(metavar="PATTERN", help="Topics that are left out. Internal topics always are.")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Keep copying. Default: stop at the present ends.")] = False,
    name: Annotated[str, typer.Option(help="Names this copy on the target, which keeps its positions.")] = "copy",
    instance: Annotated[
        str, typer.Option(help="Tells the processes of one copy apart. A new process replaces one of its instance.")
    ] = "0",
    prefix: Annotated[str, typer.Option(help="Put before the name of each topic in the target.")] = "",
    by_key: Annotated[
        bool, typer.Option("--by-key", help="Choose partitions by key. Default: the same partition as in the source.")
    ] = False,
    groups: Annotated[
        str, typer.Option(metavar="PATTERN", help="Also copy the positions of these consumer groups.")
    ] = "",
    on_lost: Annotated[
        str, typer.Option(metavar="stop|skip", help="Where the source has lost records: stop the partition, or go on.")
    ] = "stop",
    into_existing: Annotated[
        bool, typer.Option("--into-existing", help="Also copy behind records that this copy has not written.")
    ] = False,
    replication_factor: Annotated[int, typer.Option(help="Of topics that are created. -1: the target's default.")] = -1,
    keep_config: Annotated[
        bool, typer.Option("--config/--no-config", help="Create topics with the configuration of the source's.")
    ] = True,
    transaction_bytes: Annotated[
        int, typer.Option(help="Bytes that are read ahead, and go into one transaction.", min=1 << 20)
    ] = 16 << 20,
    source_config: Annotated[Path | None, typer.Option("--from-config", metavar="FILE", help=_SOURCE_CONFIG)] = None,
    target_config: Annotated[Path | None, typer.Option("--to-config", metavar="FILE", help=_TARGET_CONFIG)] = None,
    metrics_port: Annotated[
        int, typer.Option(help="Port of /metrics, /status, /healthz and /readyz. 0: none.", min=0, max=65535)
    ] = 0,
    metrics_host: Annotated[str, typer.Option(help="Address on which this port listens.")] = "127.0.0.1",
    as_json: AsJson = False,
) -> None:
    """Copy topics from one Kafka or Hapax cluster to another, each record once. Killed and started again, the copy
    continues where it was."""
    if on_lost not in ("stop", "skip"):
        output.fail(f"--on-lost is stop or skip, not {on_lost!r}", output.USAGE)
    try:
        settings = CopySettings(
            source=_client(source, source_config, "--from"), target=_client(target, target_config, "--to"),
            topics=topics, exclude=exclude, name=name, instance=instance, prefix=prefix, follow=follow, by_key=by_key,
            groups=groups, skip_lost=on_lost == "skip", into_existing=into_existing,
            replication_factor=replication_factor, config=keep_config, transaction_bytes=transaction_bytes)
        settings.check()
    except (SettingsError, OSError) as error:
        output.fail(str(error), output.USAGE)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("hapax.copy").setLevel(logging.INFO)
    results = finish(_run(settings, metrics_host, metrics_port))
    _show(results, as_json)
    if any(each.trouble for each in results):
        raise SystemExit(output.FAILED)


def _client(addresses: str, path: Path | None, option: str) -> dict[str, object]:
    from hapax.client.properties import read_properties

    given: dict[str, object] = {} if path is None else dict(read_properties(path))
    if addresses:
        given["bootstrap.servers"] = addresses
    if "bootstrap.servers" not in given:
        raise SettingsError(f"{option} is missing: give the addresses of any nodes, host:port,...")
    return {"client.id": "hapax-copy", **given}


async def _run(settings: CopySettings, host: str, port: int) -> list[PartitionResult]:
    copier = Copier(settings)
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, copier.stop)
    health = HealthServer(
        copier.metrics.metrics, copier.waits_for, pages={"/status": lambda: json.dumps(copier.report()).encode()})
    if port:
        try:
            await health.start(host, port)
        except OSError as error:
            output.fail(f"--metrics-port: {host}:{port} cannot be used: {error}", output.USAGE)
    try:
        return await copier.run()
    finally:
        await health.close()


def _show(results: list[PartitionResult], as_json: bool) -> None:
    if as_json:
        output.print_json([each._asdict() for each in results])
        return
    rows = [(each.topic, each.partition, each.target, each.records, each.bytes, each.position, each.lost,
             "in trouble, see above" if each.trouble else "") for each in results]
    output.print_table("", ("topic", "partition", "target", "records", "bytes", "position", "lost", ""), rows)

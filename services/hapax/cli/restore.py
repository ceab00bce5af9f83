"""`hapax restore URL --to BOOTSTRAP`: restores a backup into an empty cluster."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import AsJson, connected, finish, patient_options
from hapax.cli.backup import Url
from hapax.cli.backup_errors import told
from hapax.core.types import PartitionIndex, TopicPartition

if TYPE_CHECKING:
    from hapax.backup.point_in_time import Moment


def restore(
    url: Url,
    bootstrap: Annotated[
        str, typer.Option("--to", metavar="HOST:PORT,...", help="Addresses of nodes of the empty cluster.")],
    chosen: Annotated[
        str, typer.Option("--backup", metavar="ID", help="This backup. Default: the newest one.")] = "",
    at: Annotated[
        str, typer.Option("--at", metavar="TIME", help=(
            "What was committed at this time: ISO 8601, or milliseconds since 1970. Needs a later backup."))] = "",
    offsets: Annotated[
        list[str] | None, typer.Option("--offsets", metavar="TOPIC:PARTITION=OFFSET", help=(
            "End this partition there, or at the last transaction before. Repeatable."))] = None,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", min=0, help="Of all topics. 0: as in the backup.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into an empty cluster. An interrupted restore is finished by the same command."""
    from hapax.backup import manifests
    from hapax.backup.cluster import BackedUpCluster
    from hapax.backup.errors import BackupError
    from hapax.backup.restoring import Restored, Restorer
    from hapax.backup.store import open_store

    async def run() -> tuple[str, Restored]:
        store = open_store(url)
        there = manifests.listed(store)
        if not there:
            raise BackupError("holds no backup: `hapax backup` takes one", url)
        manifest = manifests.read(store, chosen or there[-1])
        async with connected(BackedUpCluster(patient_options(bootstrap))) as cluster:
            restorer = Restorer(
                cluster, store, manifest, moment=_moment(at, offsets or []), replication_factor=replication_factor,
                progress=output.note)
            return manifest.backup, await restorer.restore()

    name, restored = finish(told(run()))
    if as_json:
        output.print_json({"backup": name, **restored._asdict()})
    else:
        print(
            f"restored backup {name}: {restored.topics} topics with {restored.partitions} partitions, "
            f"{restored.transactional_ids} transactional ids, {restored.groups} groups, {restored.leases} leases")
    if restored.without_password:
        output.note(
            f"cannot log in until they have a password again, which a backup does not hold: "
            f"{', '.join(restored.without_password)}. Set each by `hapax user set-password`")


def _moment(at: str, offsets: list[str]) -> Moment | None:
    """A wrong option ends the command with the exit code for wrong usage."""
    from hapax.backup.point_in_time import Moment

    if not at and not offsets:
        return None
    if at and offsets:
        output.fail("give either --at or --offsets", output.USAGE)
    if at:
        try:
            return Moment(at_ms=int(at) if at.isdigit() else round(datetime.fromisoformat(at).timestamp() * 1000))
        except ValueError:
            output.fail(f"--at {at}: give ISO 8601, such as 2026-11-26T18:00:00Z, or milliseconds", output.USAGE)
    ends = {}
    for text in offsets:
        where, _, offset = text.partition("=")
        topic, _, index = where.rpartition(":")
        if not topic or not index.isdigit() or not offset.isdigit():
            output.fail(f"--offsets {text}: give TOPIC:PARTITION=OFFSET", output.USAGE)
        ends[TopicPartition(topic, PartitionIndex(int(index)))] = int(offset)
    return Moment(offsets=ends)

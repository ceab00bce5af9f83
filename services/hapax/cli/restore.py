"""`hapax restore URL --to BOOTSTRAP`: restores a backup into an empty cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import AsJson, client_options, connected, finish
from hapax.cli.backup import Url
from hapax.cli.backup_errors import told


def restore(
    url: Url,
    to: Annotated[str, typer.Option("--to", metavar="HOST:PORT,...", help="Addresses of nodes of the empty cluster.")],
    chosen: Annotated[
        str, typer.Option("--backup", metavar="ID", help="This backup. Default: the newest one.")] = "",
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
        async with connected(BackedUpCluster(client_options(to))) as cluster:
            restorer = Restorer(
                cluster, store, manifest, replication_factor=replication_factor, progress=output.note)
            return manifest.backup, await restorer.restore()

    name, restored = finish(told(run()))
    if as_json:
        output.print_json({"backup": name, **restored._asdict()})
    else:
        print(
            f"restored backup {name}: {restored.topics} topics with {restored.partitions} partitions, "
            f"{restored.transactional_ids} transactional ids, {restored.groups} groups, {restored.leases} leases")

"""`hapax backup URL`: takes a backup of a cluster that runs."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, connected, finish, patient_options
from hapax.cli.backup_errors import told
from hapax.client.leases import Leases

Url = Annotated[str, typer.Argument(
    metavar="URL", help="A folder, or an object store's address such as s3://bucket/prefix.")]


def backup(
    url: Url,
    keep: Annotated[
        int, typer.Option("--keep", min=0, help="Remove all but this many of the newest backups. 0: remove none.")] = 0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Take a backup of a cluster that runs. Only what the last backup at URL lacks is uploaded."""
    from hapax.backup.cluster import BackedUpCluster
    from hapax.backup.store import open_store
    from hapax.backup.taking import BackupTaker, Taken

    async def take() -> Taken:
        store = open_store(url)
        options = patient_options(bootstrap)
        async with connected(BackedUpCluster(options)) as cluster, connected(Leases(options)) as leases:
            taker = BackupTaker(
                cluster, leases, store, now_ms=lambda: time.time_ns() // 1_000_000, randbytes=os.urandom,
                progress=output.note)
            return await taker.take(keep)

    taken = finish(told(take()))
    manifest = taken.manifest
    shown = {
        "backup": manifest.backup, "cluster_id": manifest.cluster_id, "base": manifest.base,
        "topics": sum(not each.internal for each in manifest.topics), "uploaded_bytes": taken.uploaded,
        "removed": list(taken.removed)}
    if as_json:
        output.print_json(shown)
    else:
        print(f"backup {manifest.backup}: {shown['topics']} topics, {taken.uploaded} bytes uploaded")
        for each in taken.removed:
            print(f"removed backup {each}")

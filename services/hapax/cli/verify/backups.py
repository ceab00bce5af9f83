"""`hapax verify URL`: checks every byte of the backups that are kept at a place.

Of each backup: the manifest's checksum, that it does not contradict itself, that every object is there with its length
and SHA-256, the CRC-32C and offsets of every batch, and that the transactions that the manifest leaves out are those
that the objects hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from hapax.cli import output


def holds_backups(path: str) -> bool:
    return "://" in path or (Path(path) / "manifests").is_dir()


def verify_backups(places: list[str], *, as_json: bool) -> None:
    from hapax.backup import manifests
    from hapax.backup.errors import BackupError
    from hapax.backup.reading import check_backup
    from hapax.backup.store import open_store

    shown: list[dict[str, Any]] = []
    faults: list[str] = []
    for place in places:
        try:
            store = open_store(place)
            there = manifests.listed(store)
            if not there:
                output.fail(f"{place}: holds no backup", output.NOT_FOUND)
            clusters = set()
            for backup in there:
                try:
                    manifest = manifests.read(store, backup)
                except BackupError as error:
                    faults.append(str(error))
                    continue
                clusters.add(manifest.cluster_id)
                checked, found = check_backup(store, manifest)
                faults += found
                shown.append({
                    "backup": backup, "cluster_id": manifest.cluster_id, "taken_ms": manifest.taken_ms,
                    **checked._asdict(), "faults": len(found)})
            if len(clusters) > 1:
                faults.append(f"{place}: holds backups of several clusters: {output.joined(sorted(clusters))}")
        except (BackupError, OSError) as error:
            output.fail(str(error))
    faults = list(dict.fromkeys(faults))
    if as_json:
        output.print_json({"ok": not faults, "backups": shown, "damage": faults})
    else:
        output.print_records(
            False, "", shown, ("backup", "cluster_id", "taken_ms", "objects", "bytes", "batches", "faults"))
        for fault in faults:
            print(fault)
        print("nothing is wrong" if not faults else f"{len(faults)} faults")
    if faults:
        raise typer.Exit(output.FAILED)

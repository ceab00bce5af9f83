"""`hapax verify PATH...`: checks the files of one or all nodes of a cluster, stopped or running, and changes nothing.

It checks of each partition: every batch is complete (CRC-32C); offsets and leader epochs rise; producers' sequences
have no gap and no repetition; indexes point to batches; the aborted-transaction index, the snapshots and the
leader-epoch checkpoint agree with the log; the records of internal topics can be decoded. With the folders of several
nodes, replicas must be byte-equal up to the high watermark. Exit codes: 0 no damage, 1 damage, 4 nothing to verify.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.verify.backups import holds_backups, verify_backups
from hapax.cli.verify.findings import Counts, Finding, Findings
from hapax.cli.verify.folders import DataFolder, check_folder, data_folders
from hapax.cli.verify.replicas import Digest, Replica, compare_replicas


def verify(
    paths: Annotated[
        list[str], typer.Argument(help="Data folders, partitions' folders, or the place of backups (also s3://...).")],
    compacted: Annotated[
        list[str] | None, typer.Option("--compacted", metavar="TOPIC", help="A compacted topic: gaps are not damage.")
    ] = None,
    records: Annotated[bool, typer.Option("--records", help="Also decode each record of clients' topics.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check segments, indexes, snapshots and replicas, and report damage."""
    backups = [path for path in paths if holds_backups(path)]
    if backups:
        if len(backups) < len(paths):
            output.fail("verify backups and data folders in separate calls", output.USAGE)
        verify_backups(backups, as_json=as_json)
        return
    for path in paths:
        if not Path(path).exists():
            output.fail(f"there is no {path}", output.USAGE)
    found = {(folder.path, folder.only): folder for path in paths for folder in data_folders(Path(path).absolute())}
    folders = list(found.values())
    if not folders:
        output.fail("no data folder found: neither meta.properties nor a partition's log", output.NOT_FOUND)
    findings = Findings()
    for folder in folders:
        for name in check_folder(folder, findings, compacted_topics=frozenset(compacted or ()), records=records):
            _progress(f"{folder.path.name}/{name}", as_json)
    digests = list(_replicas(folders, findings))
    _progress("", as_json)
    if as_json:
        output.print_json(_document(folders, digests, findings))
    else:
        _print(folders, digests, findings)
    if findings.damage:
        raise typer.Exit(output.FAILED)


def _replicas(folders: list[DataFolder], findings: Findings) -> list[Digest]:
    by_partition: dict[tuple[str, str, int], list[Replica]] = {}
    clusters = {folder.cluster_id for folder in folders}
    if len(clusters) > 1:
        for folder in folders:
            findings.noted(folder.path, f"belongs to cluster {folder.cluster_id or '?'}; compared only within it")
    for folder in folders:
        for partition in folder.partitions:
            key = (folder.cluster_id, partition.topic, partition.index)
            by_partition.setdefault(key, []).append(Replica(partition, folder.high_watermark(partition)))
    digests = (_compared(replicas, findings) for replicas in by_partition.values() if len(replicas) > 1)
    return [digest for digest in digests if digest is not None]


def _compared(replicas: list[Replica], findings: Findings) -> Digest | None:
    """None if a running process removed a segment in the meantime, which is not damage."""
    mine = Findings()
    try:
        digest = compare_replicas(replicas, mine)
    except FileNotFoundError as error:
        findings.noted(str(error.filename), "was removed before it was compared with its replicas; verify again")
        return None
    findings.add(mine)
    return digest


def _progress(text: str, as_json: bool) -> None:
    """Overwrites one line on stderr; prints nothing with --json."""
    if not as_json and sys.stderr.isatty():
        print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)


def _document(folders: list[DataFolder], digests: list[Digest], findings: Findings) -> dict[str, Any]:
    return {
        "ok": not findings.damage,
        "damage": [_finding(each) for each in findings.damage],
        "notes": [_finding(each) for each in findings.notes],
        "folders": [
            {"path": str(folder.path), "cluster_id": folder.cluster_id, "node_id": folder.node_id,
             "stopped_cleanly": folder.stopped, **_counts(folder.counts)}
            for folder in folders
        ],
        "replicas": [digest._asdict() | {"crc32c": f"{digest.crc32c:08x}"} for digest in digests],
    }  # fmt: skip


def _finding(finding: Finding) -> dict[str, Any]:
    return {name: value for name, value in finding._asdict().items() if value is not None}


def _counts(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in counts.__slots__}


def _print(folders: list[DataFolder], digests: list[Digest], findings: Findings) -> None:
    columns = ["folder", "node", "last stop", *Counts.__slots__]
    output.print_table(
        "",
        columns,
        [
            [
                folder.path,
                folder.node_id,
                "clean" if folder.stopped else "running or unclean",
                *_counts(folder.counts).values(),
            ]
            for folder in folders
        ],
    )
    if digests:
        equal = sum(digest.equal for digest in digests)
        print(f"replicas: {equal} of {len(digests)} partitions are equal on all their nodes")
    for title, found in (("notes", findings.notes), ("damage", findings.damage)):
        if found:
            output.print_table(
                title,
                ["file", "offset", "byte", "what"],
                [[each.file, each.offset, each.position, each.what] for each in found],
            )
    print("nothing is wrong" if not findings.damage else f"{len(findings.damage)} faults")

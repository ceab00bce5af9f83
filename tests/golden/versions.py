"""The versions of the stored formats that are kept here, and what today's code reads in one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hapax.cli.dump import entries, files_of
from hapax.codec import metadata as etcd

HERE = Path(__file__).parent

RECORDS: dict[etcd.KeyKind, Any] = {
    "cluster": etcd.ClusterRecord, "node": etcd.NodeRecord, "topic": etcd.TopicRecord,
    "deleted": etcd.DeletedTopicRecord, "partition": etcd.PartitionRecord, "txn_shard": etcd.ShardRecord,
    "group_shard": etcd.ShardRecord, "pid_next": etcd.PidCounterRecord, "pid_lease": etcd.PidLeaseRecord,
    "controller": etcd.ControllerRecord, "throttle": etcd.ThrottleRecord,
    "silent": etcd.SilentRecord, "policy": etcd.PolicyRecord, "group_config": etcd.GroupConfigRecord,
    "acl": etcd.AclRecord, "scram_credential": etcd.ScramCredentialRecord, "scram_secret": etcd.ScramSecretRecord,
    "quota": etcd.QuotaRecord, "racks": etcd.RacksRecord, "outside": etcd.OutsideRecord,
}  # fmt: skip
"""By the kind of key. Of `draining` the JSON is kept: only its key was read before v19."""


def versions() -> list[Path]:
    """Oldest first."""
    return sorted((path for path in HERE.glob("v*") if path.is_dir()), key=lambda path: int(path.name[1:]))


def decoded_lines(version: Path) -> Iterator[str]:
    """Everything that the files hold, one JSON object a line."""
    for each in decoded(version):
        yield json.dumps(each, default=_plain, sort_keys=True)


def decoded(version: Path) -> Iterator[dict[str, Any]]:
    for file in files_of(version / "broker-0"):
        for entry in entries(file, records=True):
            yield {"file": str(file.relative_to(version)), **entry}
    for key, kind, held in metadata_of(version):
        if kind in RECORDS:
            yield {"key": key, "record": type(held).__name__, **_fields(held)}
        else:
            yield {"key": key, "kind": kind, "value": held}


def metadata_of(version: Path) -> Iterator[tuple[str, etcd.KeyKind, Any]]:
    """Each key of the metadata store, its kind, and its record; the JSON value where `RECORDS` does not have the kind.
    """
    values = json.loads((version / "etcd.json").read_text())
    for key, value in values.items():
        kind = etcd.Keys(key.split("/")[2]).parse(key).kind
        yield key, kind, RECORDS[kind].decode(json.dumps(value).encode()) if kind in RECORDS else value


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: _keyed(getattr(record, field.name)) for field in dataclasses.fields(record)}


def _keyed(value: Any) -> Any:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)

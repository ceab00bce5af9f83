"""Manifests as files: one JSON document, with the SHA-256 of its content."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from hashlib import sha256
from typing import Any, Final

from hapax.backup.errors import BackupError
from hapax.backup.store import Store
from hapax.core.backup.cut import OpenPiece
from hapax.core.backup.manifest import FORMAT, LeasePart, Manifest, PartitionPart, StoredRange, TopicPart, faults_of

FOLDER: Final = "manifests/"
RUNNING: Final = "running/"
OBJECTS: Final = "objects/"
_NAME: Final = re.compile(r"(\d{13}-[0-9a-f]{8})\.json")


def running(backup: str) -> str:
    """The name of what says that a backup is being taken."""
    return f"{RUNNING}{backup}.json"


def encode(manifest: Manifest) -> bytes:
    content = json.dumps(asdict(manifest), separators=(",", ":"), sort_keys=True)
    digest = sha256(content.encode()).hexdigest()
    return f'{{"format":{FORMAT},"sha256":"{digest}","manifest":\n{content}\n}}\n'.encode()


def decode(data: bytes, place: str) -> Manifest:
    """Raises BackupError."""
    try:
        document = json.loads(data)
        written = document["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(place, f"it is no manifest ({error})") from None
    if not isinstance(written, int) or written > FORMAT:
        raise BackupError(
            f"the manifest has format {written}; this release reads up to {FORMAT}. Restore with the release that took "
            "the backup, or a newer one", place)
    lines = data.split(b"\n")
    if len(lines) < 2 or sha256(lines[1]).hexdigest() != document.get("sha256"):
        raise _damaged(place, "its SHA-256 does not match")
    try:
        return _manifest(document["manifest"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(place, f"a field is missing or wrong: {error}") from None


def _damaged(place: str, why: str) -> BackupError:
    return BackupError(f"{why}: the manifest is damaged. Use another backup, or a copy of this file", place)


def _manifest(read: dict[str, Any]) -> Manifest:
    return Manifest(**{
        **read,
        "topics": tuple(TopicPart(*each) for each in read["topics"]),
        "partitions": tuple(
            PartitionPart(
                each["topic"], each["partition"], each["start"], each["end"],
                tuple(StoredRange(*stored) for stored in each["ranges"]),
                tuple(OpenPiece(*opened) for opened in each["opened"]), tuple(each["tail"]), each["since_ms"],
                tuple(each["excluded"]))
            for each in read["partitions"]),
        "leases": tuple(
            LeasePart(name, producer_id, tuple((topic, index, count) for topic, index, count in counts))
            for name, producer_id, counts in read["leases"]),
        "acls": tuple(tuple(each) for each in read["acls"]),
        "quotas": tuple((entity, values) for entity, values in read["quotas"]),
        "group_configs": tuple((group, config) for group, config in read["group_configs"]),
        "users": tuple((name, mechanism) for name, mechanism in read["users"]),
    })


def read(store: Store, backup: str) -> Manifest:
    """Raises BackupError, OSError."""
    place = f"{FOLDER}{backup}.json"
    try:
        manifest = decode(store.get(place), f"{store.address}/{place}")
    except FileNotFoundError:
        raise BackupError(f"there is no backup {backup!r}; `hapax verify` lists those that are there",
                          store.address) from None
    if manifest.backup != backup:
        raise _damaged(f"{store.address}/{place}", f"it is the manifest of backup {manifest.backup}")
    fault = next(faults_of(manifest), None)
    if fault is not None:
        raise _damaged(f"{store.address}/{place}", fault)
    return manifest


def listed(store: Store) -> list[str]:
    """The ids of the backups, oldest first. An id begins with its time. Other files are not looked at."""
    found = (_NAME.fullmatch(name.removeprefix(FOLDER)) for name in store.list(FOLDER))
    return sorted(each[1] for each in found if each is not None)


def time_of(backup: str) -> int:
    """Milliseconds since 1970. Later backups at one place have later times, even where the clock went back."""
    return int(backup.partition("-")[0])

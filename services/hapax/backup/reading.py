"""Reads the objects of a backup, and checks every byte of them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from hapax.backup.errors import BackupError
from hapax.backup.store import Store
from hapax.codec.batch import check_batch, iterate_batches
from hapax.codec.control import decode_control
from hapax.core.backup.cut import Scan
from hapax.core.backup.manifest import Manifest, PartitionPart, StoredRange
from hapax.core.batch import CONTROL, BatchHeader
from hapax.core.control import Marker
from hapax.core.errors import Refusal

_REPAIR = "Restore another backup, or put an intact copy of the file in its place"


class Checked(NamedTuple):
    objects: int
    bytes: int
    batches: int


def read_range(store: Store, stored: StoredRange) -> bytes:
    """Raises BackupError, OSError."""
    place = f"{store.address}/{stored.name}"
    try:
        content = store.get(stored.name)
    except FileNotFoundError:
        raise BackupError(f"the file is missing. {_REPAIR}", place) from None
    if len(content) != stored.size:
        raise BackupError(f"the file has {len(content)} bytes, not {stored.size}. {_REPAIR}", place)
    if sha256(content).hexdigest() != stored.sha256:
        raise BackupError(f"the SHA-256 of the file's content is another one: it is damaged. {_REPAIR}", place)
    return content


def batches_of(store: Store, stored: StoredRange) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Raises BackupError, OSError."""
    content = memoryview(read_range(store, stored))
    place = f"{store.address}/{stored.name}"
    end, offset = 0, stored.first
    try:
        for position, header in iterate_batches(content):
            end = position + header.size
            batch = content[position:end]
            check_batch(batch, header)
            if not offset <= header.base_offset < header.next_offset <= stored.end:
                raise BackupError(
                    f"holds a batch with offsets {header.base_offset} to {header.next_offset - 1} where "
                    f"{offset} to {stored.end - 1} belong. {_REPAIR}", place)
            offset = header.next_offset
            yield batch, header
    except Refusal as refusal:
        raise BackupError(f"byte {end}: {refusal.reason}. {_REPAIR}", place) from None
    if end != len(content):
        raise BackupError(f"byte {end}: {len(content) - end} bytes are not a batch. {_REPAIR}", place)


def check_part(store: Store, part: PartitionPart) -> Checked:
    """Raises BackupError at the first fault, OSError."""
    scan, commits = Scan(), set()
    size = batches = 0
    for stored in part.ranges:
        size += stored.size
        for batch, header in batches_of(store, stored):
            batches += 1
            if not header.attributes & CONTROL:
                scan.data(header)
                continue
            control = decode_control(batch, header)
            if isinstance(control, Marker) and scan.marker(header, control) is not None:
                commits.add(header.base_offset)
    where = f"{part.topic}-{part.partition}"
    unfounded = set(part.excluded) - commits
    if unfounded:
        raise BackupError(
            f"{where}: the manifest excludes a transaction at offset {min(unfounded)}, where no commit is stored: the "
            "manifest and the objects do not belong together", store.address)
    first = part.ranges[0].first if part.ranges else part.end
    said = {each.producer_id for each in part.opened}
    surely = {each.producer_id for each in part.opened if each.first_offset >= first}
    if not surely <= {each.producer_id for each in scan.opened} <= said:  # of the others all records may be deleted
        raise BackupError(
            f"{where}: the manifest names other open transactions than the objects hold: they do not belong together",
            store.address)
    return Checked(len(part.ranges), size, batches)


def check_backup(store: Store, manifest: Manifest) -> tuple[Checked, list[str]]:
    """What was checked, and every fault. Raises OSError."""
    faults = []
    total = Checked(0, 0, 0)
    for part in manifest.partitions:
        try:
            checked = check_part(store, part)
            total = Checked(*map(sum, zip(total, checked, strict=True)))
        except BackupError as error:
            faults.append(str(error))
    return total, faults

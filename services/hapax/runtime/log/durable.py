"""Syncing the log's files. A failed sync is final (rule 13)."""

from __future__ import annotations

from collections.abc import Sequence

from hapax.runtime.ports import Disk, File


class SyncFailed(Exception):
    """The disk could not make written bytes durable. Nothing in the page cache can be trusted from now on, and a
    second sync would claim success: the process must end, and recovery must write again what it keeps."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"sync of {path} failed: {error.strerror or error}")
        self.path = path


async def sync_file(file: File) -> None:
    """Raises SyncFailed."""
    try:
        await file.sync()
    except OSError as error:
        raise SyncFailed(file.path, error) from error


async def sync_files(disk: Disk, files: Sequence[File]) -> None:
    """Raises SyncFailed."""
    try:
        await disk.sync_files(files)
    except OSError as error:
        raise SyncFailed(", ".join(sorted({file.path for file in files})), error) from error


async def sync_folder(disk: Disk, path: str) -> None:
    """A folder that is gone (its topic was deleted meanwhile) needs no sync. Raises SyncFailed."""
    try:
        await disk.sync_folder(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SyncFailed(path or ".", error) from error

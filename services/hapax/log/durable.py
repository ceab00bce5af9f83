"""Syncs the log's files. A failed sync is final (rule 13)."""

from __future__ import annotations

from collections.abc import Sequence

from hapax.runtime.ports import Disk, File, Folder


class SyncFailed(Exception):
    """The disk could not make written bytes durable. The page cache can no longer be trusted, and a second sync would
    report success. The process must end, and recovery must write the bytes that it keeps again."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"sync of {path} failed: {error.strerror or error}")
        self.path = path


class SwapFailed(SyncFailed):
    """A compacted segment has replaced only some of the old files. Only recovery can complete the replacement, so the
    process must end, as after a failed sync."""

    def __init__(self, path: str, error: OSError) -> None:
        Exception.__init__(self, f"putting the compacted segment {path} in place failed: {error.strerror or error}")
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


async def sync_folder(folder: Folder) -> None:
    """A folder that was closed needs no sync, because its topic was deleted meanwhile. Raises SyncFailed."""
    try:
        await folder.sync_folder()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SyncFailed(folder.path or ".", error) from error

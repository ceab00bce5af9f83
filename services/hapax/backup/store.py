"""Where backups are kept: a folder, or an object store by fsspec (`s3://bucket/prefix`, `gs://...`).

An object is written whole or not at all, and never changed.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from hapax.backup.errors import BackupError

_CREATIONS: Final = 10


class Store(Protocol):
    """Names have `/` between their parts. Calls block: they run in threads. All raise OSError."""

    address: str

    def put(self, name: str, content: bytes) -> None: ...
    def get(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        ...

    def list(self, prefix: str) -> list[str]:
        """All names that begin with `prefix`, which ends with `/`."""
        ...

    def delete(self, name: str) -> None:
        """Deleting twice is harmless."""
        ...


def open_store(address: str) -> Store:
    """Raises BackupError."""
    scheme, found, rest = address.partition("://")
    if not found:
        return FolderStore(Path(address))
    if scheme == "file":
        return FolderStore(Path(rest))
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise BackupError(
            f"{scheme}:// needs the package fsspec: pip install 'hapaxlog[backup]'", address) from None
    try:
        filesystem, root = url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise BackupError(f"{scheme}:// cannot be used: {error}", address) from error
    return FsspecStore(address, filesystem, root)


class FolderStore:
    def __init__(self, folder: Path) -> None:
        self.address = str(folder)
        self._folder = folder

    def put(self, name: str, content: bytes) -> None:
        path = self._folder / name
        written = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with self._created(written) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            written.replace(path)
        except BaseException:
            written.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _created(self, path: Path) -> BinaryIO:
        for _ in range(_CREATIONS):
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another backup has removed the folder, because it was empty
                return path.open("wb")
        return path.open("wb")

    def get(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def list(self, prefix: str) -> list[str]:
        return sorted(
            str((Path(folder) / name).relative_to(self._folder))
            for folder, _, names in os.walk(self._folder / prefix, onerror=_unless_removed)
            for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        path = self._folder / name
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self._folder:
                break
            try:
                parent.rmdir()
            except FileNotFoundError:
                continue  # another backup has removed it
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                break


def _unless_removed(error: OSError) -> None:
    """Another backup removes folders that are empty."""
    if not isinstance(error, FileNotFoundError):
        raise error


class FsspecStore:
    """Object stores put a whole object at once, or none."""

    def __init__(self, address: str, filesystem: Any, root: str) -> None:
        self.address = address
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    def put(self, name: str, content: bytes) -> None:
        path = f"{self._root}/{name}"
        self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._filesystem.pipe_file(path, content)

    def get(self, name: str) -> bytes:
        self._filesystem.invalidate_cache()
        return bytes(self._filesystem.cat_file(f"{self._root}/{name}"))

    def list(self, prefix: str) -> list[str]:
        self._filesystem.invalidate_cache()
        below = f"{self._root}/{prefix}".rstrip("/")
        found = self._filesystem.find(below)
        return sorted(path[path.index(self._root) + len(self._root) + 1:] for path in found)

    def delete(self, name: str) -> None:
        try:
            self._filesystem.rm_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return

"""Read-only access to a data folder: nothing in it is written, created or locked."""

from __future__ import annotations

import os
from pathlib import Path

from hapax.runtime.disk import RealDisk, RealFile


class ReadOnlyDisk(RealDisk):
    """The disk port on a folder that may belong to a running process."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), -1, 0)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        return RealFile(self, path, os.open(os.path.join(self.root, path), os.O_RDONLY | os.O_CLOEXEC))

    def read(self, path: str) -> bytes:
        """The content of a small file. Raises FileNotFoundError."""
        return (Path(self.root) / path).read_bytes()

"""Adds bytecode to the archive from which Spark's Python workers load PySpark.

    python scripts/spark_bytecode.py FOLDER/pyspark/python/lib/pyspark.zip

Spark puts this archive before all other entries of a worker's path. It is published with sources only, and Python does
not write into archives, so each worker would compile what it imports: a second of CPU time for a plain worker, more for
Spark Connect's. Spark waits ten seconds for a worker, which cannot be set, and on a busy machine that is too short.
"""

from __future__ import annotations

import importlib.util
import marshal
import shutil
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Final

HEADER: Final = importlib.util.MAGIC_NUMBER + (0b01).to_bytes(4, "little")
"""Of bytecode with its source's hash, which is not compared with the source when it is loaded (PEP 552)."""


def add_bytecode(archive: Path) -> int:
    """Adds the bytecode of all modules but PySpark's own tests, for this Python. Returns how many were added.

    The same archive and the same Python give the same bytes. A second call adds nothing. The archive is replaced as a
    whole: one that was killed in between leaves it as it was, and neither another one at work at the same time nor a
    package manager's cache, of which the file may be a hard link, sees half of it.
    """
    with zipfile.ZipFile(archive) as content:
        names = set(content.namelist())
        missing = [
            (entry, content.read(entry)) for entry in content.infolist()
            if entry.filename.endswith(".py") and "/tests/" not in entry.filename and f"{entry.filename}c" not in names
        ]  # fmt: skip
    if missing:
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=f".{archive.name}-") as folder:
            made = Path(shutil.copy2(archive, folder))
            with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED) as content:
                for entry, source in missing:
                    content.writestr(*_compiled(archive.name, entry, source))
            made.replace(archive)
    return len(missing)


def _compiled(archive: str, entry: zipfile.ZipInfo, source: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    compiled = zipfile.ZipInfo(f"{entry.filename}c", entry.date_time)
    compiled.compress_type = zipfile.ZIP_DEFLATED
    compiled.external_attr = entry.external_attr
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        code = compile(source, f"{archive}/{entry.filename}", "exec", dont_inherit=True)
    return compiled, HEADER + importlib.util.source_hash(source) + marshal.dumps(code)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        add_bytecode(Path(name))

"""Adds bytecode to the archive from which Spark's Python workers load PySpark.

    python scripts/spark_bytecode.py FOLDER/pyspark/python/lib/pyspark.zip

Spark puts this archive before all other entries of a worker's path. It is published with sources only, and Python does
not write into archives, so each worker would compile what it imports: a second of CPU time for a plain worker, more for
Spark Connect's. Spark waits ten seconds for a worker, which cannot be set, and on a busy machine that is too short.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Final

HEADER: Final = importlib.util.MAGIC_NUMBER + (0b01).to_bytes(4, "little")
"""Of bytecode with its source's hash, which is not compared with the source when it is loaded (PEP 552)."""


def add_bytecode(archive: Path) -> int:
    """Adds the bytecode of all modules but PySpark's own tests, for this Python. Returns how many were added.

    The same archive and the same Python give the same bytes. A second call adds nothing.
    """
    with zipfile.ZipFile(archive) as content:
        names = set(content.namelist())
        missing = [
            (entry, content.read(entry)) for entry in content.infolist()
            if entry.filename.endswith(".py") and "/tests/" not in entry.filename and f"{entry.filename}c" not in names
        ]  # fmt: skip
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as content:
        for entry, source in missing:
            compiled = zipfile.ZipInfo(f"{entry.filename}c", entry.date_time)
            compiled.compress_type = zipfile.ZIP_DEFLATED
            compiled.external_attr = entry.external_attr
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                code = compile(source, f"{archive.name}/{entry.filename}", "exec", dont_inherit=True)
            content.writestr(compiled, HEADER + importlib.util.source_hash(source) + marshal.dumps(code))
    return len(missing)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        add_bytecode(Path(name))

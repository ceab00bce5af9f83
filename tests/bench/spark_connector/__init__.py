"""Spark's own Kafka source and sink from their Maven artifacts.

The pom beside this file names the versions, `checksums.sha256` what they must be.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from maven import Unavailable, fetched

_HERE = Path(__file__).parent


def jars() -> list[Path]:
    """The connector's jars, whole and unchanged. Raises Unavailable."""
    expected = dict(reversed(line.split()) for line in (_HERE / "checksums.sha256").read_text().splitlines())
    folder = fetched(_HERE / "pom.xml", "spark-connector")
    for name, wanted in expected.items():
        path = folder / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "of nothing"
        if found != wanted:
            raise Unavailable(f"{path} is not what it should be: SHA-256 {found}; delete {folder} to fetch it again")
    return [folder / name for name in expected]

"""Spark's own Kafka source and sink from their Maven artifacts, fetched once into the user's cache.

The pom beside this file names the versions, `checksums.sha256` what they must be.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

_HERE = Path(__file__).parent
_FETCH_SECONDS = 300


class Unavailable(RuntimeError):
    """The connector cannot be had here; the sentence says why."""


def jars() -> list[Path]:
    """The connector's jars, whole and unchanged. Raises Unavailable."""
    expected = dict(reversed(line.split()) for line in (_HERE / "checksums.sha256").read_text().splitlines())
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hapax" / "spark-connector"
    paths = [cache / name for name in expected]
    if not all(path.exists() for path in paths):
        _fetch(cache)
    for path in paths:
        if not path.exists():
            raise Unavailable(f"mvn did not bring {path.name}")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected[path.name]:
            raise Unavailable(f"{path} is not what it should be: SHA-256 {found}; delete it to fetch it again")
    return paths


def _fetch(cache: Path) -> None:
    if shutil.which("mvn") is None:
        raise Unavailable("Spark's Kafka connector is fetched by mvn, which is not on the PATH")
    command = ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={cache}"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_FETCH_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"mvn could not fetch Spark's Kafka connector: {error}") from None

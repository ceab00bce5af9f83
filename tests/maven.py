"""Jars of Maven artifacts that a pom names, fetched once into the user's cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

_FETCH_S: Final = 300
_COMPLETE: Final = "complete"


class Unavailable(RuntimeError):
    """They cannot be had here; the sentence says why."""


def fetched(pom: Path, name: str) -> Path:
    """The folder of the jars, called `name` in the cache. Raises Unavailable."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hapax" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two at once, one fails over what the other has written half
        if (folder / _COMPLETE).exists():
            return folder
        if shutil.which("mvn") is None:
            raise Unavailable(f"{name} is fetched by mvn, which is not on the PATH")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        try:
            subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True, capture_output=True, timeout=_FETCH_S)
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"mvn could not fetch {name}: {error.stdout.decode(errors='replace')[-1000:]}") from None
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"mvn could not fetch {name}: {error}") from None
        (folder / _COMPLETE).touch()
    return folder

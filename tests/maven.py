"""Jars of Maven artifacts that a pom names, fetched once into the user's cache, and what is built once into it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

_FETCH_S: Final = 300
_COMPLETE: Final = "complete"


class Unavailable(RuntimeError):
    """They cannot be had here; the sentence says why."""


def fetched(pom: Path, name: str) -> Path:
    """The folder of the jars, called `name` in the cache. Raises Unavailable."""
    with _locked(name) as folder:
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


def built(name: str, inputs: Sequence[Path], build: Callable[[Path], None]) -> Path:
    """A folder of the cache that `build` has filled from these files: a change of one makes another folder."""
    with _locked(f"{name}-{digest(inputs)}") as folder:
        if not (folder / _COMPLETE).exists():
            build(folder)
            (folder / _COMPLETE).touch()
    return folder


def digest(inputs: Sequence[Path]) -> str:
    """Sixteen hex digits for the names and contents of these files."""
    return hashlib.sha256(b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in inputs)).hexdigest()[:16]


@contextlib.contextmanager
def _locked(name: str) -> Iterator[Path]:
    """Of two processes at once, the second waits, and finds what the first has made."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hapax" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder

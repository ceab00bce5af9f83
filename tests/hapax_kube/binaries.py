"""Finds the Kubernetes binaries of the tests, and builds them once if there is a Go toolchain (scripts/kubernetes)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_BUILD: Final = ROOT / "scripts" / "kubernetes" / "build.sh"
_NOT_BUILT: Final = 4


class NoKubernetes(Exception):
    """Says why there are no binaries, and how to get them."""


def find() -> Path | None:
    """The folder of the binaries, or None if they are not built."""
    done = subprocess.run([_BUILD, "--find"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, _NOT_BUILT):
        raise NoKubernetes(done.stderr.strip())
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def build(timeout_s: float = 1200) -> Path:
    """Finds the binaries or builds them, with a message on stderr. Raises NoKubernetes."""
    try:
        done = subprocess.run([_BUILD], stdout=subprocess.PIPE, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise NoKubernetes(f"building Kubernetes was aborted after {timeout_s:.0f} s") from None
    if done.returncode:
        raise NoKubernetes(f"Kubernetes cannot be built here (exit code {done.returncode})")
    return Path(done.stdout.strip())


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "hapax"

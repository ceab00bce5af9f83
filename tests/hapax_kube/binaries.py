"""Where the Kubernetes of the tests is, and building it once where there is a Go toolchain (scripts/kubernetes)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_BUILD: Final = ROOT / "scripts" / "kubernetes" / "build.sh"
_NOT_BUILT: Final = 4


class NoKubernetes(Exception):
    """One sentence: why there are no binaries, and what would bring them."""


def find() -> Path | None:
    """The folder of the binaries; None where they are not built."""
    done = subprocess.run([_BUILD, "--find"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, _NOT_BUILT):
        raise NoKubernetes(done.stderr.strip())
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def build(timeout_s: float = 1200) -> Path:
    """Finds or builds them; says so on stderr. Raises NoKubernetes."""
    try:
        done = subprocess.run([_BUILD], stdout=subprocess.PIPE, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise NoKubernetes(f"building Kubernetes took more than {timeout_s:.0f} s and was given up") from None
    if done.returncode:
        raise NoKubernetes(f"Kubernetes cannot be built here (exit code {done.returncode})")
    return Path(done.stdout.strip())


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "hapax"

"""The images of the tests' Kubernetes cluster, built if they are missing (scripts/images)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from hapax_kube.binaries import ROOT, NoKubernetes

_BUILD: Final = ROOT / "scripts" / "images" / "build.py"
HAPAX: Final = "localhost/hapax:test"
SPARK: Final = "localhost/hapax-spark:test"
ETCD: Final = "localhost/etcd:3.6.16"
USUAL: Final = ("pause", "etcd", "hapax")
"""The images that every cluster of the tests needs."""
DEMO_IMAGES: Final = (*USUAL, "hapax-spark")
"""The images that `hapax_kube demo` needs."""


def build_images(*names: str) -> dict[str, Path]:
    """Image name -> archive; without `names`, of the usual images. Raises NoKubernetes."""
    command = [sys.executable, str(_BUILD), *(names or USUAL)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise NoKubernetes(f"the images cannot be built here (exit code {done.returncode})")
    return {name: Path(path) for name, path in (line.split(" ", 1) for line in done.stdout.splitlines())}

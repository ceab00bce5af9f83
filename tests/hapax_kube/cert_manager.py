"""cert-manager from its Go module: its resource definitions, for what the chart renders for it, and its controllers,
which `python -m hapax_kube.cert_manager` builds (three minutes of two processors).

Its programs are Go modules of their own, which are not published. Its controllers are packages of the published module;
`scripts/kubernetes/cert_manager` runs those that issue certificates of authorities that cert-manager keeps itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from hapax_kube.binaries import ROOT, cache
from hapax_kube.go_modules import folder

_MODULE: Final = "github.com/cert-manager/cert-manager@v1.21.2"
_SUM: Final = "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68="


def definitions() -> Path | None:
    """The folder with the definitions; None: there is no Go toolchain, or the module cannot be had."""
    found = folder(_MODULE, _SUM)
    return None if found is None else found / "deploy" / "crds"


_SOURCE: Final = ROOT / "scripts" / "kubernetes" / "cert_manager"


def controllers() -> Path:
    """The program in the user's cache, which may not exist yet. Its name is a hash of what it is built from."""
    parts = b"".join((_SOURCE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    return cache() / f"cert-manager-{hashlib.sha256(parts).hexdigest()[:16]}"


def build() -> None:
    """Raises CalledProcessError, OSError where there is no Go toolchain."""
    program = controllers()
    program.parent.mkdir(parents=True, exist_ok=True)
    with open(program.parent / "cert-manager.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a process that waited here finds the result
        if not program.exists():
            made = program.with_suffix(".new")
            flags = "-trimpath -buildvcs=false -mod=readonly"
            subprocess.run(
                ["nice", "-n", "10", "go", "build", "-ldflags", "-s -w", "-o", str(made), "."], check=True, cwd=_SOURCE,
                env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": flags})
            made.replace(program)


if __name__ == "__main__":
    build()
    sys.stdout.write(f"{controllers()}\n")

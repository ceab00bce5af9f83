"""A world for a cluster: a program in network, process and mount namespaces of its own, of which nothing is left.

`run_in_world(command)` runs it there and cleans up however it ends: the kernel ends every process of the world with
its first one, and its mounts and links with them; cgroups and the folder are removed here. A world whose keeper was
killed is swept by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from hapax_kube.binaries import cache
from hapax_kube.node import CGROUPS, hierarchies, remove_cgroup

FOLDER: Final = "HAPAX_KUBE_WORLD"
"""The variable by which what runs in a world knows its folder."""
_WORLDS: Final = cache() / "worlds"
_PREFIX: Final = "hapax-kube-"
_END_S: Final = 60.0


_PACKAGES: Final = {
    "runc": "runc", "nft": "nftables", "ip": "iproute2", "unshare": "util-linux", "mount": "mount",
    "openssl": "openssl",
}  # fmt: skip
"""Programs that nodes need, and what Debian calls the packages they are in."""


def install_missing() -> None:
    """Where this is root's Debian; elsewhere `why_not` tells what is missing."""
    packages = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {', '.join(packages)}", file=sys.stderr)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", "-qq", *words], stdout=subprocess.DEVNULL, env=environment, check=False)


def why_not() -> str:
    """Why there can be no world here; empty: there can."""
    if os.geteuid() != 0:
        return "namespaces and cgroups need root"
    if sys.platform != "linux":
        return "namespaces and cgroups are Linux's"
    if not hierarchies() or not (CGROUPS / "freezer").is_dir():
        return "the nodes are made for cgroup v1, which is not mounted here"
    missing = [name for name in _PACKAGES if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


class World:
    """Holds a folder as long as it lives."""

    def __init__(self) -> None:
        sweep()
        self.name = _PREFIX + secrets.token_hex(3)
        self.folder = _WORLDS / self.name
        self.folder.mkdir(parents=True)
        self._lock = open(self.folder / "lock", "w")  # noqa: SIM115 - held while the world is
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, command: list[str], environment: Mapping[str, str], keep: Sequence[int]) -> None:
        self.process = subprocess.Popen(
            ["unshare", "--net", "--pid", "--mount", "--propagation=private", "--fork", "--kill-child", "--mount-proc",
             sys.executable, "-m", "hapax_kube.inside", *command],
            env={**environment, FOLDER: str(self.folder)}, pass_fds=keep)  # fmt: skip

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait()

    def end(self) -> None:
        """Everything in it, and what it leaves."""
        if self.process is not None and self.process.poll() is None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            for child in children:
                os.kill(int(child), signal.SIGKILL)
            limit = time.monotonic() + _END_S
            while self.process.poll() is None and time.monotonic() < limit:
                _thaw_all(self.name)  # what stands still does not end
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.2)
        _clean(self.folder)
        self._lock.close()


def run_in_world(command: list[str], environment: Mapping[str, str], keep: Sequence[int] = ()) -> int:
    """The command's exit code. SIGINT, which a terminal sends to it as well, gives it a minute to end by itself;
    SIGTERM ends everything. `keep`: descriptors that it has, too."""
    world = World()

    def stop(number: int, frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        world.start(command, environment, keep)
        return world.wait()
    except KeyboardInterrupt:
        assert world.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            world.process.wait(_END_S)
        return 130
    finally:
        world.end()
        left = leftovers(world.name)
        if left:
            print("LEFT BEHIND:", *left, sep="\n  ", file=sys.stderr)


def sweep() -> None:
    """Removes what worlds left whose keepers were killed."""
    for folder in _WORLDS.glob(f"{_PREFIX}*"):
        try:
            with open(folder / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clean(folder)
        except FileNotFoundError:
            _clean(folder)
        except BlockingIOError:
            continue  # it lives


def leftovers(name: str) -> list[str]:
    """What there still is of a world: processes, mounts, cgroups, files."""
    found = [f"process {pid}: {words}" for pid, words in _processes() if name in words]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if name in line]
    found += [f"cgroup {each / name}" for each in hierarchies() if (each / name).exists()]
    if (_WORLDS / name).exists():
        found.append(f"folder {_WORLDS / name}")
    return found


def _processes() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _thaw_all(name: str) -> None:
    for state in (CGROUPS / "freezer" / name).glob("**/freezer.state"):
        with contextlib.suppress(OSError):
            state.write_text("THAWED")


def _clean(folder: Path) -> None:
    name = folder.name
    _thaw_all(name)
    limit = time.monotonic() + _END_S
    while any(procs.read_text() for each in hierarchies() for procs in (each / name).glob("**/cgroup.procs")):
        if time.monotonic() > limit:
            break
        time.sleep(0.1)
    remove_cgroup(name)
    shutil.rmtree(folder, ignore_errors=True)

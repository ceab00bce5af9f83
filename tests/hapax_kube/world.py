"""A sandbox ("world") for a cluster: a program in its own network, process and mount namespaces, removed completely.

`run_in_world(command)` runs the command in a sandbox and cleans up however it ends. The kernel ends every process of
the sandbox with its first one, and removes mounts and links; this module removes cgroups and the folder. If the process
that keeps a sandbox was killed, the next run removes what is left.

    python -m hapax_kube.world COMMAND   runs a command in a sandbox
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
"""The environment variable with the sandbox's folder."""
_WORLDS: Final = cache() / "worlds"
_PREFIX: Final = "hapax-kube-"
_END_S: Final = 60.0
INTERRUPTED: Final = 130
"""The exit code after SIGINT."""


_PACKAGES: Final = {
    "runc": "runc", "nft": "nftables", "ip": "iproute2", "unshare": "util-linux", "mount": "mount",
    "openssl": "openssl",
}  # fmt: skip
"""Programs that nodes need -> Debian's packages."""


def install_missing() -> None:
    """Installs missing programs, for root on Debian. Elsewhere `why_not` reports what is missing."""
    packages = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {', '.join(packages)}", file=sys.stderr)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", "-qq", *words], stdout=subprocess.DEVNULL, env=environment, check=False)


def why_not() -> str:
    """Why a sandbox cannot be created here; empty if it can."""
    if os.geteuid() != 0:
        return "namespaces and cgroups need root"
    if sys.platform != "linux":
        return "namespaces and cgroups need Linux"
    if not hierarchies() or not (CGROUPS / "freezer").is_dir():
        return "nodes need cgroup v1, which is not mounted here"
    missing = [name for name in _PACKAGES if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


class World:
    """Holds a folder while the sandbox exists."""

    def __init__(self) -> None:
        with _alone():  # until its lock is held, its folder looks like one that was left
            _sweep()
            self.name = _PREFIX + secrets.token_hex(3)
            self.folder = _WORLDS / self.name
            self.folder.mkdir()
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
        """Ends all processes of the sandbox and removes what they leave."""
        if self.process is not None and self.process.poll() is None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            for child in children:
                os.kill(int(child), signal.SIGKILL)
            limit = time.monotonic() + _END_S
            while self.process.poll() is None and time.monotonic() < limit:
                _thaw_all(self.name)  # a frozen process does not end
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.2)
        _clean(self.folder)
        self._lock.close()


def run_in_world(command: list[str], environment: Mapping[str, str], keep: Sequence[int] = ()) -> int:
    """Returns the command's exit code. After SIGINT, which a terminal sends to the command as well, the command has a
    minute to end by itself; SIGTERM ends everything. `keep`: file descriptors that it inherits."""
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
        return INTERRUPTED
    finally:
        world.end()
        left = leftovers(world.name)
        if left:
            print("LEFT BEHIND:", *left, sep="\n  ", file=sys.stderr)


@contextlib.contextmanager
def _alone(operation: int = fcntl.LOCK_EX) -> Iterator[None]:
    """While no other process makes or sweeps sandboxes. `operation`: of flock."""
    _WORLDS.mkdir(parents=True, exist_ok=True)
    with open(_WORLDS / "lock", "w") as lock:
        fcntl.flock(lock, operation)
        yield


def _sweep() -> None:
    """Removes what is left of sandboxes whose keepers were killed."""
    for folder in _WORLDS.glob(f"{_PREFIX}*"):
        try:
            with open(folder / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clean(folder)
        except FileNotFoundError:
            _clean(folder)
        except BlockingIOError:
            continue  # the sandbox is in use


def leftovers(name: str) -> list[str]:
    """What is left of a sandbox: processes, mounts, cgroups, files."""
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


if __name__ == "__main__":
    sys.exit(run_in_world(sys.argv[1:], os.environ))

"""A network namespace for each node, joined by one bridge. nft drops or refuses packets between two of them.

Names begin with `hxc` and the harness's pid, so that a later run can remove the remains of a harness that was killed.
Everything here runs as root. `missing()` returns what else is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_NAMESPACES: Final = Path("/run/netns")
_TABLE: Final = "inet chaos"


def missing() -> str:
    """Why namespaces and packet filters are not possible here. Empty: they are possible."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "nft"):
        if shutil.which(tool) is None:
            return f"needs `{tool}`"
    made = subprocess.run(["unshare", "--net", "nft", "add table inet chaos"], capture_output=True, text=True)
    return "" if made.returncode == 0 else f"nft: {made.stderr.strip()}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class Bridge:
    """Namespaces `hxc<pid>-<name>` with one address each on one bridge, on which the harness is the first host."""

    def __init__(self, names: Iterable[str]) -> None:
        remove_leftovers()
        pid = os.getpid()
        self._bridge = f"hxc{pid}"
        self._prefix = f"10.213.{pid % 250 + 1}"
        self.addresses = {name: f"{self._prefix}.{number}" for number, name in enumerate(names, start=10)}
        self.host = f"{self._prefix}.1"
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{self.host}/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for number, (name, address) in enumerate(self.addresses.items()):
                self._join(self.namespace(name), f"hxc{pid}v{number}", address)
        except OSError:
            self.close()
            raise

    def namespace(self, name: str) -> str:
        return f"{self._bridge}-{name}"

    def _join(self, namespace: str, device: str, address: str) -> None:
        _run("ip", "netns", "add", namespace)
        _run("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "link", "set", device, "master", self._bridge, "up")
        for words in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _run("ip", "-n", namespace, *words.split())

    def drop(self, source: str, target: str, percent: int = 100) -> None:
        """Drops packets from one to the other, all or that share of them. The opposite direction stays open."""
        share = "" if percent == 100 else f"numgen random mod 100 < {percent} "
        self._rule(source, f"ip daddr {self._address(target)} {share}drop")

    def reset(self, source: str, target: str) -> None:
        """Answers every TCP segment from one to the other with a reset: connections break, and new ones fail."""
        self._rule(source, f"ip daddr {self._address(target)} meta l4proto tcp reject with tcp reset")

    def heal(self) -> None:
        for name in self.addresses:
            self._nft(name, f"add table {_TABLE}", f"delete table {_TABLE}")

    def _address(self, name: str) -> str:
        return self.addresses.get(name, self.host)

    def _rule(self, source: str, rule: str) -> None:
        self._nft(
            source, f"add table {_TABLE}", f"add chain {_TABLE} out {{ type filter hook output priority 0; }}",
            f"add rule {_TABLE} out {rule}",
        )

    def _nft(self, name: str, *commands: str) -> None:
        _run("ip", "netns", "exec", self.namespace(name), "nft", "; ".join(commands))

    def close(self) -> None:
        for namespace in _namespaces(self._bridge):
            _run("ip", "netns", "delete", namespace)
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True)


def _namespaces(bridge: str) -> list[str]:
    if not _NAMESPACES.is_dir():
        return []
    return sorted(path.name for path in _NAMESPACES.iterdir() if path.name.startswith(f"{bridge}-"))


def remove_leftovers() -> None:
    """Removes what harnesses that no longer live left behind."""
    shown = subprocess.run(["ip", "-o", "link", "show", "type", "bridge"], capture_output=True, text=True).stdout
    left = set(re.findall(r"\bhxc(\d+)\b", shown))
    if _NAMESPACES.is_dir():
        left |= {found[1] for path in _NAMESPACES.iterdir() if (found := re.match(r"hxc(\d+)-", path.name))}
    for pid in left:
        if not Path(f"/proc/{pid}").exists():
            for namespace in _namespaces(f"hxc{pid}"):
                _run("ip", "netns", "delete", namespace)
            subprocess.run(["ip", "link", "delete", f"hxc{pid}"], capture_output=True)

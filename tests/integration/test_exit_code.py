"""What a process returns when something fails while it ends: a process of its own, with a service that fails so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FAILS = """
import sys
from hapax.runtime.process import run

class Service:
    def __init__(self, lost): self.lost = lost
    def ready(self): return ""
    def handed_over(self): return True
    async def drain(self):
        if sys.argv[1] == "drain": self.lost("the disk failed")
        if sys.argv[1] == "linger": asyncio.get_running_loop().call_later(0.1, self.lost, "the disk failed")
        if sys.argv[1] == "again": asyncio.get_running_loop().call_later(0.1, self.lost, "")
    async def close(self):
        if sys.argv[1] == "close": self.lost("the disk failed")

async def start(ports, settings, *, on_lost, http_address, metrics):
    asyncio.get_running_loop().call_soon(on_lost, "")
    return Service(on_lost)

import asyncio
sys.exit(run([each for word in sys.argv[2:] for each in ("--set", word)], "pid", start, keeps_data=False))
"""
"""The first argument says when."""


@pytest.mark.parametrize(("when", "code"), [("drain", 1), ("linger", 1), ("close", 1), ("again", 0)])
def test_what_fails_while_a_process_ends_is_its_reason(when: str, code: int, tmp_path: Path) -> None:
    linger_ms = 0 if when == "close" else 60_000
    done = subprocess.run(
        [sys.executable, "-c", FAILS, when, "node.id=200", "cluster.id=c", "etcd.endpoints=127.0.0.1:1",
         f"log.dir={tmp_path}", "http.listen=127.0.0.1:0", f"shutdown.linger.ms={linger_ms}"],
        capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "the disk failed" in done.stderr) == (code, bool(code)), done.stderr

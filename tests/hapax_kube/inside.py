"""The first process of a sandbox: `python -m hapax_kube.inside COMMAND ...` runs COMMAND and ends with its exit code.

Processes of the sandbox that lose their parent become children of this one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from hapax_kube.node import run


def main(command: list[str]) -> int:
    run("ip", "link", "set", "lo", "up")
    child = subprocess.Popen(command, close_fds=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the command receives the signal too and ends; then this process does
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

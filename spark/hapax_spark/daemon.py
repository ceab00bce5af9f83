"""Spark's daemon of Python workers, with `spark.python.daemon.module=hapax_spark.daemon`: saves 40 ms in each task.

Spark's JVM sends a task in several small writes. The kernel holds a write back until the previous one is acknowledged
(Nagle's algorithm), and the kernel of a worker that has just answered delays the acknowledgement by 40 ms. Here it
acknowledges the writes of each task at once.

The daemon forks, so it must not have threads: this module imports neither Arrow nor gRPC.
"""

from __future__ import annotations

import contextlib
import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Runs one task. The kernel forgets the option after the worker's answer, so each task sets it."""
    if sock.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK"):
        with contextlib.suppress(OSError):  # some sandboxes lack the option; then a task takes 40 ms longer
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _worker(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()

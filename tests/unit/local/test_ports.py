"""Ports of a local cluster, which its processes bind some time after they were chosen."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hapax.local import folder
from hapax.local.folder import LocalClusterError, free_port


def test_a_port_that_is_held_is_no_other_cluster_s_and_its_server_can_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[socket.socket] = []
    port = free_port(set(), held)
    # The next caller draws this port again and again.
    monkeypatch.setattr(folder.secrets, "randbelow", lambda most: _drawn_for(port))
    with pytest.raises(LocalClusterError):
        free_port(set())
    for _ in range(2):  # also when it is restarted
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port)):
                server.accept()[0].close()
            with pytest.raises(LocalClusterError):
                free_port(set())
    held.pop().close()


def _drawn_for(port: int) -> int:
    """What has to be drawn for this port."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return port - (10_000 if low > 12_000 else 1_024)

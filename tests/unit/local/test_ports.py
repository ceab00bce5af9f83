"""Ports of a local cluster, which its processes bind some time after they were chosen."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hapax.local import folder
from hapax.local.folder import Folder, LocalClusterError, free_port, hold_port
from hapax.local.runner import Runner, parse
from integration.etcd_process import held_ports


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


def test_a_port_that_a_person_names_is_held_as_one_that_was_drawn() -> None:
    """Two clusters that start at once and are given one port: the second was told so by its broker, seconds later."""
    held: list[socket.socket] = []
    port = free_port(set(), held)
    with pytest.raises(OSError):
        hold_port(port)
    for each in held:
        each.close()
    mine = hold_port(port)
    for _ in range(2):
        with pytest.raises(OSError):
            hold_port(port)
        _serve_once(port)
    for each in mine:
        each.close()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError):
        hold_port(port)
    for each in hold_port(port):
        each.close()


def test_of_two_clusters_that_start_at_once_one_has_the_port_that_both_were_given(tmp_path: Path) -> None:
    """It is refused at once, and not by its broker's end seconds later."""
    port = free_port(set())
    first, second = (Folder(tmp_path / name) for name in ("first", "second"))
    runners = []
    for place in (first, second):
        place.create()
        runners.append(Runner(place, parse(["--dir", str(place.path), "--port", str(port)])))
    runners[0]._plan()
    with pytest.raises(LocalClusterError, match=f"port {port} is taken"):
        runners[1]._plan()
    for each in runners[0]._held:
        each.close()


def test_connections_of_a_server_that_has_ended_keep_no_cluster_from_its_port() -> None:
    """`hapax local down`, then `up` at the same port: the kernel remembers the server's connections for a minute."""
    port = free_port(set())
    _serve_once(port)
    with socket.socket() as probe, pytest.raises(OSError):
        probe.bind(("127.0.0.1", port))
    held = hold_port(port)
    _serve_once(port)
    for each in held:
        each.close()


def _serve_once(port: int) -> None:
    """A server as the services' are. It closes the connection first."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""


def _drawn_for(port: int) -> int:
    """What has to be drawn for this port."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return port - (10_000 if low > 12_000 else 1_024)


def test_ports_of_a_test_s_processes_are_held_as_long_as_their_owner_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world of processes binds its ports seconds after they were drawn, and again after each restart."""

    class Owner:
        pass

    owner = Owner()
    (port,) = held_ports(owner, 1)
    monkeypatch.setattr(folder.secrets, "randbelow", lambda most: _drawn_for(port))
    with pytest.raises(LocalClusterError):
        free_port(set())
    _serve_once(port)
    del owner
    assert free_port(set()) == port

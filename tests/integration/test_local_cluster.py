"""`hapax local`: what it prints, what it starts, and that nothing of it is left behind however it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hapax.local.cluster import LocalCluster
from hapax.local.folder import ClusterState, Folder, LocalClusterError, alive, free_port, start_time

HAPAX = [sys.executable, "-m", "hapax.cli.main"]


def hapax(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HAPAX, *words], capture_output=True, text=True, timeout=timeout, check=False)


def wait_gone(pids: list[int], timeout: float = 10) -> None:
    """Until the kernel says that each process ended."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended = select.poll()  # not select(): other tests' files may have taken the first 1,024 descriptors
            ended.register(descriptor, select.POLLIN)
            assert ended.poll(timeout * 1000), f"process {pid} is left behind"
        finally:
            os.close(descriptor)


def all_pids(state: ClusterState) -> list[int]:
    return [state.runner_pid, *(process.pid for process in state.processes)]


@pytest.fixture(scope="module")
def detached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Folder and bootstrap of a cluster that the command itself started."""
    folder = tmp_path_factory.mktemp("local")
    done = hapax("local", "up", "--dir", str(folder), "--port", "0", "--set", "num.partitions=3", "--detach")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ready bootstrap=127.0.0.1:")
    yield folder, done.stdout.strip().removeprefix("ready bootstrap=")
    LocalCluster(folder).down()


def test_status_lists_every_process(detached: tuple[Path, str]) -> None:
    folder, bootstrap = detached
    done = hapax("local", "status", "--dir", str(folder), "--json")
    assert done.returncode == 0
    status = json.loads(done.stdout)
    assert status["bootstrap"] == bootstrap
    named = {process["name"]: process for process in status["processes"]}
    assert sorted(named) == ["broker-0", "controller-0", "coordinator-0", "etcd", "pid-0"]
    assert named["broker-0"]["role"] == "broker"
    assert f"127.0.0.1:{named['broker-0']['port']}" == bootstrap
    for process in named.values():
        assert start_time(process["pid"]) > 0
        socket.create_connection(("127.0.0.1", process["port"]), timeout=5).close()
    assert "broker-0" in hapax("local", "status", "--dir", str(folder)).stdout


def test_a_folder_has_one_runner(detached: tuple[Path, str]) -> None:
    done = hapax("local", "up", "--dir", str(detached[0]), "--port", "0", "--detach")
    assert (done.returncode, done.stdout) == (1, "")
    assert "runs in" in done.stderr


def test_kill_is_sigkill_and_restart_brings_it_back(detached: tuple[Path, str]) -> None:
    cluster = LocalCluster(detached[0])
    before = cluster.status().process("coordinator-0")
    assert hapax("local", "kill", "coordinator-0", "--dir", str(detached[0])).returncode == 0
    assert not alive(before.pid, before.start_time)
    assert cluster.status().process("coordinator-0").state == "killed SIGKILL"
    assert hapax("local", "status", "--dir", str(detached[0])).returncode == 3
    assert hapax("local", "restart", "coordinator-0", "--dir", str(detached[0])).returncode == 0
    after = cluster.status().process("coordinator-0")
    assert after.pid != before.pid
    assert (after.port, after.rpc_port, after.state) == (before.port, before.rpc_port, "running")
    refused = hapax("local", "kill", "broker-7", "--dir", str(detached[0]))
    assert refused.returncode == 1
    assert "there are etcd" in refused.stderr


def test_down_leaves_nothing_and_keeps_the_data(tmp_path: Path, cluster_factory) -> None:  # type: ignore[no-untyped-def]
    cluster = cluster_factory(brokers=2, coordinators=2)
    state = cluster.status()
    assert len(state.processes) == 7
    done = hapax("local", "down", "--dir", str(cluster.folder.path))
    assert done.returncode == 0, done.stderr
    wait_gone(all_pids(state))
    assert hapax("local", "down", "--dir", str(cluster.folder.path)).returncode == 3
    for process in state.processes:
        assert "Traceback" not in cluster.log(process.name)
    with pytest.raises(LocalClusterError, match="holds the data of 2 brokers"):
        cluster.up(brokers=1, owned=True)
    again = cluster.up(owned=True)
    assert again.cluster_id == state.cluster_id
    assert {"broker-0", "broker-1", "coordinator-0"} <= {process.name for process in again.processes}


def test_in_the_foreground_it_ends_with_ctrl_c(tmp_path: Path) -> None:
    command = [*HAPAX, "local", "up", "--dir", str(tmp_path), "--port", "0"]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert runner.stdout is not None
        assert runner.stdout.readline().startswith("ready bootstrap=127.0.0.1:")
        state = LocalCluster(tmp_path).status()
        assert state.runner_pid == runner.pid
        runner.send_signal(signal.SIGINT)
        output, errors = runner.communicate(timeout=40)
        assert (runner.returncode, output) == (0, "")
        assert errors == "Open to every process of this computer, without TLS or logins; --secure closes it.\n"
        wait_gone(all_pids(state))
    finally:
        runner.kill()
        runner.wait()


def test_nothing_outlives_a_runner_that_was_killed(cluster_factory) -> None:  # type: ignore[no-untyped-def]
    cluster = cluster_factory()
    state = cluster.status()
    os.kill(state.runner_pid, signal.SIGKILL)
    wait_gone(all_pids(state))
    assert hapax("local", "status", "--dir", str(cluster.folder.path)).returncode == 3
    again = cluster.up(owned=True)  # its data and its folder are fit for another run
    os.kill(again.runner_pid, signal.SIGKILL)
    cluster.up(owned=True)  # at once, while the former processes may still be ending


def test_an_owned_cluster_ends_with_its_owner(tmp_path: Path) -> None:
    script = (
        "import sys, os; from hapax.local.cluster import LocalCluster\n"
        "state = LocalCluster(sys.argv[1]).up(owned=True)\n"
        "print(state.to_json().replace('\\n', ''), flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_gone(all_pids(ClusterState.from_json(done.stdout)), timeout=40)


def test_a_stale_pid_is_never_killed(tmp_path: Path) -> None:
    """The state of a runner that was killed names a pid that the system has since given to somebody else."""
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        folder = Folder(tmp_path)
        folder.create()
        state = ClusterState("c", "127.0.0.1:1", bystander.pid, 1)
        from hapax.local.folder import ProcessState

        state.processes.append(ProcessState("broker-0", "broker", 0, 1, 2, 3, bystander.pid, 12345, "running"))
        folder.write_state(state)
        assert LocalCluster(tmp_path).down() is False
        assert bystander.poll() is None
        assert folder.read_state() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "log.segment.byte=1"], "did you mean log.segment.bytes?"),
        (["--set", "num.partitions=none"], "integer"),
        (["--set", "node.id=4"], "set by the local cluster itself"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, words: list[str], message: str
) -> None:
    done = hapax("local", "up", "--dir", str(tmp_path), "--port", "0", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        port = free_port(set())
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(LocalClusterError, match=f"port {port} is taken"):
            LocalCluster(tmp_path).up(port=port)
    assert not Folder(tmp_path).is_owned()

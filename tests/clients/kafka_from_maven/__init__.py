"""Apache Kafka as the yardstick: a real broker from its Maven artifacts, KRaft combined mode; others may join it.

The pom beside this file names the version. Jars are fetched once into the user's cache; where `mvn` (with nothing in
the cache) or `java` is missing, the tests that need the broker skip and say so.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from integration.etcd_process import dies_with_parent, held_ports
from maven import Unavailable, fetched

_POM = Path(__file__).with_name("pom.xml")
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
_START_SECONDS = 60
_SHORT_LIVED: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx384m")
AS_KAFKA_STARTS_IT: Final = (
    "-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)
"""The options of Kafka's own start script: for measurements."""


def version() -> str:
    found = re.search(r"<kafka\.version>(.+?)<", _POM.read_text())
    assert found is not None
    return found.group(1)


def jars() -> str:
    """The class path, fetched if need be. Skips the test where that is impossible."""
    if shutil.which("java") is None:
        pytest.skip("Apache Kafka needs java, which is not on the PATH")
    try:
        return str(fetched(_POM, f"kafka-{version()}") / "*")
    except Unavailable as error:
        pytest.skip(str(error))


class KafkaFromMaven:
    """A broker in a folder of its own; `kill` is SIGKILL, `start` again reads what is on the disk."""

    def __init__(
        self, folder: Path, node_id: int = 1, joins: KafkaFromMaven | None = None, *,
        java: Sequence[str] = _SHORT_LIVED, settings: Sequence[str] = (), owned: bool = False,
    ) -> None:
        """`joins`: the process that is the controller too; without it, this one is. `java`: options of the JVM.
        `settings`: lines of server.properties that take precedence. `owned`: it ends with the thread that starts it,
        however that ends."""
        self._folder = folder
        self._jars = jars()
        self._options = java
        self._node_id = node_id
        self._joins = joins
        self._owned = owned
        self._port, self._controller_port = held_ports(self, 2)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = folder / "server.properties"
        self._settings.write_text(self._properties() + "\n".join(settings))
        format_command = [*self._java(), "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", self._settings]
        subprocess.run(format_command, check=True, capture_output=True, timeout=_START_SECONDS)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def pid(self) -> int:
        """While it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when the broker accepts connections."""
        log = (self._folder / "server.log").open("ab")
        command = [*self._java(), "kafka.Kafka", str(self._settings)]
        self._process = subprocess.Popen(
            dies_with_parent(command) if self._owned else command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        log.close()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("Apache Kafka did not start:\n" + self.log()[-2000:])
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def log(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")

    def _java(self) -> list[str]:
        return [shutil.which("java") or "java", *self._options, "-cp", self._jars]

    def _properties(self) -> str:
        leader, broker = self._joins or self, f"127.0.0.1:{self._port}"
        controller = f"127.0.0.1:{leader._controller_port}"
        own = "" if self._joins else f",CONTROLLER://{controller}"
        return f"""
process.roles=broker{"" if self._joins else ",controller"}
node.id={self._node_id}
controller.quorum.voters={leader._node_id}@{controller}
listeners=PLAINTEXT://{broker}{own}
advertised.listeners=PLAINTEXT://{broker}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={self._folder / "data"}
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
log.flush.interval.messages=1
"""

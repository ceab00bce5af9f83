"""What a closed cluster costs: produce, fetch and transactions with TLS on every port, logins and ACLs, beside an open
one. Both are up at the same time and take turns of a second, because other programs of the computer disturb all alike.
CPU is that of broker and coordinator together; the rate has the client's share of encryption too.
"""

from __future__ import annotations

import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bench.bench_fetch import BATCH_BYTES, FETCH_BYTES
from bench.bench_produce import IN_FLIGHT, PARTITIONS
from bench.bench_transactions import transaction
from bench.figures import record
from bench.raw_client import Drain, Flood, Login, cpu_seconds, flood
from hapax.client.admin import NewTopic
from hapax.client.blocking import Admin
from hapax.client.properties import read_properties
from hapax.client.users import ScramUpsertion
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import user
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.local.cluster import LocalCluster
from hapax.local.secure import CLIENTS, SecureFolder

TURNS: Final = 10
TURN_S: Final = 1.0
LOG_BYTES: Final = 64 << 20
OTHERS: Final = 1_000
"""ACLs of other users."""
LOGIN: Final = Login("bench", "of the benchmark")
TOPICS: Final = {"bench-flood": PARTITIONS, "bench-drain": 1, "bench-transactions": 2}
SETTINGS: Final = ("durability=page-cache",)
SECURE: Final = ("sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN",)


class Side:
    """One of the two clusters, and its clients."""

    def __init__(self, folder: Path, *, secure: bool) -> None:
        self.cluster = LocalCluster(folder)
        state = self.cluster.up(owned=True, secure=secure, port=0, settings=[*SETTINGS, *(SECURE if secure else ())])
        self._pids = [each.pid for each in state.processes if each.role in ("broker", "coordinator")]
        files = SecureFolder(self.cluster.folder)
        authority = str(files.file(f"{CLIENTS}.crt"))
        self._tls = ssl.create_default_context(cafile=authority) if secure else None
        self._login = LOGIN if secure else None
        self._bootstrap = state.bootstrap
        with Admin(read_properties(files.profile) if secure else {"bootstrap.servers": state.bootstrap}) as admin:
            admin.create_topics([NewTopic(name, partitions) for name, partitions in TOPICS.items()])
            if secure:
                _permit(admin)
        self._floods = [self._flood("bench-flood", partition) for partition in range(PARTITIONS)]
        flood(self._floods, TURN_S)
        writer = self._flood("bench-drain", 0)
        while writer.acknowledged * BATCH_BYTES < LOG_BYTES:
            flood([writer], 0.2)
        self._drain = Drain(state.bootstrap, "bench-drain", 0, FETCH_BYTES, self._tls, self._login)
        self._drain.run()
        who = {} if self._login is None else {
            "security.protocol": "SASL_SSL", "ssl.ca.location": authority, "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": LOGIN.user, "sasl.password": LOGIN.password}
        self._producer = Producer({
            "bootstrap.servers": state.bootstrap, "transactional.id": "bench-one", "linger.ms": 0, "log_level": 0,
            **who})
        self._producer.init_transactions(60)
        self.commit()

    def _flood(self, topic: str, partition: int) -> Flood:
        return Flood(self._bootstrap, topic, partition, BATCH_BYTES, IN_FLIGHT, tls=self._tls, login=self._login)

    @property
    def cpu_s(self) -> float:
        return sum(map(cpu_seconds, self._pids))

    def produce(self) -> int:
        """Requests."""
        return flood(self._floods, TURN_S)

    def fetch(self) -> int:
        """Bytes."""
        before = self._drain.bytes
        self._drain.run()
        return self._drain.bytes - before

    def commit(self) -> int:
        """Transactions."""
        count, until = 0, time.monotonic() + TURN_S
        while time.monotonic() < until:
            transaction(self._producer, "bench-transactions")
            count += 1
        return count


def _permit(admin: Admin) -> None:
    def allowed(kind: ResourceType, name: str, who: str) -> Binding:
        return Binding(kind, name, Pattern.PREFIXED, user(who), "*", Operation.ALL, Permission.ALLOW)

    admin.create_acls([
        *(allowed(kind, "bench-", LOGIN.user) for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID)),
        *(allowed(ResourceType.TOPIC, f"of-others-{number}-", f"other-{number}") for number in range(OTHERS))])
    admin.alter_user_scram_credentials([
        ScramUpsertion(LOGIN.user, ScramMechanism.SCRAM_SHA_512, LOGIN.password)])


def beside(sides: dict[str, Side], work: Callable[[Side], int]) -> tuple[float, float]:
    """How many times the CPU of the open cluster the same work takes in the closed one, and how many times its rate
    there is."""
    used, took, done = (dict.fromkeys(sides, 0.0) for _ in range(3))
    for turn in range(TURNS):
        for name in (list(sides), list(sides)[::-1])[turn % 2]:
            cpu, began = sides[name].cpu_s, time.perf_counter()
            done[name] += work(sides[name])
            took[name] += time.perf_counter() - began
            used[name] += sides[name].cpu_s - cpu
    cpu_of, rate_of = ({name: each[name] / done[name] for name in sides} for each in (used, took))
    return cpu_of["closed"] / cpu_of["open"], rate_of["open"] / rate_of["closed"]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        sides: dict[str, Side] = {}
        try:
            for name in ("open", "closed"):
                sides[name] = Side(Path(folder) / name, secure=name == "closed")
            for what, work in (("produce", Side.produce), ("fetch", Side.fetch), ("transactions", Side.commit)):
                cpu, rate = beside(sides, work)
                record(f"secure_{what}_cpu", cpu, "times the open cluster's")
                record(f"secure_{what}_rate", rate, "times the open cluster's")
        finally:
            for side in sides.values():
                side.cluster.down()


if __name__ == "__main__":
    main()

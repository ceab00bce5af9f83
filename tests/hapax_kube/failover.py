"""Measures how soon other brokers lead after a broker's pod or node fails, as clients see it.

This process causes the fault and reads the clock, and brokers give the answers: Kubernetes is not asked.
"""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hapax.client import HapaxError, NewTopic
from hapax.client.blocking import Admin, Producer
from hapax_kube.tools import Release
from integration.waiting import wait_until

PARTITIONS: Final = 30
_SAFE: Final = {"min.insync.replicas": "2"}
_LOOK_EVERY_S: Final = 0.02
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class TakenOver:
    leaders_s: float
    """Time until metadata name another leader for each partition of the lost broker."""
    writes_s: float
    """Time until each of these partitions has acknowledged a write with acks=all."""


class Failovers:
    """A topic and its clients, as a context manager."""

    def __init__(self, release: Release, topic: str) -> None:
        self.release = release
        self.topic = topic
        # A frozen broker keeps its connections, so the client must soon ask another one.
        self._admin = Admin({
            "bootstrap.servers": release.bootstrap, "request.timeout.ms": 500,
            "socket.connection.setup.timeout.ms": 500,
        })
        self._producer = Producer({"bootstrap.servers": release.bootstrap, "linger.ms": 0, "request.timeout.ms": 2000})

    def __enter__(self) -> Failovers:
        with Admin({"bootstrap.servers": self.release.bootstrap}) as admin:
            admin.create_topics([NewTopic(self.topic, PARTITIONS, 3, _SAFE)])
        self._producer.start()
        wait_until(self._connected, "answer of a broker")
        self.wait_whole()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(HapaxError):
            self._admin.delete_topics([self.topic])
        self._producer.close()
        self._admin.close()

    def _connected(self) -> bool:
        with contextlib.suppress(HapaxError):
            self._admin.start()
            return True
        return False

    def leaders(self) -> dict[int, int]:
        (topic,) = (each for each in self._admin.list_topics() if each.name == self.topic)
        return {each.partition: each.leader for each in topic.partitions}

    def wait_whole(self, *, balanced: bool = True) -> None:
        """Waits until every replica of every topic is in sync, and each broker leads partitions."""

        def whole() -> bool:
            try:
                topics = self._admin.list_topics()
            except HapaxError:
                return False
            led = [each.leader for topic in topics if topic.name == self.topic for each in topic.partitions]
            shared = not balanced or all(led.count(each) > PARTITIONS // 5 for each in range(3))
            return shared and all(
                len(each.isr) == len(each.replicas) for topic in topics for each in topic.partitions)

        wait_until(whole, "whole cluster", every_s=0.2)

    def busiest(self) -> int:
        """The broker that leads most partitions."""
        led = list(self.leaders().values())
        return max(sorted(set(led)), key=led.count)

    def measure(self, victim: int, harm: Callable[[], float]) -> TakenOver:
        """`harm` causes the fault and returns its time. Each partition takes a write first, which opens the client's
        connections."""
        before = self.leaders()
        lost = [partition for partition, leader in before.items() if leader == victim]
        assert lost, f"broker {victim} leads no partition"
        self.write(list(before))
        began = harm()
        sent = [self._producer.send(self.topic, b"after", partition=each) for each in lost]
        while True:
            with contextlib.suppress(HapaxError):
                now = self.leaders()
                if all(now[each] not in (victim, -1) for each in lost):
                    break
            assert time.monotonic() - began < _PATIENCE_S, "timed out: not all partitions have leaders"
            time.sleep(_LOOK_EVERY_S)
        leaders_s = time.monotonic() - began
        for delivery in sent:
            delivery.result(_PATIENCE_S)
        return TakenOver(leaders_s, time.monotonic() - began)

    def write(self, partitions: list[int]) -> None:
        for delivery in [self._producer.send(self.topic, b"before", partition=each) for each in partitions]:
            delivery.result(_PATIENCE_S)


def acting_controller(release: Release) -> Any:
    """The operator's pod with the acting controller."""
    for pod in release.pods("operator"):
        url = f"http://{pod['status'].get('podIP')}:8080/metrics"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
            if b"\nhapax_controller_acting 1" in answer.read():
                return pod
    return None

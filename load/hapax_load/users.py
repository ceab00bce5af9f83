"""The users of a load, for locust. Each user has its own client in its own thread.

gevent, which locust uses, makes Python's blocking calls cooperative, but not librdkafka's. Therefore all calls to a
client run in the user's thread, and the user waits for them cooperatively.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

import gevent.threadpool  # type: ignore[import-untyped]
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from locust import FastHttpUser, User, between, events, task
from locust.env import Environment
from locust.exception import StopUser

from hapax_load.connecting import librdkafka
from hapax_load.copier import ANSWER_S, Copier, until_done
from hapax_load.ledger import Fact, Ledger, Outcome
from hapax_load.topics import GROUP, PARTITIONS, PLAIN, TRANSACTIONS, value_of

LEDGER = Ledger()
"""The ledger of this process. A worker sends it to the master."""
BURST = 20
"""Records that are sent together."""
_TRANSACTION_TIMEOUT_MS = 30_000
_ABORT_EVERY = 10

T = TypeVar("T")


class KafkaUser(User):
    abstract = True
    wait_time = between(0.05, 0.15)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.options: Any = environment.parsed_options
        self.writer = uuid.uuid4().hex[:12]
        self.next = 0
        self._thread = gevent.threadpool.ThreadPool(1)

    def on_stop(self) -> None:
        self._thread.apply(self.close)
        self._thread.kill()

    def close(self) -> None:
        """Runs in the user's thread."""

    def settings(self, **more: Any) -> dict[str, Any]:
        return librdkafka(self.options.bootstrap, **{"client.id": self.writer, "log_level": 2, **more})

    def ask(self, name: str, call: Callable[[], T], length: int = 0) -> T | None:
        """Runs the call in the user's thread and counts it as a request. Returns None if it failed."""
        began = time.perf_counter()
        result, failure = None, None
        try:
            result = self._thread.apply(call)
        except KafkaException as error:
            failure = error
        events.request.fire(
            request_type="kafka", name=name, response_time=(time.perf_counter() - began) * 1000,
            response_length=length, exception=failure, context={},
        )
        return result

    def begin(self, topic: str, first: int, count: int) -> Callable[[Outcome], Fact]:
        """Enters records that are about to be sent. The function that it returns enters their outcome."""
        LEDGER.begin(Fact(topic, self.writer, "unknown", first, count))

        def settle(outcome: Outcome) -> Fact:
            fact = Fact(topic, self.writer, outcome, first, count)
            LEDGER.settle(fact)
            return fact

        return settle


class ProduceUser(KafkaUser):
    """Sends bursts from an idempotent producer and waits for each burst's acknowledgements."""

    def on_start(self) -> None:
        self.producer = Producer(self.settings(**{"enable.idempotence": True, "delivery.timeout.ms": 100_000}))

    @task
    def produce(self) -> None:
        first, self.next = self.next, self.next + BURST
        settle = self.begin(PLAIN, first, BURST)
        delivered = self.ask("produce", lambda: self._burst(first), BURST * self.options.record_size)
        settle("kept" if delivered else "torn")

    def _burst(self, first: int) -> bool:
        failed: list[KafkaError] = []

        def reported(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)

        for number in range(first, first + BURST):
            self.producer.produce(
                PLAIN, value_of(self.writer, number, self.options.record_size), str(number), on_delivery=reported)
        left = self.producer.flush(ANSWER_S)
        if failed:
            raise KafkaException(failed[0])
        if left:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left} records without an answer"))
        return True


class TransactionUser(KafkaUser):
    """Transactions over several partitions; every tenth is aborted on purpose."""

    def on_start(self) -> None:
        self.producer: Producer | None = None
        self.count = 0

    def _begin(self) -> Producer:
        if self.producer is None:
            producer = Producer(self.settings(**{
                "transactional.id": f"load-{self.writer}", "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
            }))
            producer.init_transactions(ANSWER_S)
            self.producer = producer
        return self.producer

    @task
    def transact(self) -> None:
        first, self.next = self.next, self.next + BURST
        self.count += 1
        abort = self.count % _ABORT_EVERY == 0
        settle = self.begin(TRANSACTIONS, first, BURST)
        name = "transaction (aborted)" if abort else "transaction"
        settle(self.ask(name, lambda: self._transact(first, abort), BURST * self.options.record_size) or "unknown")

    def _transact(self, first: int, abort: bool) -> Outcome:
        producer = self._begin()
        try:
            producer.begin_transaction()
            for number in range(first, first + BURST):
                producer.produce(
                    TRANSACTIONS, value_of(self.writer, number, self.options.record_size), str(number))
            if abort:
                producer.flush(ANSWER_S)
                return self._aborted(producer)
            return self._committed(producer)
        except KafkaException as error:
            return self._failed(producer, error)

    def _committed(self, producer: Producer) -> Outcome:
        until_done(producer.commit_transaction)
        return "kept"

    def _aborted(self, producer: Producer) -> Outcome:
        until_done(producer.abort_transaction)
        return "withdrawn"

    def _failed(self, producer: Producer, error: KafkaException) -> Outcome:
        """Aborts the transaction if librdkafka demands it. After any other error the next transaction uses a new
        producer, which ends the open one; the outcome is then unknown."""
        if error.args[0].txn_requires_abort():
            return self._aborted(producer)
        self.producer = None
        raise error


class CopyUser(KafkaUser):
    """Copies partitions exactly once. With fewer users than partitions, each copies several, because retention would
    remove the records of a partition that no user copies. Further users have no work."""

    _slots: ClassVar = itertools.count()

    def on_start(self) -> None:
        runner = self.environment.runner
        slot = max(getattr(runner, "worker_index", 0), 0) + next(CopyUser._slots) * self.options.worker_count
        copiers = min(max(self.options.most_users // len(self.environment.user_classes), 1), PARTITIONS)
        if slot >= copiers:
            raise StopUser
        self.copiers = [Copier(self.options.bootstrap, partition) for partition in range(slot, PARTITIONS, copiers)]
        self.turn = 0

    def close(self) -> None:
        for copier in getattr(self, "copiers", ()):
            copier.close()

    @task
    def copy(self) -> None:
        copier = self.copiers[self.turn % len(self.copiers)]
        self.turn += 1
        self.ask("copy", lambda: copier.step(1.0 / len(self.copiers)))


class RestUser(FastHttpUser):
    """Reads the cluster's state through the REST API, as a dashboard does."""

    wait_time = between(0.05, 0.15)
    lag: ClassVar = f"/v1/groups/{GROUP}/lag"
    paths: ClassVar = ("/v1/topics", f"/v1/topics/{PLAIN}", "/v1/transactions", lag, "/v1/nodes")
    has_group: ClassVar = False
    """The copies' group exists from their first transaction on, which may come after the first question."""

    def on_start(self) -> None:
        options: Any = self.environment.parsed_options
        self.headers = {"Authorization": f"Bearer {options.rest_token}"} if options.rest_token else {}
        self.turn = 0

    @task
    def look(self) -> None:
        path = self.paths[self.turn % len(self.paths)]
        self.turn += 1
        with self.rest("GET", path, headers=self.headers) as answer:
            if path == self.lag and answer.status_code == HTTPStatus.OK:
                RestUser.has_group = True
            elif path == self.lag and answer.status_code == HTTPStatus.NOT_FOUND and not RestUser.has_group:
                answer.success()

"""A client process of a chaos run: transactions that append unique values to partitions and poll them.

The same program drives the native client and librdkafka through a small interface. It records only what a client can
know: a commit that was requested and not answered is `info`, a failure before that is `fail`. A client that is fenced
or cannot continue begins a new life with new clients, as a restarted program would.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from hapax_load.connecting import translated

from hapax_chaos.history import HistoryFile

ASK_AGAIN_S: Final = 20.0
"""Time limit of a commit or abort; after it the outcome is unknown."""
TRANSACTION_TIMEOUT_MS: Final = 6000


class Abort(Exception):
    """The open transaction cannot commit and has to be aborted."""


class Unknown(Exception):
    """There was no answer: ask again, or the outcome stays unknown."""


class Ended(Exception):
    """This life is over: the client is fenced, or cannot recover."""


class Face(Protocol):
    """A producer and a consumer. Each method raises Abort, Unknown or Ended."""

    def begin(self) -> None: ...
    def send(self, partition: int, value: str) -> Callable[[], int | None]:
        """Returns a function that gives the record's offset once it is known."""
        ...

    def poll(self, timeout_s: float) -> list[tuple[int, int, str]]:
        """(partition, offset, value) of a few committed records."""
        ...

    def seek(self, positions: dict[int, int]) -> None: ...
    def send_offsets(self, positions: dict[int, int]) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Settings:
    """The harness's settings, which the program gets as one JSON argument."""

    def __init__(self, text: str) -> None:
        self.given = given = json.loads(text)
        self.kind: str = given["kind"]
        self.bootstrap: str = given["bootstrap"]
        self.security: dict[str, str] = given["security"]
        """Settings of TLS and logins, as the native client has them."""
        self.topic: str = given["topic"]
        self.partitions: int = given["partitions"]
        self.name: str = given["name"]
        """The transactional id, and the prefix of the history's processes."""
        self.generation: str = given["generation"]
        """Distinguishes the processes with that name."""
        self.history = Path(given["history"])
        self.seed: int = given["seed"]
        self.pause_s: float = given["pause_s"]
        self.isolation: str = given["isolation"]
        """Other values than read_committed only serve to test that the checker finds violations."""


# --- the native client --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def native_errors() -> Iterator[None]:
    """Turns the client's errors into those of a `Face`."""
    from hapax.client import AbortableError, HapaxError, RetriableError

    try:
        yield
    except AbortableError as error:
        raise Abort(str(error)) from error
    except RetriableError as error:
        raise Unknown(str(error)) from error
    except HapaxError as error:
        raise Ended(f"{type(error).__name__}: {error}") from error


class Native:
    def __init__(self, settings: Settings) -> None:
        from hapax.client import blocking

        common = {"bootstrap.servers": settings.bootstrap, **settings.security, "request.timeout.ms": "3000"}
        self._topic = settings.topic
        self._group = f"group-of-{settings.name}"
        self._producer = blocking.Producer({
            **common, "transactional.id": settings.name, "max.block.ms": "15000", "delivery.timeout.ms": "15000",
            "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS), "linger.ms": "0",
        })
        self._consumer = blocking.Consumer({
            **common, "group.id": self._group, "isolation.level": settings.isolation, "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
        })
        with native_errors():
            self._producer.start()
            self._consumer.start()
            self._consumer.assign([(self._topic, p) for p in range(settings.partitions)])
            self.seek(dict.fromkeys(range(settings.partitions), 0))

    def begin(self) -> None:
        with native_errors():
            self._producer.begin()

    def send(self, partition: int, value: str) -> Callable[[], int | None]:
        with native_errors():
            delivery = self._producer.send(self._topic, value.encode(), partition=partition)

        def offset() -> int | None:
            if not delivery.done() or delivery.cancelled() or delivery.exception() is not None:
                return None
            found = delivery.result().offset
            return found if found >= 0 else None

        return offset

    def poll(self, timeout_s: float) -> list[tuple[int, int, str]]:
        with native_errors():
            records = self._consumer.poll(int(timeout_s * 1000), 20)
        return [(r.partition, r.offset, (r.value or b"").decode()) for r in records]

    def seek(self, positions: dict[int, int]) -> None:
        with native_errors():
            for partition, offset in positions.items():
                self._consumer.seek((self._topic, partition), offset)

    def send_offsets(self, positions: dict[int, int]) -> None:
        from hapax.client import TopicPartition

        with native_errors():
            self._producer.send_offsets({TopicPartition(self._topic, p): o for p, o in positions.items()}, self._group)

    def commit(self) -> None:
        with native_errors():
            self._producer.commit()

    def abort(self) -> None:
        with native_errors():
            self._producer.abort()

    def close(self) -> None:
        from hapax.client import HapaxError

        for part in (self._consumer, self._producer):
            with contextlib.suppress(HapaxError):
                part.close()


# --- librdkafka ---------------------------------------------------------------------------------------------------


class Librdkafka:
    TIMEOUT_MS = TRANSACTION_TIMEOUT_MS

    def __init__(self, settings: Settings) -> None:
        from confluent_kafka import Producer, TopicPartition

        self._partition = lambda partition, offset=0: TopicPartition(settings.topic, partition, offset)
        self._output = getattr(settings, "output", settings.topic)
        common = {
            "bootstrap.servers": settings.bootstrap, "log_level": 0, "socket.timeout.ms": 5000,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 300, "retry.backoff.ms": 50,
            "topic.metadata.refresh.interval.ms": 2000, "topic.metadata.refresh.fast.interval.ms": 50,
            "error_cb": lambda error: None, **translated(settings.security),
        }
        self._security, self._password = settings.security, common.get("sasl.password")
        self._failed: Exception | None = None
        self._producer = Producer({
            **common, "transactional.id": settings.name, "transaction.timeout.ms": self.TIMEOUT_MS,
            "linger.ms": 0, "message.timeout.ms": self.TIMEOUT_MS - 500,
        })
        self._ask(self._producer.init_transactions)
        self._consumer = self._reader(settings, common)

    def _reader(self, settings: Any, common: dict[str, Any]) -> Any:
        from confluent_kafka import Consumer

        consumer = Consumer({
            **common, "group.id": f"group-of-{settings.name}", "isolation.level": settings.isolation,
            "enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 50,
        })
        consumer.assign([self._partition(p) for p in range(settings.partitions)])
        return consumer

    def _ask(self, call: Callable[..., Any], *arguments: object) -> None:
        """Makes one call with a time-out as its last argument."""
        from confluent_kafka import KafkaException

        try:
            call(*arguments, 5.0)
        except SystemError as raised:  # a fatal error from the error callback, possibly with another one on top of it
            raise Ended(str(raised.__cause__ or raised)) from raised
        except KafkaException as raised:
            raise self._meaning(raised) from raised

    @staticmethod
    def _meaning(raised: Exception) -> Exception:
        error = raised.args[0]
        if error.txn_requires_abort():
            return Abort(str(error))
        if error.fatal() or not error.retriable():
            return Ended(str(error))
        return Unknown(str(error))

    def begin(self) -> None:
        from confluent_kafka import KafkaException

        self._take_password()
        try:
            self._producer.begin_transaction()
        except KafkaException as raised:
            raise self._meaning(raised) from raised

    def _take_password(self) -> None:
        """The native client reads the file for each login."""
        password = translated(self._security).get("sasl.password")
        if password != self._password:
            self._password = password
            for part in (self._producer, self._consumer):
                part.set_sasl_credentials(self._security["sasl.username"], password)

    def send(self, partition: int, value: str) -> Callable[[], int | None]:
        from confluent_kafka import KafkaException

        offset: list[int | None] = [None]

        def delivered(error: Any, message: Any) -> None:
            if error is None and message.offset() is not None and message.offset() >= 0:
                offset[0] = message.offset()

        try:
            self._producer.produce(self._output, value, partition=partition, on_delivery=delivered)
            self._producer.poll(0)
        except KafkaException as raised:
            raise self._meaning(raised) from raised
        except BufferError as full:
            raise Abort(str(full)) from full
        return lambda: offset[0]

    def poll(self, timeout_s: float) -> list[tuple[int, int, str]]:
        messages = self._consumer.consume(20, timeout_s)
        found = []
        for message in messages:
            if message.error() is None:
                found.append((message.partition(), message.offset(), (message.value() or b"").decode()))
        return found

    def seek(self, positions: dict[int, int]) -> None:
        # A new assignment drops prefetched records. A seek in a partition without a leader cannot.
        self._consumer.assign([self._partition(p, o) for p, o in positions.items()])

    def send_offsets(self, positions: dict[int, int]) -> None:
        offsets = [self._partition(p, o) for p, o in positions.items()]
        self._ask(self._producer.send_offsets_to_transaction, offsets, self._consumer.consumer_group_metadata())

    def commit(self) -> None:
        self._ask(self._producer.commit_transaction)

    def abort(self) -> None:
        self._ask(self._producer.abort_transaction)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._consumer.close()
        self._producer.purge()


class AtLeastOnce(Librdkafka):
    """librdkafka without transactions and idempotence, to test that the checker finds violations."""

    def __init__(self, settings: Settings) -> None:
        from confluent_kafka import Producer

        super().__init__(settings)
        self._producer = Producer({
            "bootstrap.servers": settings.bootstrap, "log_level": 0, "enable.idempotence": False, "acks": 1,
            "retries": 20, "retry.backoff.ms": 50, "linger.ms": 0, "error_cb": lambda error: None,
            **translated(settings.security),
        })

    def begin(self) -> None:
        """Does nothing."""

    def send_offsets(self, positions: dict[int, int]) -> None:
        """Does nothing: positions are not kept."""

    def commit(self) -> None:
        if self._producer.flush(10.0):
            raise Unknown("not everything was acknowledged")

    def abort(self) -> None:
        self._producer.flush(10.0)


KINDS: Final[dict[str, Callable[[Settings], Face]]] = {
    "native": Native, "librdkafka": Librdkafka, "at-least-once": AtLeastOnce,
}  # fmt: skip


# --- the program --------------------------------------------------------------------------------------------------


class Closes(Protocol):
    def close(self) -> None: ...


S = TypeVar("S", bound=Settings)
F = TypeVar("F", bound=Closes)


class Program(ABC, Generic[S, F]):
    """Lives, one after another, until it is told to stop. An error that a client cannot survive ends a life."""

    def __init__(self, settings: S) -> None:
        self._settings = settings
        self._random = random.Random(f"{settings.seed}/{settings.name}/{settings.generation}")
        self._history = HistoryFile(settings.history)
        self.stopping = False

    @abstractmethod
    def _begin(self) -> F:
        """Returns the clients of a new life."""

    @abstractmethod
    def _live(self, face: F) -> None:
        """Works until the program is told to stop."""

    def run(self) -> None:
        life = 0
        while not self.stopping:
            life += 1
            self._history.process = f"{self._settings.name}/{self._settings.generation}.{life}"
            face: F | None = None
            try:
                face = self._begin()
                self._live(face)
            except (Abort, Unknown, Ended) as error:
                self._history.note("debug", f"{type(error).__name__}: {error}")
                self._history.note("crash")
                time.sleep(0.2)
            finally:
                if face is not None:
                    face.close()


def until_answered(call: Callable[[], None]) -> None:
    """Asks again while the outcome is unknown, up to a time limit."""
    deadline = time.monotonic() + ASK_AGAIN_S
    while True:
        try:
            call()
            return
        except Unknown:
            if time.monotonic() > deadline:
                raise


class Appender(Program[Settings, Face]):
    """Appends to partitions and polls them, in transactions."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._number = 0

    def _begin(self) -> Face:
        return KINDS[self._settings.kind](self._settings)

    def _live(self, face: Face) -> None:
        topic, partitions = self._settings.topic, self._settings.partitions
        self._history.note("assign", [f"{topic}-{p}" for p in range(partitions)])
        positions = dict.fromkeys(range(partitions), 0)
        while not self.stopping:
            positions = self._transaction(face, positions)
            time.sleep(self._random.uniform(0, 2 * self._settings.pause_s))

    def _transaction(self, face: Face, before: dict[int, int]) -> dict[int, int]:
        """Returns the start positions of the next transaction."""
        plan: list[list[Any]] = []
        for _ in range(self._random.randrange(1, 6)):
            if self._random.random() < 0.35:
                plan.append(["poll"])
            else:
                self._number += 1
                partition = self._random.randrange(self._settings.partitions)
                plan.append(["send", f"{self._settings.topic}-{partition}", f"{self._history.process}.{self._number}"])
        self._history.write("invoke", "txn", plan)
        done: list[list[Any]] = []
        offsets: list[tuple[list[Any], Callable[[], int | None]]] = []
        positions = dict(before)
        try:
            face.begin()
            for micro in plan:
                if micro[0] == "poll":
                    done.append(["poll", self._polled(face, positions)])
                else:
                    done.append(list(micro))
                    partition = int(micro[1].rpartition("-")[2])
                    offsets.append((done[-1], face.send(partition, micro[2])))
            if positions != before:
                face.send_offsets(positions)
            if self._random.random() < 0.1:
                raise Abort("the program decided to abort")
        except (Abort, Unknown) as error:
            return self._abort(face, error, plan, done, before)
        except Ended:
            self._history.write("fail", "txn", _all_of(plan, done))
            raise
        try:
            until_answered(face.commit)
        except Abort as error:
            return self._abort(face, error, plan, done, before)
        except (Unknown, Ended):
            self._history.write("info", "txn", done)
            raise
        for micro, offset in offsets:
            micro[2] = [offset(), micro[2]]
        self._history.write("ok", "txn", done)
        return positions

    def _polled(self, face: Face, positions: dict[int, int]) -> dict[str, list[list[Any]]]:
        found: dict[str, list[list[Any]]] = {}
        for partition, offset, value in face.poll(self._random.choice((0.0, 0.05))):
            found.setdefault(f"{self._settings.topic}-{partition}", []).append([offset, value])
            positions[partition] = offset + 1
        return found

    def _abort(
        self, face: Face, why: Exception, plan: list[list[Any]], done: list[list[Any]], before: dict[int, int]
    ) -> dict[int, int]:
        """A commit was never requested, or it was refused. So none of the records may be seen, whatever the abort's
        outcome."""
        self._history.write("fail", "txn", _all_of(plan, done))
        self._history.note("debug", str(why))
        until_answered(face.abort)
        face.seek(before)
        return before


def _all_of(plan: list[list[Any]], done: list[list[Any]]) -> list[list[Any]]:
    """The records that a failed operation wrote or would have written."""
    return [*done, *(micro for micro in plan[len(done) :] if micro[0] == "send")]

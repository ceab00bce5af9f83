"""What a test wants of a client; blocking, whatever the client itself is."""

from __future__ import annotations

from typing import Protocol

Record = tuple[bytes | None, bytes | None]
"""(key, value)"""


class Abortable(Exception):
    """The client says: abort this transaction and go on."""


class Fatal(Exception):
    """The client says: this producer is finished (fenced among others)."""


class TransactionalProducer(Protocol):
    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, key: bytes, value: bytes) -> None: ...
    def flush(self) -> None: ...
    def send_offsets(self, topic: str, partition: int, offset: int, group: str) -> None: ...
    def commit(self) -> None:
        """Raises Abortable or Fatal; until it returns the outcome is open."""
        ...

    def abort(self) -> None: ...
    def close(self) -> None:
        """Never hangs, whatever state the producer is in."""
        ...


class Reader(Protocol):
    """A consumer with assigned partitions and no group membership."""

    def committed(self, topic: str, partition: int) -> int:
        """The group's committed offset, or -1."""
        ...

    def read_to(self, topic: str, partition: int, end: int) -> list[Record]:
        """All visible records from the beginning up to offset `end` (exclusive)."""
        ...

    def close(self) -> None: ...


class ForeignClient(Protocol):
    name: str

    def produce_idempotently(self, bootstrap: str, topic: str, records: list[tuple[int, bytes, bytes]]) -> list[int]:
        """Sends (partition, key, value) with an idempotent producer; returns the offsets, all acknowledged."""
        ...

    def transactional_producer(self, bootstrap: str, transactional_id: str) -> TransactionalProducer:
        """Initialised: the former holder of the id is fenced, its open transaction aborted."""
        ...

    def reader(self, bootstrap: str, *, committed: bool, group: str = "readers") -> Reader: ...

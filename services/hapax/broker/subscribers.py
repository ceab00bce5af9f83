"""Objects that a partition notifies: waiting readers, followers that fetch it, and the copying that feeds it."""

from __future__ import annotations

from typing import Protocol


class ReadSubscriber(Protocol):
    """A long poll that waits for new records, or a fetch session."""

    def moved(self) -> None:
        """Called once for each `Readers.wait`."""
        ...


class Readers(dict[ReadSubscriber, None]):
    """The readers that wait for a partition."""

    __slots__ = ()

    def wait(self, reader: ReadSubscriber) -> None:
        """Calls `reader.moved()` once: when the readable end or the log start moves, or the leadership ends."""
        self[reader] = None

    def unwait(self, reader: ReadSubscriber) -> None:
        self.pop(reader, None)

    def wake(self) -> None:
        readers = list(self)
        self.clear()
        for reader in readers:
            reader.moved()


class FollowerSubscriber(Protocol):
    """A follower that fetches this partition from here."""

    def appended(self) -> None:
        """There are new records to fetch."""
        ...

    def committed(self) -> None:
        """The high watermark has moved. The next answer carries it."""
        ...

    def start_moved(self) -> None:
        """The log start has moved on request. An answer carries it at once."""
        ...

    def press(self, newest_round: int) -> None:
        """A barrier waits for the follower's answer to this round."""
        ...

    def lost(self) -> None:
        """This node no longer leads the partition."""
        ...


class CopySubscriber(Protocol):
    """Copies this partition from its leader."""

    def synced(self) -> None:
        """More of the copy is durable."""
        ...

    def start_noted(self) -> None:
        """The copy's log start is durable."""
        ...

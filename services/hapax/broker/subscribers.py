"""Who hears from a partition: readers that wait, followers that fetch it, and what copies it here."""

from __future__ import annotations

from typing import Protocol


class ReadSubscriber(Protocol):
    """A long poll that is told when a partition's readable end moves."""

    def moved(self) -> None: ...


class FollowerSubscriber(Protocol):
    """A follower that fetches this partition from here."""

    def appended(self) -> None:
        """There is something to fetch."""
        ...

    def committed(self) -> None:
        """The high watermark has moved: said with the next answer."""
        ...

    def press(self, newest_round: int) -> None:
        """A barrier waits for the follower's answer to this round."""
        ...

    def lost(self) -> None:
        """This node leads the partition no more."""
        ...


class CopySubscriber(Protocol):
    """What copies this partition from its leader."""

    def synced(self) -> None:
        """More of it is durable."""
        ...

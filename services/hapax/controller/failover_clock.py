"""How long clients are without a leader after a node is lost, as the acting controller sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hapax.core.types import TopicIdPartition


class FailoverClock:
    """`lost`, then `elected` once or more often, then `changed` until everything that was elected is accepted."""

    def __init__(self, now_s: Callable[[], float], observe: Callable[[float], None]) -> None:
        """`observe` hears of each failover's seconds."""
        self._now_s = now_s
        self._observe = observe
        self._since: float | None = None
        self._pending: set[TopicIdPartition] = set()

    def lost(self) -> None:
        """A node is gone, silent, or came back as another process. Further ones before the end are of one failover."""
        if self._since is None:
            self._since = self._now_s()

    def planned(self, elected: Iterable[TopicIdPartition], settled: Callable[[TopicIdPartition], bool]) -> None:
        """These are given to new leaders. None, and none before: the lost node led nothing. Former ones that the image
        shows as `settled` never changed: their election was not written, and is not wanted any more."""
        self._pending = {each for each in self._pending if not settled(each)} | set(elected)
        if not self._pending:
            self._since = None
        elif self._since is None:
            self._since = self._now_s()  # lost before this controller acted

    def changed(self, partition: TopicIdPartition, settled: bool) -> None:
        """`settled`: its leader takes writes, or it has none, or is gone."""
        if settled and partition in self._pending:
            self._pending.discard(partition)
            if not self._pending and self._since is not None:
                self._observe(self._now_s() - self._since)
                self._since = None

    def forget(self) -> None:
        """This controller acts no more."""
        self._since = None
        self._pending.clear()

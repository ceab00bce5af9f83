"""The newest connection wins (rule 4): what stands in for an epoch per transaction with clients of version 1.

Their epoch stays the same from transaction to transaction, so a request that was delayed on an abandoned connection
(KAFKA-17754) looks like one of the transaction that is open now. But a client that gives a request up closes its
connection, and the retry comes on a newer one: once a call has come on a newer connection, an older one has nothing
true to say. It is dropped without an answer, and a living client simply comes back on a new connection.

One instance serves one role (coordinator calls, TxnOffsetCommit or Produce: clients use a connection for each) on one
node. Memory is lost when a shard or a leadership moves, so after a load only connections accepted since then count.
It is bounded as well: beyond `limit` ids, those with the oldest connections are forgotten, and from then on every
connection older than the newest forgotten one has to come back, since nobody knows any more whom it gave way to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hapax.core.types import ProducerEpoch, ProducerId


@dataclass(frozen=True, slots=True)
class Superseded:
    """The call came on an older connection than it must: drop the connection, answer nothing."""

    reason: str


IDS_REMEMBERED: Final = 10_000
"""As many as a listener has connections: a client in use is not forgotten before one that has gone."""
_FORGOTTEN_AT_ONCE: Final = 4
"""A fourth of them, so that looking for the oldest costs each id little."""


class ConnectionFencing:
    """Newest connection per transactional id, within one role. Serials rise with every connection of the process."""

    def __init__(self, newest_at_load: int = -1, limit: int = IDS_REMEMBERED) -> None:
        """`newest_at_load`: the process's newest connection serial when the shard or leadership arrived."""
        self._newest_at_load = newest_at_load
        self._limit = limit
        self._forgotten_before = 0
        """Connections below it may have given way to one that is forgotten."""
        self._newest: dict[str, tuple[ProducerId, ProducerEpoch, int]] = {}

    def admit(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch, connection: int
    ) -> Superseded | None:
        """Checks a version-1 call and remembers its connection. `None`: the call may go on.

        Ask only after the caller's epoch has been checked where it can be: a fenced producer must not supersede its
        successor. Where it cannot (a partition has not heard of the new epoch), a lower epoch of the same producer id
        supersedes nobody, and a newer identity starts afresh. `connection` -1 is a call from another service, which
        always passes.
        """
        if connection < 0:
            return None
        refused = self.older_than_load(connection) or self._older_than_memory(connection)
        if refused is not None:
            return refused
        known = self._newest.get(transactional_id)
        if known is not None and known[0] == producer_id:
            if producer_epoch < known[1]:
                return None
            if producer_epoch == known[1] and connection < known[2]:
                return self.superseded(transactional_id, connection)
        self.note(transactional_id, producer_id, producer_epoch, connection)
        return None

    def older_than_load(self, connection: int) -> Superseded | None:
        """From before the shard or leadership came here: whether a newer connection has spoken since, nobody knows."""
        if 0 <= connection <= self._newest_at_load:
            return Superseded(f"connection {connection} is older than this node's leadership")
        return None

    def superseded(self, transactional_id: str, connection: int) -> Superseded | None:
        """Whether a newer connection has spoken for the id, under whatever identity. Remembers nothing."""
        refused = self._older_than_memory(connection)
        if refused is not None:
            return refused
        known = self._newest.get(transactional_id)
        if known is not None and 0 <= connection < known[2]:
            return Superseded(f"connection {connection} gave way to connection {known[2]} of {transactional_id}")
        return None

    def gave_way(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch, connection: int
    ) -> Superseded | None:
        """The same question as `admit`'s, for a call that was admitted and has waited since (rule 24). Remembers
        nothing: what waited says nothing new of its connection."""
        refused = self.older_than_load(connection) or self._older_than_memory(connection)
        if refused is not None:
            return refused
        known = self._newest.get(transactional_id)
        if known is not None and known[:2] == (producer_id, producer_epoch):
            return self.superseded(transactional_id, connection)
        return None  # of another identity: the epoch decides

    def note(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch, connection: int
    ) -> None:
        """The connection has spoken for the id, truly and newest."""
        if connection >= 0:
            self._newest[transactional_id] = (producer_id, producer_epoch, connection)
            if len(self._newest) > self._limit:
                self._forget_oldest()

    def forget(self, transactional_id: str) -> None:
        """The id expired."""
        self._newest.pop(transactional_id, None)

    def __len__(self) -> int:
        """Ids remembered."""
        return len(self._newest)

    def _older_than_memory(self, connection: int) -> Superseded | None:
        if 0 <= connection < self._forgotten_before:
            return Superseded(f"connection {connection} is older than what this node remembers of connections")
        return None

    def _forget_oldest(self) -> None:
        by_age = sorted(self._newest, key=lambda transactional_id: self._newest[transactional_id][2])
        for transactional_id in by_age[: max(1, self._limit // _FORGOTTEN_AT_ONCE)]:
            *_, connection = self._newest.pop(transactional_id)
            self._forgotten_before = max(self._forgotten_before, connection)

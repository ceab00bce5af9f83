"""The newest connection wins (rule 4). This replaces an epoch per transaction for clients of version 1.

The epoch of such a client does not change between transactions. So a request that was delayed on an abandoned
connection (KAFKA-17754) looks like a request of the transaction that is open now. But a client that gives up on a
request closes its connection and retries on a newer one. After a call on a newer connection, the older connection is
obsolete: it is closed without an answer, and a live client connects again.

One instance serves one role on one node. The roles are coordinator calls, TxnOffsetCommit and Produce: clients use a
connection for each. The memory is lost when a shard or a leadership moves, so after a load only connections accepted
since then are valid. The memory is also bounded: beyond `limit` ids, those with the oldest connections are forgotten.
From then on every connection older than the newest forgotten one is closed, because its successor is no longer known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hapax.core.types import ProducerEpoch, ProducerId


@dataclass(frozen=True, slots=True)
class Superseded:
    """The call came on an obsolete connection. Close the connection without an answer."""

    reason: str


IDS_REMEMBERED: Final = 10_000
"""The maximum number of connections of a listener, so that a client in use is not forgotten before one that has
gone."""
_FORGOTTEN_AT_ONCE: Final = 4
"""One in this many ids is forgotten in one pass, so that the search for the oldest costs little per id."""


class ConnectionFencing:
    """The newest connection of each transactional id, for one role. Serials rise with every connection of the
    process."""

    def __init__(self, newest_at_load: int = -1, limit: int = IDS_REMEMBERED) -> None:
        """`newest_at_load`: the process's newest connection serial when the shard or leadership arrived."""
        self._newest_at_load = newest_at_load
        self._limit = limit
        self._forgotten_before = 0
        """A connection with a lower serial may have been superseded by a forgotten one."""
        self._newest: dict[str, tuple[ProducerId, ProducerEpoch, int]] = {}

    def admit(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch, connection: int
    ) -> Superseded | None:
        """Checks a version-1 call and remembers its connection. `None`: the call may proceed.

        Check the caller's epoch first where possible: a fenced producer must not supersede its successor. Where the
        epoch cannot be checked (a partition does not know the new epoch yet), a lower epoch of the same producer id
        supersedes no connection, and a new identity starts without history. `connection` -1 is a call from another
        service, which always passes.
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
        """The connection is older than the shard or leadership on this node, so a newer one may be unknown here."""
        if 0 <= connection <= self._newest_at_load:
            return Superseded(f"connection {connection} is older than this node's leadership")
        return None

    def superseded(self, transactional_id: str, connection: int) -> Superseded | None:
        """Whether a newer connection has called for the id, with any identity. Remembers nothing."""
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
        """The check of `admit` for a call that was admitted and has waited since (rule 24). Remembers nothing: a call
        that has waited says nothing new about its connection."""
        refused = self.older_than_load(connection) or self._older_than_memory(connection)
        if refused is not None:
            return refused
        known = self._newest.get(transactional_id)
        if known is not None and known[:2] == (producer_id, producer_epoch):
            return self.superseded(transactional_id, connection)
        return None  # another identity: the epoch decides

    def note(
        self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch, connection: int
    ) -> None:
        """Remembers the connection of a valid call as the newest of the id."""
        if connection >= 0:
            self._newest[transactional_id] = (producer_id, producer_epoch, connection)
            if len(self._newest) > self._limit:
                self._forget_oldest()

    def forget(self, transactional_id: str) -> None:
        """Forgets an id that expired."""
        self._newest.pop(transactional_id, None)

    def __len__(self) -> int:
        """Number of remembered ids."""
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

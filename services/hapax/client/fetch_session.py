"""The consumer's side of a fetch session (KIP-227): the node keeps what was asked, so requests name only changes.

* **Only an answer makes a request count.** The session remembers what the node was asked once the answer has arrived.
  A request whose answer was lost may or may not have reached the node, so the next one is full.
* **A full request replaces everything** that the node knew. It ends the session that it names, and asks for another.
* **A request names what differs** from what the node has: added partitions, those with another offset, leader epoch or
  limit, and partitions that are forgotten. A topic that was created again has another id, so its partitions are
  forgotten by the old id and named by the new one.
* **A partition that an answer does not name is unchanged**: its ends are those of the last answer that named it. After
  an error it has none until an answer names it without one.

This is a pure machine. A node without sessions answers with id 0, and then every request is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hapax.core.errors import ErrorCode
from hapax.core.fetch_sessions import FULL, NO_SESSION, SESSIONLESS
from hapax.core.types import TopicPartition

_LAST_EPOCH: Final = 2**31 - 1
_OF_SESSIONS: Final = frozenset({
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
})


class Asked(NamedTuple):
    """What a request says about a partition."""

    offset: int
    """Of the next record to fetch."""
    leader_epoch: int
    max_bytes: int
    topic_id: Any
    """uuid.UUID; None where the request names topics by name."""


class Ends(NamedTuple):
    """Where a partition's records end, as an answer says."""

    high_watermark: int
    last_stable_offset: int


class SessionRequest(NamedTuple):
    session_id: int
    epoch: int
    named: Mapping[TopicPartition, Asked]
    """What the request names: of a full one everything."""
    forgotten: Mapping[TopicPartition, Asked]
    """What the node shall forget, with what it was asked last."""

    @property
    def is_full(self) -> bool:
        return self.epoch in (FULL, SESSIONLESS)


class FetchSession:
    """The session with one node. One request at a time: `request`, then `answered` or `refused`. A request that had
    neither by the next one is taken for lost."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        """Of the session that the node may still have."""
        self._epoch = FULL
        """Of the next request."""
        self._by_id = False
        self._known: dict[TopicPartition, Asked] = {}
        """What the node has been asked, as far as answers confirm it. Empty before a full request."""
        self._ends: dict[TopicPartition, Ends] = {}
        """Of the partitions in `_known`."""
        self._open: tuple[SessionRequest, dict[TopicPartition, Asked]] | None = None
        """The request that has no answer yet, and everything that the consumer wanted by then."""

    @property
    def known(self) -> Mapping[TopicPartition, Asked]:
        """What the node is taken to have, for the session's next request."""
        return self._known

    def ends(self, partition: TopicPartition) -> Ends | None:
        """Of a partition of the session, from the last answer that named it."""
        return self._ends.get(partition)

    def request(self, wanted: dict[TopicPartition, Asked], *, by_id: bool) -> SessionRequest:
        """The next request, if the consumer wants exactly this of the node. `by_id`: it names topics by id."""
        if self._open is not None or by_id is not self._by_id:
            self.lost()
        self._by_id = by_id
        if self._epoch == FULL:
            request = SessionRequest(self._id, FULL, wanted, {})
        else:
            known = self._known
            named = {partition: asked for partition, asked in wanted.items() if known.get(partition) != asked}
            forgotten = {
                partition: asked for partition, asked in known.items()
                if (now := wanted.get(partition)) is None or now.topic_id != asked.topic_id}
            request = SessionRequest(self._id, self._epoch, named, forgotten)
        self._open = request, wanted
        return request

    def answered(self, session_id: int, told: Mapping[TopicPartition, Ends | None]) -> None:
        """The open request was answered without an error of the whole. `session_id`: as in the answer. `told`: the
        partitions that the answer names; None for one with an error."""
        assert self._open is not None, "no request is open"
        request, wanted = self._open
        if session_id == NO_SESSION:
            self._start_over(NO_SESSION)  # the node has no room, or has ended the session
            return
        incomplete = request.is_full and len(told) != len(wanted)
        if incomplete or any(partition not in wanted for partition in told):
            self._start_over(session_id)  # what this session is about is not what was asked
            return
        if request.is_full:
            self._ends = {}
        for partition in request.forgotten:
            self._ends.pop(partition, None)
        for partition, ends in told.items():
            if ends is None:  # the next answer without the error names them
                self._ends.pop(partition, None)
            else:
                self._ends[partition] = ends
        self._open, self._known = None, wanted
        self._id = session_id
        self._epoch = 1 if request.epoch == _LAST_EPOCH else request.epoch + 1

    def refused(self, code: int) -> bool:
        """The open request was refused as a whole. Returns whether the same can be asked at once, by a full request."""
        assert self._open is not None, "no request is open"
        request, _ = self._open
        self._start_over(NO_SESSION if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND else self._id)
        return code in _OF_SESSIONS and not request.is_full

    def lost(self) -> None:
        """No answer will come, or the node was reached again in another way: what it has is not known."""
        self._start_over(self._id)

    def close(self) -> SessionRequest | None:
        """The request that ends the session; None: there is none. Its answer does not matter."""
        closing = self._id
        self._start_over(NO_SESSION)
        return None if closing == NO_SESSION else SessionRequest(closing, SESSIONLESS, {}, {})

    def _start_over(self, session_id: int) -> None:
        self._id, self._epoch = session_id, FULL
        self._known, self._ends, self._open = {}, {}, None

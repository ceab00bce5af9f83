"""The newest connection of each member of a consumer group: what comes late over an older one counts for nothing.

A full heartbeat lists what its member owned when it was *sent*, and a list without a partition confirms that the member
has given it up. A client sends one heartbeat at a time and gives up on it by closing the connection. The request may
still arrive after that, from the buffer of a process that stood still. By then the member may have been given a
partition over its next connection, and told to give it up again: the late list does not have it, and would confirm a
revocation that the member has not heard of. The partition would have two owners. In the same way a late request to
leave would end a membership that is in use, and a late subscription would take the place of the present one. KIP-848
has nothing in the request that tells it from a new one.

So each member's heartbeats are ordered by their connections, as transactional calls are (rule 4). One that could change
the membership and comes over an older connection is not answered, and its connection is closed. A client that still
uses it connects again, and is heard. Java, librdkafka, franz-go and the native client send all heartbeats of a member
over one connection at a time.

A JoinGroup of a classic member in a consumer group lists its partitions too. Not every subscription tells the
generation to which its list belongs, so these are ordered among themselves in the same way.

A late plain commit would set the committed position to a former one: back, so that records are processed again, or, if
the program has sought back since, forward, so that they are left out. Nothing in an OffsetCommit tells it from a new
one, and the member's generation is the same. So a member's commits are ordered among themselves in the same way
(`CommitConnections`), in groups of both protocols. They are not compared with its heartbeats, because franz-go sends
these over another connection than JoinGroups. Java, librdkafka, franz-go, Sarama, KafkaJS, kafka-python, aiokafka, the
group reader of kafka-go and the native client send all commits of a member over one connection at a time.

The order is known in memory only. After a load, members that the log knows are heard over newer connections only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from hapax.core.group.consumer_requests import JOIN, UNCHANGED
from hapax.core.group.values import ConsumerGroupHeartbeat


class NewestConnections:
    def __init__(self, newest_at_load: int) -> None:
        """`newest_at_load`: serial of the process's newest connection when the shard arrived. Serials rise."""
        self._newest_at_load = newest_at_load
        self._newest: dict[str, int] = {}
        """Member id -> the lowest serial that is valid for it."""

    def supersede(self, request: ConsumerGroupHeartbeat) -> bool:
        """Whether the request could change its member and has come over an older connection than another request."""
        changes = (
            request.member_epoch <= JOIN or request.owned is not None or request.subscribed_names is not None
            or request.subscribed_regex is not None or request.server_assignor is not None
            or request.rack_id is not None or request.rebalance_timeout_ms != UNCHANGED
        )
        return changes and self.is_older(request.member_id, request.connection)

    def is_older(self, member_id: str, connection: int) -> bool:
        return connection < self._newest.get(member_id, connection)

    def note(self, member_id: str, connection: int) -> None:
        self._newest[member_id] = max(self._newest.get(member_id, connection), connection)

    def loaded(self, members: Iterable[str]) -> None:
        for member_id in members:
            self._newest.setdefault(member_id, self._newest_at_load + 1)

    def forget(self, member_id: str) -> None:
        self._newest.pop(member_id, None)

    def keep_only(self, members: Iterable[str]) -> None:
        """After a refused write, because its member may never have joined."""
        self._newest = {each: self._newest[each] for each in members if each in self._newest}


_LEAST_PRUNED: Final = 1_000
"""With fewer entries than this, a search for members that have gone would cost more than their memory."""


class CommitConnections:
    """The newest connection over which each member of a shard's groups has committed outside of transactions."""

    def __init__(self, newest_at_load: int) -> None:
        """`newest_at_load`: as in `NewestConnections`."""
        self._newest_at_load = newest_at_load
        self._newest: dict[tuple[str, str], int] = {}
        """(group id, member id) -> the lowest serial that is valid for it."""
        self._prune_at = _LEAST_PRUNED

    def is_older(self, group_id: str, member_id: str, connection: int) -> bool:
        newest = self._newest.get((group_id, member_id), connection)
        return newest > connection

    def note(self, group_id: str, member_id: str, connection: int, is_member: Callable[[str, str], bool]) -> None:
        """Called for a commit that its group has admitted. `is_member` (group id, member id) says who may be
        forgotten."""
        self._newest[group_id, member_id] = connection
        if len(self._newest) > self._prune_at:
            self._newest = {each: serial for each, serial in self._newest.items() if is_member(*each)}
            self._prune_at = max(_LEAST_PRUNED, 2 * len(self._newest))

    def loaded(self, members: Iterable[tuple[str, str]]) -> None:
        first_after = self._newest_at_load + 1
        self._newest = dict.fromkeys(members, first_after)
        self._prune_at = max(_LEAST_PRUNED, 2 * len(self._newest))

    def __len__(self) -> int:
        return len(self._newest)

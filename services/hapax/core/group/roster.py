"""The members of one group of the classic protocol: their identities, leader, waiting calls and votes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from hapax.core.group.deadlines import Deadline
from hapax.core.group.values import (
    CallId,
    ClassicGroupValue,
    ClassicMemberValue,
    JoinedMember,
    JoinGroup,
    ProtocolOffer,
)
from hapax.core.types import TimestampMs

SESSION: Final = "session"
"""Kind of the deadline of a member, or of a member id that was handed out."""


@dataclass(slots=True, eq=False)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[ProtocolOffer, ...]
    """The protocols that the member offers, most preferred first. Only the chosen one is persisted."""
    session: Deadline
    assignment: bytes = b""
    joining: CallId | None = None
    """The member's JoinGroup, which waits for the end of the round."""
    syncing: CallId | None = None
    """The member's SyncGroup, which waits for the leader's."""
    new: bool = False
    """Whether it joined in this round. Then its client may not know its id yet, and cannot send heartbeats."""
    connection: int = -1
    """Serial of the newest connection over which it has joined; -1 if this coordinator does not know one."""

    def metadata(self, protocol: str | None) -> bytes:
        """The metadata of the first offer with this name; empty if there is none."""
        return next((offer.metadata for offer in self.protocols if offer.name == protocol), b"")


MEMBER_BYTES: Final = 1_000
"""Memory of a member, or of an id that was handed out, without what its client sent."""


def offered_bytes(protocols: tuple[ProtocolOffer, ...]) -> int:
    """Memory of a member that offers these protocols."""
    return MEMBER_BYTES + sum(len(offer.name) + len(offer.metadata) for offer in protocols)


class PendingIds(dict[str, Deadline]):
    """The member ids that were handed out and not used yet, each with its deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def hand_out(self, member_id: str, deadline: Deadline) -> None:
        self[member_id] = deadline
        self.bytes += MEMBER_BYTES + len(member_id)

    def take(self, member_id: str) -> Deadline | None:
        """Removes an id; None if it was not handed out."""
        deadline = self.pop(member_id, None)
        if deadline is not None:
            self.bytes -= MEMBER_BYTES + len(member_id)
        return deadline

    def clear(self) -> None:
        super().clear()
        self.bytes = 0


class Roster:
    """The members of a group. Iterates in the order in which they joined."""

    __slots__ = (
        "_by_id", "_by_instance", "_group_id", "_supporters", "bytes", "leader", "protocol_type", "unsynced", "waiting")

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._by_id: dict[str, Member] = {}
        self._by_instance: dict[str, Member] = {}
        self._supporters: dict[str, int] = {}
        """Protocol -> number of members that offer it."""
        self.bytes = 0
        """Memory of all members, without their assignments."""
        self.protocol_type = ""
        """The type of the members' protocols, or of the last members'; empty before the first."""
        self.leader: str | None = None
        self.waiting = 0
        """Number of members with a waiting JoinGroup."""
        self.unsynced: dict[str, None] = {}
        """Ids of members that have not asked for their assignment of this generation, in the order of the members."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def members(self) -> list[Member]:
        return list(self._by_id.values())

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def instance(self, instance_id: str | None) -> Member | None:
        """The static member with this instance id."""
        return None if instance_id is None else self._by_instance.get(instance_id)

    # --- changes --------------------------------------------------------------------------------------------------

    def new_member(self, member_id: str, request: JoinGroup) -> Member:
        """Creates a member without adding it to the group."""
        return Member(
            member_id, request.instance_id, request.client_id, request.client_host, request.session_timeout_ms,
            request.rebalance_timeout_ms, request.protocols, Deadline(self._group_id, SESSION, member_id),
            connection=request.connection,
        )

    def add(self, member: Member) -> None:
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member
        self._count(member.protocols, 1)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        del self._by_id[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        self._count(member.protocols, -1)
        self.waiting -= member.joining is not None
        self.unsynced.pop(member.member_id, None)
        if self.leader == member.member_id:
            self.leader = next(iter(self._by_id), None)

    def update(self, member: Member, request: JoinGroup) -> None:
        """Takes over what a member says about itself each time it joins."""
        if request.protocols != member.protocols:
            self._count(member.protocols, -1)
            member.protocols = request.protocols
            self._count(member.protocols, 1)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms

    def replace(self, former: Member, member: Member) -> None:
        """Gives a static member's place and its leadership to the restarted process."""
        self._by_id = {
            (member if each is former else each).member_id: member if each is former else each
            for each in self._by_id.values()
        }
        if former.instance_id is not None:
            self._by_instance[former.instance_id] = member
        self._count(former.protocols, -1)
        self._count(member.protocols, 1)
        member.assignment = former.assignment
        self.waiting -= former.joining is not None
        if former.member_id in self.unsynced:
            self.unsynced = {
                member.member_id if each == former.member_id else each: None for each in self.unsynced
            }
        if self.leader == former.member_id:
            self.leader = member.member_id

    def elect(self) -> bool:
        """Makes a waiting member the leader, unless the leader waits already. Returns False if no member waits."""
        leader = None if self.leader is None else self._by_id.get(self.leader)
        if leader is None or leader.joining is None:
            leader = next((member for member in self._by_id.values() if member.joining is not None), None)
        if leader is None:
            return False
        self.leader = leader.member_id
        return True

    # --- protocols ------------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Iterable[ProtocolOffer]) -> bool:
        """Whether a member with these protocols can be in the group: all members must have one of them in common."""
        return protocol_type == self.protocol_type and any(
            self._supporters.get(offer.name, 0) == len(self._by_id) for offer in protocols
        )

    def choose_protocol(self, instead: tuple[Member, Member] | None = None) -> str | None:
        """The protocol with the most votes; None if no protocol is common to all members. Each member votes for the
        first of its own protocols that all members have.

        Of two with the same number of votes, the one that got its first vote earlier wins. With `instead` = (former,
        new), the vote is counted as if the new member were in the former's place.
        """
        if instead is not None:
            former, new = instead
            self._count(former.protocols, -1)
            self._count(new.protocols, 1)
        common = {name for name, supporters in self._supporters.items() if supporters == len(self._by_id)}
        votes: dict[str, int] = {}
        for member in self._by_id.values():
            protocols = new.protocols if instead is not None and member is former else member.protocols
            vote = next((offer.name for offer in protocols if offer.name in common), None)
            if vote is not None:
                votes[vote] = votes.get(vote, 0) + 1
        if instead is not None:
            self._count(new.protocols, -1)
            self._count(former.protocols, 1)
        return max(votes, key=votes.__getitem__, default=None)

    def rebalance_timeout_ms(self) -> int:
        """The largest rebalance timeout of the members; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=0)

    def joined(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """The members as the leader needs them for the assignment."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self._by_id.values()
        )

    # --- records --------------------------------------------------------------------------------------------------

    def value(
        self, generation: int, protocol: str | None, since: TimestampMs, assignments: dict[str, bytes] | None = None
    ) -> ClassicGroupValue:
        """The group's record. A member that `assignments` leaves out gets an empty assignment. With None, members keep
        their present ones."""
        return ClassicGroupValue(
            self.protocol_type, generation, protocol, self.leader, since,
            tuple(
                member_value(
                    member, protocol,
                    member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self._by_id.values()
            ),
        )  # fmt: skip

    def replay(self, value: ClassicGroupValue) -> list[Member]:
        """Makes the record's members those of the group. Returns the former members that are no longer in it.

        If the record describes a member as it already is, the member keeps what is not persisted: its waiting calls and
        the protocols that were not chosen.
        """
        former = self._by_id
        self._by_id = {}
        self._by_instance = {}
        for stored in value.members:
            member = former.pop(stored.member_id, None)
            if member is None or not _describes(stored, member, value.protocol):
                member = self._loaded(stored, value.protocol)
            member.assignment = stored.assignment
            self._by_id[member.member_id] = member
            if member.instance_id is not None:
                self._by_instance[member.instance_id] = member
        self.protocol_type = value.protocol_type
        self.leader = value.leader if value.leader in self._by_id else next(iter(self._by_id), None)
        self._supporters = {}
        self.bytes = 0
        for member in self._by_id.values():
            self._count(member.protocols, 1)
        self.waiting = sum(member.joining is not None for member in self._by_id.values())
        self.unsynced = {member_id: None for member_id in self.unsynced if member_id in self._by_id}
        return list(former.values())

    def _loaded(self, stored: ClassicMemberValue, protocol: str | None) -> Member:
        rebalance_ms = stored.rebalance_timeout_ms
        return Member(
            stored.member_id, stored.instance_id, stored.client_id, stored.client_host, stored.session_timeout_ms,
            # Records of Kafka before 0.10.1 lack this field.
            stored.session_timeout_ms if rebalance_ms < 0 else rebalance_ms,
            (ProtocolOffer(protocol or "", stored.subscription),),
            Deadline(self._group_id, SESSION, stored.member_id),
        )  # fmt: skip

    def _count(self, protocols: tuple[ProtocolOffer, ...], by: int) -> None:
        self.bytes += by * offered_bytes(protocols)
        for name in {offer.name: None for offer in protocols}:
            count = self._supporters.get(name, 0) + by
            if count:
                self._supporters[name] = count
            else:
                del self._supporters[name]


def _describes(stored: ClassicMemberValue, member: Member, protocol: str | None) -> bool:
    offered = any(offer.name == protocol for offer in member.protocols)
    return offered and member_value(member, protocol, stored.assignment) == stored


def member_value(member: Member, protocol: str | None, assignment: bytes) -> ClassicMemberValue:
    return ClassicMemberValue(
        member.member_id, member.instance_id, member.client_id, member.client_host, member.rebalance_timeout_ms,
        member.session_timeout_ms, member.metadata(protocol), assignment,
    )  # fmt: skip

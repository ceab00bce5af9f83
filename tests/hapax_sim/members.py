"""Raw members of consumer groups: the calls of the classic and of the consumer protocol over one connection.

A member runs beside its program. It follows the coordinator at once, whether or not the program is in a transaction,
so that partitions move in the middle of transactions. The program sees `held` and `membership()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from hapax.client import FatalError
from hapax.client.coordination import ConsumerGroup
from hapax.core.errors import ErrorCode
from hapax.core.group.subscription import PROTOCOL_TYPE, assigned_partitions
from hapax.wire import messages
from hapax.wire.peer import Peer, PeerError
from hapax_sim.clients import Life

SESSION_MS: Final = 6_000
REBALANCE_MS: Final = 8_000
_BEAT_S: Final = 0.4
_PATIENCE_MS: Final = 3_000
PROTOCOL: Final = "roundrobin"
"""The name under which raw members of the classic protocol meet, a leader that is one of them deals by turns."""
_ELSEWHERE: Final = frozenset({
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
})  # fmt: skip
_LEAVES: Final = -1
_PAUSES: Final = -2


class Told(NamedTuple):
    """What a coordinator's answer told one member."""

    epoch: int
    """Or the generation."""
    partitions: frozenset[int]
    alive_until: float
    """Before this time the coordinator cannot have given up the member: its request was sent a session before."""
    by: tuple[str, int]
    """The coordinator's address."""


class Watch(Protocol):
    """Learns what all members know, outside of their processes."""

    def told(self, member: Member, told: Told) -> None: ...
    def lost(self, member: Member, partitions: Iterable[int]) -> None:
        """The program must not use them any more."""
        ...

    def released(self, member: Member, partitions: Iterable[int]) -> None:
        """From now on the coordinator may give them to others: the request that says so is about to be sent, or the
        coordinator had removed the member."""
        ...


class Unanswered(Exception):
    """The call may have taken effect. Another coordinator may be responsible by now."""


class Member:
    """One member in one life of a process."""

    FIRST_EPOCH = -1

    def __init__(
        self, life: Life, group: str, topic: str, partitions: int, instance_id: str | None, watch: Watch
    ) -> None:
        self.life, self.group, self.topic, self.partitions = life, group, topic, partitions
        self.instance_id = instance_id
        self.watch = watch
        self.member_id = ""
        self.epoch = self.FIRST_EPOCH
        self.held: Mapping[int, int] = {}
        """Partition -> serial of its assignment. Replaced, never changed. A partition that was lost in between has
        another serial, because another member may have moved its position."""
        self.quiet_until = 0.0
        """No call begins before this time."""
        self._serial = 0
        self._peer: Peer | None = None
        self._address = ("", 0)

    @property
    def key(self) -> str:
        """A static member that starts again takes the place of the former."""
        return self.instance_id or self.member_id

    def membership(self) -> ConsumerGroup:
        return ConsumerGroup(self.group, self.epoch, self.member_id, self.instance_id)

    async def run(self) -> None:
        """Ends only with an error."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Says goodbye once. What is held is given up in any case."""
        raise NotImplementedError

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close("closed")

    # --- what is held

    def _hold(self, partitions: frozenset[int], sent_at: float) -> None:
        """The coordinator said that these are all."""
        self._lose(self.held.keys() - partitions)
        self._serial += 1
        self.held = {p: self.held.get(p, self._serial) for p in sorted(partitions)}
        self.watch.told(self, Told(self.epoch, partitions, sent_at + SESSION_MS / 1000, self._address))

    def _lose(self, partitions: Iterable[int]) -> None:
        lost = sorted(set(partitions) & self.held.keys())
        if lost:
            self.held = {p: serial for p, serial in self.held.items() if p not in lost}
            self.watch.lost(self, lost)

    def _give_up_all(self) -> None:
        self._lose(self.held)
        self.watch.released(self, range(self.partitions))

    # --- calls

    def _now(self) -> float:
        return self.life.recorder.loop.time()

    async def _pause(self, least: float, most: float) -> None:
        await asyncio.sleep(self.life.rng.uniform(least, most))
        await asyncio.sleep(max(0.0, self.quiet_until - self._now()))

    async def _call(self, message: Any, version: int, patience_ms: int = _PATIENCE_MS) -> Any:
        """Any answer but "not here". Raises Unanswered."""
        try:
            if self._peer is None or self._peer.closed:
                self._peer = await self._coordinator()
            answer = await self._peer.call(message, version=version, timeout_ms=patience_ms)
        except PeerError:
            self._forget()
            raise Unanswered from None
        if answer.error_code in _ELSEWHERE:
            self._forget()
            raise Unanswered
        self.life.recorder.loop.trace(
            f"{self.life.process} {type(message).__name__} as {self.member_id[-12:]} at {self.epoch}: "
            f"{answer.error_code}")
        return answer

    def _forget(self) -> None:
        self.close()
        self._peer = None

    async def _coordinator(self) -> Peer:
        """Each time another node may be asked, whose metadata may be older."""
        servers = self.life.settings()["bootstrap.servers"].split(",")
        host, _, port = self.life.rng.choice(servers).rpartition(":")
        asked = await self._connect(host, int(port))
        try:
            message = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
            (found,) = (await asked.call(message, version=4)).coordinators
        finally:
            asked.close("found")
        if found.error_code:
            raise Unanswered
        self._address = (found.host, found.port)
        return await self._connect(found.host, found.port)

    async def _connect(self, host: str, port: int) -> Peer:
        return await Peer.connect(
            self.life.ports.network, host, port, client_id=self.life.name, request_timeout_ms=_PATIENCE_MS,
            connect_timeout_ms=_PATIENCE_MS, negotiate=False)

    def _refused(self, what: str, code: int) -> FatalError:
        return FatalError(f"{what} of {self.group} was refused", code=code)


class ClassicMember(Member):
    """Eager: it gives everything up before it joins again. The leader deals the partitions out by turns, and begins
    with another member in each generation, so that most of them move."""

    async def run(self) -> None:
        while True:
            try:
                joined = await self._join()
                if joined is not None and await self._sync(joined):
                    await self._beat()
            except Unanswered:
                await self._pause(0.05, 0.5)

    async def leave(self) -> None:
        self._give_up_all()
        Leaving = messages.LeaveGroupRequest
        self._forget()  # a JoinGroup that waits would hold the answer back
        with contextlib.suppress(Unanswered):
            await self._call(Leaving(group_id=self.group, members=[Leaving.MemberIdentity(
                member_id=self.member_id, group_instance_id=self.instance_id, reason=None)]), 5)
        self.member_id, self.epoch = "", self.FIRST_EPOCH

    async def _join(self) -> Any:
        self._give_up_all()
        Join = messages.JoinGroupRequest
        metadata = struct.pack(">hih", 0, 1, len(self.topic)) + self.topic.encode() + struct.pack(">i", -1)
        answer = await self._call(Join(
            group_id=self.group, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id, group_instance_id=self.instance_id, protocol_type=PROTOCOL_TYPE, reason=None,
            protocols=[Join.JoinGroupRequestProtocol(name=PROTOCOL, metadata=metadata)]), 9, REBALANCE_MS + 5_000)
        if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
        if answer.error_code == ErrorCode.NONE:
            self.epoch = answer.generation_id
            return answer
        if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            self._again("JoinGroup", answer.error_code)
        return None

    async def _sync(self, joined: Any) -> bool:
        Sync = messages.SyncGroupRequest
        leads = joined.leader == self.member_id and not joined.skip_assignment
        dealt = self._by_turns([each.member_id for each in joined.members]) if leads else {}
        sent_at = self._now()
        answer = await self._call(Sync(
            group_id=self.group, generation_id=self.epoch, member_id=self.member_id,
            group_instance_id=self.instance_id, protocol_type=PROTOCOL_TYPE, protocol_name=PROTOCOL,
            assignments=[
                Sync.SyncGroupRequestAssignment(member_id=member, assignment=self._encoded(numbers))
                for member, numbers in dealt.items()
            ]), 5, REBALANCE_MS + 5_000)
        if answer.error_code:
            self._again("SyncGroup", answer.error_code)
            return False
        self._hold(frozenset(number for _, number in assigned_partitions(bytes(answer.assignment)) or ()), sent_at)
        return True

    async def _beat(self) -> None:
        """Until the member has to join again."""
        Beat = messages.HeartbeatRequest
        while True:
            await self._pause(_BEAT_S / 2, _BEAT_S)
            try:
                answer = await self._call(Beat(
                    group_id=self.group, generation_id=self.epoch, member_id=self.member_id,
                    group_instance_id=self.instance_id), 4)
            except Unanswered:
                continue
            if answer.error_code:
                self._again("Heartbeat", answer.error_code)
                return

    def _again(self, what: str, code: int) -> None:
        """Whether and as whom the member joins again."""
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif code not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            raise self._refused(what, code)

    def _by_turns(self, members: list[str]) -> dict[str, list[int]]:
        dealt: dict[str, list[int]] = {member: [] for member in sorted(members)}
        turns = list(dealt.values())
        for number in range(self.partitions):
            turns[(number + self.epoch) % len(turns)].append(number)
        return dealt

    def _encoded(self, numbers: list[int]) -> bytes:
        return b"".join((
            struct.pack(">hih", 0, 1, len(self.topic)), self.topic.encode(),
            struct.pack(f">i{len(numbers)}i", len(numbers), *numbers), struct.pack(">i", -1)))


class ConsumerMember(Member):
    """KIP-848. Its program loses at once what it is told to give up. Some heartbeats later the member confirms it, as
    if callbacks ran meanwhile."""

    FIRST_EPOCH = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.member_id = str(uuid.UUID(int=self.life.rng.getrandbits(128), version=4))
        self._topic_id: Any = None
        self._revoked: set[int] = set()
        """What it was told to give up and has not confirmed."""
        self._confirms_at = 0.0
        self._in_full = True
        """The next heartbeat carries everything: at the beginning, after a change and after a lost answer."""

    async def run(self) -> None:
        while True:
            try:
                await self._once()
            except Unanswered:
                self._in_full = True
            await self._pause(_BEAT_S / 2, _BEAT_S)

    async def leave(self) -> None:
        """A static member keeps its place until its session ends, now and then."""
        pauses = self.instance_id is not None and self.life.rng.random() < 0.7
        self._start_over()
        with contextlib.suppress(Unanswered):
            await self._call(self._heartbeat(_PAUSES if pauses else _LEAVES), 1)

    async def _once(self) -> None:
        sent_at = self._now()
        if self._revoked and sent_at > self._confirms_at:
            self.watch.released(self, self._revoked)
            self._revoked, self._in_full = set(), True
        in_full, self._in_full = self._in_full, False
        answer = await self._call(self._heartbeat(self.epoch, in_full or self.epoch == 0), 1)
        code = answer.error_code
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self._start_over()
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID:
            self._in_full = True
            await self._pause(0.2, 1.0)
        elif code:
            raise self._refused("ConsumerGroupHeartbeat", code)
        else:
            self.epoch = answer.member_epoch
            partitions = frozenset(self.held)
            if answer.assignment is not None:
                for each in answer.assignment.topic_partitions:
                    self._topic_id = each.topic_id
                partitions = frozenset(p for each in answer.assignment.topic_partitions for p in each.partitions)
                revoked = self.held.keys() - partitions
                if revoked and not self._revoked:
                    self._confirms_at = self._now() + max(0.0, self.life.rng.uniform(-1.0, 2.0))
                self._revoked = (self._revoked | revoked) - partitions
                self._in_full = not self._revoked
            self._hold(partitions, sent_at)

    def _start_over(self) -> None:
        self._give_up_all()
        self.epoch, self._in_full = 0, True
        self._revoked = set()

    def _heartbeat(self, epoch: int, in_full: bool = False) -> Any:
        Request = messages.ConsumerGroupHeartbeatRequest
        numbers = sorted(self.held.keys() | self._revoked)
        owned = [Request.TopicPartitions(topic_id=self._topic_id, partitions=numbers)] if numbers else []
        return Request(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id,
            rack_id=None, rebalance_timeout_ms=REBALANCE_MS if in_full else -1,
            subscribed_topic_names=[self.topic] if in_full else None, subscribed_topic_regex=None,
            server_assignor=None, topic_partitions=owned if in_full else None)


KINDS: Final[Mapping[str, Callable[..., Member]]] = {"classic": ClassicMember, "consumer": ConsumerMember}

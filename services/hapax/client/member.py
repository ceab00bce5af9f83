"""Carries out a membership in a consumer group: sends its calls, sets its timers, and runs the program's callbacks.

`Membership` decides. One task reports the time to it and starts its calls. Callbacks run within the program's own calls
(`poll`), so a program learns of new partitions only between two batches of records.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from hapax.client.backoff import Backoff
from hapax.client.classic_membership import ClassicMembership
from hapax.client.cluster import ClusterClient
from hapax.client.consumer_membership import ConsumerMembership
from hapax.client.errors import FatalError, HapaxError, WrongState, group_error
from hapax.client.fetcher import Fetcher
from hapax.client.group_calls import decode, encode, has_consumer_protocol
from hapax.client.membership import (
    Answer,
    Call,
    Callback,
    Change,
    Describe,
    Described,
    Failure,
    Identity,
    Join,
    MemberOptions,
    Membership,
    Owned,
    Sync,
)
from hapax.client.records import Record
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime import supervision
from hapax.wire.peer import PeerError, PeerUnsupported

log = logging.getLogger("hapax.client")

OnPartitions = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""A callback of `subscribe`: a function or a coroutine function."""

_LOOK_AGAIN = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_JOIN_SLACK_MS = 5_000
"""The answer to a JoinGroup may come this much later than the longest rebalance timeout, at which the round ends."""
_FAREWELL_MS = 5_000
_OTHER_PROTOCOL = (
    ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
"""Answers to a join by which the coordinator asks for the other protocol, if the client may choose."""


class Subscribed(NamedTuple):
    """Exactly one of `topics` and `pattern` is given."""

    topics: tuple[str, ...]
    pattern: str | None
    on_assigned: OnPartitions | None
    on_revoked: OnPartitions | None
    on_lost: OnPartitions | None


class CommitRevoked(Protocol):
    async def __call__(self) -> None:
        """Commits the positions before partitions are given up, if the program has asked for that. Does not raise if
        the commit fails."""
        ...


class Member:
    def __init__(
        self, cluster: ClusterClient, group: str, fetcher: Fetcher, commit: CommitRevoked, subscribed: Subscribed
    ) -> None:
        self._cluster = cluster
        self._options = options = cluster.options
        self._group = group
        self._fetcher = fetcher
        self._commit = commit
        self._subscribed = subscribed
        self._protocol: str = options["group.protocol"]
        self._member_options = MemberOptions(
            options["session.timeout.ms"], options["heartbeat.interval.ms"], options["max.poll.interval.ms"],
            options["group.instance.id"], options["retry.backoff.ms"], options["retry.backoff.max.ms"])
        self._membership: ClassicMembership | ConsumerMembership | None = None
        self._switched = False
        self._error: HapaxError | None = None
        self._in_callback = self._in_poll = False
        self._paused: set[TopicPartition] = set()
        """Partitions that were paused when they were given up. They are paused again if they return at once."""
        self._task: asyncio.Task[None] | None = None
        self._helpers: dict[str, asyncio.Task[None]] = {}
        self._carriers: set[asyncio.Task[None]] = set()
        self._pumped = asyncio.Event()
        """Set when an event has changed the membership."""
        self._touched = 0
        self._news = False
        self._fence_at: int | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._cluster.follow(self._subscribed.topics)
        self._cluster.listeners.append(self._metadata_heard)
        self._task = supervision.keep(self._run, "client-member", self._cluster.ports.random)

    def resubscribe(self, subscribed: Subscribed) -> None:
        self.check_callback()
        self._subscribed = subscribed
        self._cluster.follow(subscribed.topics)
        membership = self._membership
        if isinstance(membership, ConsumerMembership):
            membership.subscribe(subscribed.topics, subscribed.pattern, self._now())
        elif isinstance(membership, ClassicMembership):
            if subscribed.pattern is None:
                membership.subscribe(subscribed.topics, self._now())
            else:
                self._keep_once("matching-now", self._match)
        self._pump()

    async def leave(self) -> None:
        """Gives up the partitions by callbacks, then leaves the group. Raises what a callback raised."""
        membership = self._membership
        try:
            if membership is not None:
                membership.leave(self._now())
                try:
                    await self._callbacks()
                finally:
                    await self._say_farewell(membership)
        finally:
            self._stop()
            self._fetcher.assign([])

    async def _say_farewell(self, membership: Membership) -> None:
        """Makes one attempt. If it fails, the coordinator notices when the session ends."""
        for _, call in membership.take_calls() if membership.has_left else ():
            try:
                async with asyncio.timeout(_FAREWELL_MS / 1000):
                    await self._send(call)
            except (TimeoutError, PeerError, PeerUnsupported, HapaxError) as error:
                log.warning("leaving group %r was not confirmed: %s", self._group, error)

    def _stop(self) -> None:
        tasks = [*self._helpers.values(), *self._carriers]
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        self._cluster.listeners.remove(self._metadata_heard)
        for (_, purpose), peer in self._cluster.open_peers():
            if purpose == "join":
                peer.close("the consumer has left its group")  # a JoinGroup may be waiting there

    # --- the program ----------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int, limit: int) -> list[Record]:
        """Runs callbacks, then returns records as `Fetcher.take` does. Raises HapaxError, and what a callback
        raised."""
        deadline = self._now() + timeout_ms
        with self._polling():
            while True:
                await self._callbacks()
                self.check()
                records = await self._fetcher.take(max(deadline - self._now(), 0), limit, self.has_news)
                if records or (self._now() >= deadline and not self.has_news()):
                    return records

    def touch(self) -> bool:
        """Shows that the program is alive while it takes records of an earlier poll, on any thread. Returns False if it
        has to poll now."""
        self._touched = self._now()
        return not self.has_news()

    def has_news(self) -> bool:
        """Whether callbacks have to run before any record is returned."""
        return self._news or (self._fence_at is not None and self._now() >= self._fence_at)

    def check(self) -> None:
        """Raises the error that ended the membership."""
        if self._error is not None:
            raise self._error

    @contextmanager
    def _polling(self) -> Iterator[None]:
        self.check_callback()
        self._in_poll = True
        if self._membership is not None:
            self._membership.begin_poll(self._now())
            self._pump()
        try:
            yield
        finally:
            self._in_poll = False
            if self._membership is not None:
                self._membership.end_poll(self._now())
                self._pump()

    def check_callback(self) -> None:
        """Raises WrongState within a callback."""
        if self._in_callback:
            raise WrongState("a callback of the subscription must not call poll, subscribe or unsubscribe")

    async def _callbacks(self) -> None:
        membership, error = self._membership, None
        while membership is not None and (callback := membership.begin_callback(self._now())) is not None:
            self._pump()
            partitions = [_partition(each) for each in callback.partitions]
            if callback.change is Change.ASSIGNED:
                self._fetcher.add(partitions)
                self._fetcher.pause(self._paused.intersection(partitions))
                self._paused.clear()
            elif callback.change is Change.REVOKED:
                await self._commit()
            try:
                await self._tell(callback, partitions)
            except Exception as raised:  # from the program; raised to it once the group has been told
                error = error or raised
            if callback.change is not Change.ASSIGNED:
                self._paused.update(self._fetcher.paused(partitions))
                self._fetcher.drop(partitions)
            membership.end_callback(self._now())
            self._pump()
            membership = self._membership
        if error is not None:
            raise error

    async def _tell(self, callback: Callback, partitions: list[TopicPartition]) -> None:
        subscribed = self._subscribed
        told = {
            Change.ASSIGNED: subscribed.on_assigned, Change.REVOKED: subscribed.on_revoked,
            Change.LOST: subscribed.on_lost or subscribed.on_revoked,
        }[callback.change]
        if told is None:
            return
        self._in_callback = True
        try:
            waited_for = told(partitions)
            if inspect.isawaitable(waited_for):
                await waited_for
        finally:
            self._in_callback = False

    # --- committing -----------------------------------------------------------------------------------------------

    def identity(self) -> Identity:
        membership = self._membership
        if membership is None:
            return Membership(self._member_options, 0).identity()
        return membership.identity()

    @property
    def of_consumer_protocol(self) -> bool:
        return isinstance(self._membership, ConsumerMembership)

    def tenures(self) -> dict[TopicPartition, int]:
        """The owned partitions, each with the number of its time of ownership."""
        membership = self._membership
        if membership is None or not membership.usable:
            return {}
        return {_partition(each): tenure for each, tenure in membership.owned.items()}

    async def ask_again(self, refused: Identity) -> bool:
        """Waits, after a commit under this identity was refused, until the coordinator has said whether the member is
        still one. Returns whether it now has another identity, with which the same commit may be accepted."""
        membership = self._membership
        if membership is None:
            return False
        before = membership.confirmations
        membership.hurry(self._now())
        self._pump()
        try:
            async with asyncio.timeout(self._options["request.timeout.ms"] / 1000):
                while membership.usable and membership.identity() == refused and (
                        membership.in_round or membership.confirmations == before):
                    await self._change()
        except TimeoutError:
            pass
        return membership.usable and membership.identity() != refused

    async def _change(self) -> None:
        self._pumped.clear()
        await self._pumped.wait()

    # --- the task -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self._error is None:
            if self._membership is None:
                await self._begin()
            self._pump()
            deadline = None if self._membership is None else self._membership.next_deadline()
            pause = None if deadline is None else max(deadline - self._now(), 1) / 1000
            try:
                async with asyncio.timeout(pause):
                    await self._change()
            except TimeoutError:
                pass

    async def _begin(self) -> None:
        """Finds the coordinator and chooses the protocol. Retries without a limit."""
        backoff = Backoff(self._options, self._cluster.ports)
        while self._error is None:
            try:
                peer = await self._cluster.coordinator_peer("group", self._group)
                protocol = self._protocol
                if protocol == "auto":
                    protocol = "consumer" if has_consumer_protocol(peer.capabilities) else "classic"
                await self._join_by(protocol)
                return
            except (PeerError, HapaxError) as error:
                if isinstance(error, FatalError):
                    self._give_up(error)
                    return
                self._cluster.forget_coordinator("group", self._group)
            await asyncio.sleep(backoff.seconds())

    async def _join_by(self, protocol: str) -> None:
        subscribed = self._subscribed
        if protocol == "consumer":
            self._membership = ConsumerMembership(
                self._member_options, subscribed.topics, subscribed.pattern, self._options["group.remote.assignor"],
                self._fresh_id, self._now())
        else:
            topics: Iterable[str] = subscribed.topics
            if subscribed.pattern is not None:
                topics = await self._matching(subscribed.pattern)
            self._membership = ClassicMembership(
                self._member_options, topics, self._options["partition.assignment.strategy"], self._now())
        if self._in_poll:
            self._membership.begin_poll(self._now())

    def _fresh_id(self) -> str:
        return str(uuid.UUID(bytes=self._cluster.ports.random.randbytes(16), version=4))

    def _pump(self) -> None:
        """Called after an event: starts calls, and notes what the program has to learn at once."""
        membership = self._membership
        if membership is None:
            return
        membership.touch(self._touched)
        membership.due(self._now())
        if membership.failure is not None and self._error is None:
            self._failed(membership.failure)
            return
        if not membership.has_left:
            for number, call in membership.take_calls():
                task = supervision.once(
                    self._carry(membership, number, call), "client-member-call", type(call).__name__)
                self._carriers.add(task)
                task.add_done_callback(self._carriers.discard)
        if isinstance(membership, ConsumerMembership):
            if membership.unnamed():
                self._keep_once("naming", self._name)
        elif self._subscribed.pattern is not None:
            self._keep_once("matching", self._match_from_time_to_time)
        elif isinstance(membership, ClassicMembership):
            self._cluster.follow(membership.watched())
        self._fence_at = membership.fence_at()
        self._news = membership.callback_waits()
        if self._news:
            self._fetcher.wake()
        self._pumped.set()

    def _failed(self, failure: Failure) -> None:
        if self._options["group.protocol"] == "auto" and failure.code in _OTHER_PROTOCOL and not failure.joined \
                and not self._switched:
            self._switched = True
            self._protocol = "classic" if isinstance(self._membership, ConsumerMembership) else "consumer"
            log.info("group %r: joining by the %s protocol, because the coordinator answered %s",
                     self._group, self._protocol, failure.code.name)
            self._membership = None
            self._fetcher.wake()
            self._pumped.set()
        else:
            self._give_up(group_error(
                self._group, failure.code, failure.reason, self._options["group.instance.id"]))

    def _give_up(self, error: HapaxError) -> None:
        """Makes every later `poll` raise the error."""
        self._error = self._error or error
        self._news = True
        self._fetcher.wake()
        self._pumped.set()

    def _now(self) -> int:
        return self._cluster.now()

    # --- calls ----------------------------------------------------------------------------------------------------

    async def _carry(self, membership: Membership, number: int, call: Call) -> None:
        try:
            answer = await self._send(call)
        except PeerUnsupported as error:
            self._give_up(FatalError(f"joining group {self._group!r}: {error}"))
            return
        except (PeerError, HapaxError) as error:
            if isinstance(error, FatalError) and not isinstance(error, WrongState):  # finding the coordinator
                self._give_up(error)
                return
            log.debug("group %r: %s", self._group, error)
            self._cluster.forget_coordinator("group", self._group)
            membership.unanswered(number, self._now())
        else:
            membership.answered(number, answer, self._now())
        if membership is self._membership:
            self._pump()

    async def _send(self, call: Call) -> Answer:
        """Raises PeerError, PeerUnsupported, HapaxError."""
        if isinstance(call, Describe):
            found = await self._cluster.existing(call.topics)
            return Described({name: len(topic.partitions) for name, topic in found.items()})
        node = await self._cluster.coordinator("group", self._group)
        waits = isinstance(call, Join | Sync)
        peer = await self._cluster.peer(node, "join" if waits else "coordinator")
        message, version = encode(self._group, self._options, call, peer.capabilities)
        timeout_ms = self._options["max.poll.interval.ms"] + _JOIN_SLACK_MS if waits else None
        answer = decode(call, await peer.call(message, version=version, timeout_ms=timeout_ms))
        if getattr(answer, "error", 0) in _LOOK_AGAIN:
            self._cluster.forget_coordinator("group", self._group)
        return answer

    # --- topics ---------------------------------------------------------------------------------------------------

    def _keep_once(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        task = self._helpers.get(name)
        if task is None or task.done():
            self._helpers[name] = supervision.keep(step, f"client-{name}", self._cluster.ports.random)

    async def _name(self) -> None:
        """Finds the names of the topics that the coordinator names by id."""
        backoff = Backoff(self._options, self._cluster.ports)
        while isinstance(membership := self._membership, ConsumerMembership) and membership.unnamed():
            try:
                if self._subscribed.pattern is None:
                    found = await self._cluster.existing(self._subscribed.topics)
                else:
                    found = await self._cluster.all_topics()
            except HapaxError:
                found = {}
            membership.named({topic.topic_id.bytes: name for name, topic in found.items()}, self._now())
            self._pump()
            if membership.unnamed():
                await asyncio.sleep(backoff.seconds())

    async def _match_from_time_to_time(self) -> None:
        while True:
            await asyncio.sleep(self._options["metadata.max.age.ms"] / 1000)
            await self._match()

    async def _match(self) -> None:
        """Compares the pattern with the cluster's topics (the classic protocol only)."""
        try:
            pattern = self._subscribed.pattern
            membership = self._membership
            if pattern is not None and isinstance(membership, ClassicMembership):
                membership.subscribe(await self._matching(pattern), self._now())
                self._pump()
        except HapaxError as error:
            log.warning("the topics of group %r were not listed, next attempt follows: %s", self._group, error)

    async def _matching(self, pattern: str) -> list[str]:
        import re2

        compiled = re2.compile(pattern)
        topics = await self._cluster.all_topics()
        found = [name for name in topics if not name.startswith("__") and compiled.fullmatch(name)]
        self._cluster.follow(found)
        return found

    def _metadata_heard(self, moved: Iterable[TopicPartition]) -> None:
        membership = self._membership
        if isinstance(membership, ClassicMembership) and (watched := membership.watched()):
            topics = self._cluster.topics
            membership.counted({name: len(topics[name].partitions) for name in watched if name in topics}, self._now())
            self._pump()


def _partition(owned: Owned) -> TopicPartition:
    return TopicPartition(owned.topic, PartitionIndex(owned.partition))

"""Enforces client quotas (KIP-13, 55, 124, 219, 599, 612): what requests are charged, and for how long their
connections are not read afterwards.

A request is never held back. It is handled and answered at once; its answer says for how long its connection will not
be read. Each connection of a client is judged at its own next request. Where no quota is stored, `Quotas.enforced` is
all that a request looks at.

What is charged: Produce the bytes of its request, Fetch those of its answer, every request the time of the event loop
while it is handled and its answer is encoded; not what partitions and groups do later on its behalf. CreateTopics,
DeleteTopics and CreatePartitions are charged the partitions that they change, by the acting controller. The cluster's
own nodes, which prove themselves, are charged nothing. Nor are logins: clients have one name until they have logged in,
and each could use up what others need for that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Mapping, Sequence
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hapax.core.access.principals import Principal
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.hosts import plain_host
from hapax.core.quota.entities import (
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    LONGEST_NAME,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from hapax.core.quota.index import Limit
from hapax.core.quota.meter import Meter, Windows
from hapax.core.quota.meters import Meters, Owner
from hapax.core.types import NodeId, RegistrationEpoch
from hapax.kafka.node_proofs import proven
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Chunk
from hapax.runtime.security_settings import SSL
from hapax.runtime.settings import Settings

if TYPE_CHECKING:
    from hapax.kafka.table import AnsweringSession, RequestContext

_PRODUCE: Final = 0
_FETCH: Final = 1
_NAMELESS: Final = frozenset({17, 18, 36})
"""SaslHandshake, ApiVersions and SaslAuthenticate: what everybody may send before it is known who it is. Logins have
bounds of their own."""
_BYTES: Final = (bytes, bytearray, memoryview)
LONGEST_ACCEPT_MS: Final = 10_000
"""A connection that would have to wait longer is closed at once: waiting ones occupy the listener."""


class ClientLimits:
    """What holds for one client of a connection: found once, until the quotas or the client change."""

    __slots__ = ("client_id", "meters", "principal", "serial", "unlimited", "user")

    def __init__(self, serial: int, principal: Principal, client_id: str | None) -> None:
        self.serial = serial
        """Of the quotas. The index itself would be kept by each idle connection."""
        self.principal = principal
        self.client_id = client_id
        self.user = principal.partition(":")[2]
        self.unlimited = False
        """Neither what it writes nor the time that it takes has a limit."""
        self.meters: dict[str, tuple[Meter, float, Limit] | None] = {}
        """By key: the meter, the amount that its windows may have at any time, and the limit. None: there is none."""


class Quotas:
    """Of one node. `enforced` is False while no quota is stored."""

    def __init__(self, settings: Settings, view: ClusterView | None = None) -> None:
        """`view` None: no quota ever holds."""
        self.enforced = False
        self.times = False
        """Some client has a quota of time."""
        self._limits_connections = False
        self.throttled: Counter[str] = Counter()
        """Key -> requests (or connections) that were told to wait."""
        self.throttled_ms: Counter[str] = Counter()
        """Key -> what they were told, in milliseconds."""
        self.changed: Callable[[], None] | None = None
        """Called after each change of the quotas."""
        self._serial = 0
        self._node_hosts: dict[NodeId, tuple[str, RegistrationEpoch, bytes]] = {}
        """Where each node's last proof came from."""
        self._view = view
        self._secured = settings.security_inter_broker_protocol == SSL
        self._nodes = frozenset(
            each.strip() for each in settings.node_principals.split(";") if each.strip() and not self._secured)
        most, most_names = settings.quota_meters_max, settings.quota_client_ids_max
        self._windows = Windows(settings.quota_window_num, settings.quota_window_size_seconds * 1000)
        self._rates: Meters[Meter] = Meters(Meter, self._windows, most, most_names)
        self._connections: Meters[Meter] = Meters(Meter, self._windows, most, most_names)
        """By address, of which anybody may have any number."""
        self._all = self._rates, self._connections
        if view is not None:
            self._time = asyncio.get_running_loop().time
            view.quotas.swapped = self._swapped
            self._swapped()

    def _swapped(self) -> None:
        assert self._view is not None
        index = self._view.quotas.index
        self._limits_connections = index.limits_connections
        self.enforced = bool(index)
        self.times = REQUEST_PERCENTAGE in index.keys()  # noqa: SIM118  # it is no mapping
        self._serial += 1
        if not index:
            for meters in self._all:
                meters.clear()
        if self.changed is not None:
            self.changed()

    def differ(self, limits: ClientLimits) -> bool:
        """Whether a quota that was looked up for this client is another one by now."""
        return any(
            self._limit(limits, key) != (None if found is None else found[2]) for key, found in limits.meters.items())

    def meters(self) -> int:
        return sum(map(len, self._all))

    def meters_given_up(self) -> int:
        return sum(meters.given_up for meters in self._all)

    def entities(self) -> int:
        return 0 if self._view is None else len(self._view.quotas.index)

    # --- requests -----------------------------------------------------------------------------------------------------

    def arrived(self, ctx: RequestContext, size: int, seconds: float) -> int:
        """Charges a request whose handler has been called. How long its connection is not read, in milliseconds.
        `size`: bytes of its frame; `seconds`: how long it has kept the event loop busy."""
        key = ctx.api.key
        session = ctx.session
        if session.node or (ctx.uncharged and key in _NAMELESS):
            return 0
        limits = session.limits
        if (
            limits is None or limits.serial != self._serial or limits.client_id != ctx.client_id
            or limits.principal != session.principal
        ):
            limits = self._found_limits(ctx)
        if limits.unlimited:
            return 0
        now_ms = int(self._time() * 1000)
        wait_ms = self._charge(limits, PRODUCER_BYTE_RATE, size, now_ms) if key == _PRODUCE else 0
        if self.times:
            busy_ms = self._charge(limits, REQUEST_PERCENTAGE, seconds * 100, now_ms, self._windows.size_ms)
            return max(wait_ms, busy_ms)
        return wait_ms

    def spent(self, ctx: RequestContext, seconds: float) -> None:
        """Charges time for a request that has been answered, or goes on: the client's next request is judged by it."""
        if ctx.session.node or (ctx.uncharged and ctx.api.key in _NAMELESS):
            return
        found = self._meter(self._limits_of(ctx), REQUEST_PERCENTAGE)
        if found is not None:
            found[0].add(seconds * 100, self._now_ms())

    def timed(self, ctx: RequestContext, work: Awaitable[Any], stopwatch: Callable[[], float]) -> Awaitable[Any]:
        """The work; each of its steps is charged."""
        if not isinstance(work, Coroutine) or self._meter(self._limits_of(ctx), REQUEST_PERCENTAGE) is None:
            return work

        async def steps() -> Any:
            return await _stepped(work, stopwatch, lambda seconds: self.spent(ctx, seconds))

        return steps()

    def answered(self, ctx: RequestContext, answer: Any) -> int:
        """Charges a Fetch the bytes that it is about to be sent."""
        if ctx.api.key != _FETCH or ctx.uncharged or ctx.session.node or type(answer) is not tuple:
            return 0
        return self._charge(self._limits_of(ctx), CONSUMER_BYTE_RATE, _size(answer), self._now_ms())

    def fetch(self, ctx: RequestContext) -> tuple[int, int] | None:
        """For a client's Fetch that has just arrived: how long it has to wait, and the most bytes of an answer, which
        alone does not exceed the quota. None: there is no limit."""
        if ctx.session.node:
            return None
        found = self._meter(self._limits_of(ctx), CONSUMER_BYTE_RATE)
        if found is None:
            return None
        meter, free, limit = found
        wait_ms = meter.wait_ms(limit.rate, self._now_ms())
        if wait_ms:
            self.count(CONSUMER_BYTE_RATE, wait_ms)
            ctx.throttle(wait_ms)
            ctx.uncharged = True
        return wait_ms, max(1, int(free))

    def limited(self, ctx: RequestContext, key: str) -> tuple[str, str] | None:
        """The user and client id of a client who has a quota of this key; None: it has none."""
        if not self.enforced or ctx.session.node:
            return None
        limits = self._limits_of(ctx)
        return None if self._limit(limits, key) is None else (limits.user, _named(limits.client_id))

    def notice_node(self, ctx: RequestContext, proof: bytes) -> None:
        """The request shows a proof: from a node of the cluster, the connection is charged nothing from now on."""
        if self._view is None or ctx.session.node:
            return
        if self._nodes and ctx.principal not in self._nodes:
            return
        shown = proven(self._view, ctx, proof, self._secured)
        ctx.session.node = shown is not None
        ctx.session.unproven = shown is None and (not self._secured or ctx.session.service is not None)
        if shown is not None:
            node = shown.node
            self._node_hosts[node.node_id] = plain_host(ctx.host), node.registration, node.session

    def _limits_of(self, ctx: RequestContext) -> ClientLimits:
        session: AnsweringSession = ctx.session
        limits = session.limits
        if (
            limits is None or limits.serial != self._serial or limits.client_id != ctx.client_id
            or limits.principal != session.principal
        ):
            limits = self._found_limits(ctx)
        return limits

    def _found_limits(self, ctx: RequestContext) -> ClientLimits:
        session = ctx.session
        limits = ClientLimits(self._serial, session.principal, ctx.client_id)
        limits.unlimited = all(self._limit(limits, key) is None for key in (PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE))
        if len(ctx.client_id or "") <= LONGEST_NAME:  # a longer one is not kept for every connection
            session.limits = limits
        return limits

    def _meter(self, limits: ClientLimits, key: str) -> tuple[Any, float, Limit] | None:
        found = limits.meters.get(key, _UNKNOWN)
        if found is _UNKNOWN or (found is not None and not found[0].live):
            found = limits.meters[key] = self._found(limits, key)
        return found

    def _limit(self, limits: ClientLimits, key: str) -> Limit | None:
        assert self._view is not None
        return self._view.quotas.index.limit(key, limits.user, _named(limits.client_id))

    def _found(self, limits: ClientLimits, key: str) -> tuple[Meter, float, Limit] | None:
        limit = self._limit(limits, key)
        if limit is None:
            return None
        owner = Owner(key, limit.user, limit.client_id)
        meter = self._rates.of(owner, self._now_ms(), limits.user if limit.by_default else None)
        return meter, limit.rate * self._windows.full_s, limit

    def _charge(self, limits: ClientLimits, key: str, amount: float, now_ms: int, longest_ms: int | None = None) -> int:
        found = limits.meters.get(key, _UNKNOWN)
        if found is None:
            return 0
        if found is _UNKNOWN or not found[0].live:
            found = self._meter(limits, key)
            if found is None:
                return 0
        meter, free, limit = found
        if meter.add(amount, now_ms) <= free:
            return 0
        wait_ms: int = meter.wait_ms(limit.rate, now_ms)
        if longest_ms is not None:
            wait_ms = min(wait_ms, longest_ms)
        if wait_ms:
            self.count(key, wait_ms)
        return wait_ms

    def count(self, key: str, wait_ms: int) -> None:
        """One request, or connection, was told to wait."""
        self.throttled[key] += 1
        self.throttled_ms[key] += wait_ms

    def _now_ms(self) -> int:
        return int(self._time() * 1000)

    # --- connections --------------------------------------------------------------------------------------------------

    def connected(self, peer: str) -> int:
        """Charges a connection to the address that it comes from (`host:port`). How long it is not read, in
        milliseconds; more than `LONGEST_ACCEPT_MS`: it is closed."""
        if not self._limits_connections:
            return 0
        assert self._view is not None
        host = plain_host(peer.rpartition(":")[0])
        found = self._view.quotas.index.connections(host)
        if found is None:
            return 0
        rate, by_default = found
        if by_default and self._of_a_node(host):
            return 0
        now_ms = self._now_ms()
        meter = self._connections.of(Owner(CONNECTION_CREATION_RATE, None, host), now_ms)
        meter.add(1, now_ms)
        wait_ms = meter.wait_ms(rate, now_ms)
        if wait_ms > LONGEST_ACCEPT_MS:
            meter.add(-1, now_ms)  # what is refused does not make the others wait
        if wait_ms:
            self.count(CONNECTION_CREATION_RATE, min(wait_ms, LONGEST_ACCEPT_MS))
        return wait_ms

    def _of_a_node(self, host: str) -> bool:
        """A live node is registered under this address, or has shown its proof from there."""
        view = self._view
        assert view is not None
        return any(node.host == host for node in view.nodes()) or any(
            where == host and view.registered(registration, session) is not None
            for where, registration, session in self._node_hosts.values())


class Mutations:
    """What a client changes, charged by the acting controller to one quota for all nodes."""

    def __init__(self, quotas: Quotas, administration: Administration) -> None:
        self._quotas = quotas
        self._administration = administration

    async def refused(
        self, ctx: RequestContext, partitions: Mapping[_Change, int], timeout_ms: int, *, strict: bool,
        waits: bool = True,
    ) -> dict[_Change, Refusal]:
        """Changes that must not be made, and why. `partitions`: how many each makes or deletes. `strict`: the client
        knows THROTTLING_QUOTA_EXCEEDED, by which everything is refused while it owes something. Others are served
        then, unless they owe too much. `waits`: the answer says how long."""
        if not partitions:
            return {}
        client = self._quotas.limited(ctx, CONTROLLER_MUTATION_RATE)
        if client is None:
            return {}
        try:
            answer = await self._administration.take_mutations(*client, strict, list(partitions.values()), timeout_ms)
        except Refusal as away:
            return dict.fromkeys(partitions, away)
        if answer.wait_ms:
            self._quotas.count(CONTROLLER_MUTATION_RATE, answer.wait_ms)
            if waits:
                ctx.throttle(answer.wait_ms)
        exceeded = Refusal(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED if strict else ErrorCode.POLICY_VIOLATION,
            f"the quota {CONTROLLER_MUTATION_RATE} of {answer.rate:g} is exceeded; wait {answer.wait_ms} ms")
        return {change: exceeded for change, refused in zip(partitions, answer.refused, strict=True) if refused}


_Change = TypeVar("_Change", bound=Hashable)
_UNKNOWN: Final[Any] = object()
METERED: Final = (*CLIENT_KEYS, CONNECTION_CREATION_RATE)


@coroutine
def _stepped(
    work: Coroutine[Any, Any, Any], stopwatch: Callable[[], float], spent: Callable[[float], None]
) -> Generator[Any, Any, Any]:
    """Awaits the work. `spent` gets the seconds of each step: between two waits it keeps the event loop busy."""
    step: Callable[[], Any] = partial(work.send, None)
    while True:
        began = stopwatch()
        try:
            waits_for = step()
        except StopIteration as done:
            return done.value
        finally:
            spent(stopwatch() - began)
        try:
            step = partial(work.send, (yield waits_for))
        except BaseException as error:  # also of a task that is cancelled: the work decides
            step = partial(work.throw, error)


def _named(client_id: str | None) -> str:
    return (client_id or "")[: LONGEST_NAME + 1]  # no quota names a longer one


def _size(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk) if isinstance(chunk, _BYTES) else chunk.size for chunk in chunks)


def told_in_message(version: int, answer: Any, throttle_ms: int) -> Any:
    """The answer with its `throttle_time_ms`, where it has one."""
    if hasattr(answer, "throttle_time_ms"):
        answer.throttle_time_ms = max(answer.throttle_time_ms or 0, throttle_ms)
    return answer

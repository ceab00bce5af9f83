"""A client's view of its cluster: nodes, leaders, coordinators, and one connection for each node and purpose.

One task requests metadata: when a caller needs something unknown, after every sign that the metadata is stale, and when
the metadata has reached its maximum age. All callers read the last answer or wait for the next one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from hapax.client.backoff import Backoff
from hapax.client.environment import ClientPorts
from hapax.client.errors import (
    AuthenticationError,
    FatalError,
    HapaxError,
    NotHapaxError,
    RetriableError,
    SaslAuthenticationFailed,
    WrongState,
    connection_failed,
    from_code,
    from_status,
    is_retriable,
)
from hapax.client.liveness import Liveness
from hapax.client.login import is_of_credential, login_of
from hapax.client.metadata import CoordinatorKind, Leader, Purpose, Topic
from hapax.client.security import certificates_of
from hapax.client.settings import Options
from hapax.core.errors import ErrorCode
from hapax.core.types import TopicPartition
from hapax.runtime import supervision
from hapax.runtime.ports import RpcChannel, RpcError
from hapax.wire import messages
from hapax.wire.image_revision import image_revision
from hapax.wire.messages import unknown_tag
from hapax.wire.peer import Peer, PeerDistrusted, PeerError, PeerLoginRefused, PeerUnsupported

T = TypeVar("T")

RPC_ADDRESS_TAG = 10000
"""On each broker of a DescribeCluster answer: its `host:port` for Hapax's own calls."""
ALLOCATOR_TAG = 10001
"""On the answer itself: the `host:port` of a producer-id allocator (leases)."""
CONTROLLER_TAG = 10002
"""On the answer itself: the `host:port` of the acting controller."""
OTHER_NODES_TAG = 10003
"""On the answer itself: the nodes without a Kafka listener, as JSON."""
COORDINATORS: Final = range(100, 200)
"""On the answer itself: the node ids of those nodes."""
_COORDINATORS_KNOWN: Final = 1000
"""Maximum number of groups and transactional ids whose coordinators are cached. The oldest entry is dropped first."""
_NAMES_REMEMBERED: Final = 10_000
"""At most this many topics that the client does not follow are known by name and revision."""
_DESCRIBED_MS: Final = 1000
"""How long the nodes' addresses are cached."""
_QUESTION_MS: Final = 1500
"""Time-out of a question that any node can answer at once. After it, another node is asked."""


_SAYS_WHICH: Final = (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Errors of answers that say which topic has the name, or that none has it."""


def _id_in(answer: Any) -> Any:
    return None if answer.error_code else answer.topic_id


def _told_again(error: SaslAuthenticationFailed) -> SaslAuthenticationFailed:
    return SaslAuthenticationFailed(error.message, code=error.code)


class ClusterClient:
    def __init__(self, options: Options, ports: ClientPorts, *, auto_create: bool = False) -> None:
        self.options = options
        self.ports = ports
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.nodes: dict[int, tuple[str, int]] = {}
        self.topics: dict[str, Topic] = {}
        self._topic_ids: dict[str, tuple[Any, int]] = {}
        """Name -> (the topic's id, None if it does not exist; the newest revision at which a node said so)."""
        self._forget_at = _NAMES_REMEMBERED
        """More names than this are not remembered."""
        self._forgotten_at = 0
        """The newest revision of a name that is remembered no more."""
        self._behind: set[int] = set()
        """Nodes that have contradicted this by a lower revision since an answer was last as new as any before."""
        self._newest = 0
        """The highest revision of an answer."""
        self.topic_errors: dict[str, int] = {}
        self.transaction_version = 0
        """The finalized level of the feature. 0 and 1 mean version 1."""
        self.listeners: list[Callable[[Iterable[TopicPartition]], None]] = []
        """Called after each metadata request with the partitions that have new leaders."""
        self._tls = certificates_of(options)
        self._login = login_of(options, ports)
        self._shut_out: SaslAuthenticationFailed | None = None
        """No node lets this client in, each because of how it is set up."""
        self._auto_create = auto_create
        self._interesting: dict[str, None] = {}
        self._moved: dict[TopicPartition, None] = {}
        self._leaderless: dict[TopicPartition, None] = {}
        """Partitions for which a caller wanted a leader while there was none."""
        self._peers: dict[tuple[int, Purpose], asyncio.Task[Peer]] = {}
        self._connecting: dict[tuple[int, Purpose], float] = {}
        """The time since when there has been none, on the loop's clock."""
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        self._wanted = asyncio.Event()
        self._rounds: list[asyncio.Future[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._metadata_peer: Peer | None = None
        self._finding = asyncio.Lock()
        """Held while the client searches for a node that answers."""
        self._rpc: dict[str, RpcChannel] = {}
        self._addresses: asyncio.Future[tuple[dict[int, str], str | None]] | None = None
        """The result of `rpc_addresses`, requested once for all callers, and the time until which it is valid."""
        self._addresses_until = 0
        self._closed = False

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Finds the cluster. Raises RetriableError where no bootstrap server answers in time."""
        await self.within(self.options["request.timeout.ms"], "finding the cluster", self._ask)
        self._tasks = [
            supervision.keep(self._refresh_for_ever, "client-metadata", self.ports.random),
            supervision.keep(Liveness(self).run, "client-liveness", self.ports.random),
        ]

    async def close(self) -> None:
        """Calls that still wait raise WrongState and open no further connections. All connections are closed, even if
        this call is cancelled."""
        self._closed = True
        for each in self._tasks:
            each.cancel()
        _settle(self._rounds)
        for task in self._peers.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            else:
                task.cancel()
        self._peers.clear()
        ending: list[asyncio.Future[Any]] = [*self._tasks]
        if self._addresses is not None:
            self._addresses.cancel()
            ending.append(self._addresses)
        if self._metadata_peer is not None:
            self._metadata_peer.close()
        if self._login is not None:
            self._login.close()
        try:
            await asyncio.gather(*ending, return_exceptions=True)
        finally:
            channels = list(self._rpc.values())
            self._rpc.clear()
            for channel in channels:
                await channel.close()

    def now(self) -> int:
        return self.ports.clock.monotonic_ms()

    # --- metadata ---------------------------------------------------------------------------------------------

    def leader(self, partition: TopicPartition) -> Leader | None:
        """None or node -1: the leader is unknown at the moment, and a refresh is under way."""
        topic = self.topics.get(partition.topic)
        found = None if topic is None else topic.partitions.get(partition.partition)
        if found is None or found.node_id < 0:
            self._interesting[partition.topic] = None
            self._leaderless[partition] = None
            self.refresh_soon()
        return found

    async def topic(self, name: str, timeout_ms: int) -> Topic:
        """The topic's partitions, requested if they are not known. Raises FatalError for an invalid name or missing
        access, RetriableError where they are not known in time."""
        self._interesting[name] = None
        deadline = self.now() + timeout_ms
        while True:
            topic = self.topics.get(name)
            if topic is not None and topic.partitions:
                return topic
            code = self.topic_errors.get(name, 0)
            if code and not is_retriable(code):
                raise from_code(code, f"topic {name!r}")
            if self._login is not None:
                self._login.check()
            if self._shut_out is not None:
                raise _told_again(self._shut_out)
            left = deadline - self.now()
            if left <= 0:
                code = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise from_code(code, f"topic {name!r}, after {timeout_ms} ms")
            await self.refreshed(left)

    def follow(self, topics: Iterable[str]) -> None:
        """Keeps these topics' metadata up to date."""
        new = [each for each in topics if each not in self._interesting]
        if new:
            self._interesting.update(dict.fromkeys(new))
            self.refresh_soon()

    def refresh_soon(self) -> None:
        self._wanted.set()

    async def refreshed(self, timeout_ms: int) -> None:
        """Requests metadata and waits for the next answer, at most `timeout_ms`. Does not raise if that request fails.
        Raises WrongState once this client is closed."""
        self._check_open()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rounds.append(done)
        self._wanted.set()
        await asyncio.wait([done], timeout=timeout_ms / 1000)
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise WrongState("the client was closed")

    async def all_topics(self) -> dict[str, Topic]:
        """Every topic of the cluster, including internal ones."""
        return await self._ask_for(None)

    async def existing(self, names: Iterable[str]) -> dict[str, Topic]:
        """The given topics that exist now. None is created."""
        return await self._ask_for(list(dict.fromkeys(names)), create=False)

    async def topics_of(self, partitions: Iterable[TopicPartition], *, fresh: bool) -> dict[str, Topic]:
        """The partitions' topics that exist, as last heard. They are requested again if one of the partitions is not
        known or the caller wants a `fresh` answer. A stale answer does no harm to a caller that asks the leaders: a
        former leader answers that it no longer leads."""
        wanted = list(partitions)
        if fresh or any(
            (topic := self.topics.get(each.topic)) is None or each.partition not in topic.partitions for each in wanted
        ):
            return await self.existing(each.topic for each in wanted)
        return {each.topic: self.topics[each.topic] for each in wanted}

    async def _refresh_for_ever(self) -> None:
        backoff = Backoff(self.options, self.ports)
        while True:
            try:
                async with asyncio.timeout(self.options["metadata.max.age.ms"] / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            rounds, self._rounds = self._rounds, []
            pause = self.options["retry.backoff.ms"] / 1000
            try:
                await self._ask()
                self._leaderless = {each: None for each in self._leaderless if self._has_no_leader(each)}
                if self._leaderless:
                    pause = backoff.seconds()
                    self._wanted.set()
                else:
                    backoff = Backoff(self.options, self.ports)
            except Exception as error:  # those who wait must not wait for ever
                if not isinstance(error, HapaxError):
                    supervision.failed("client-metadata", error)
                pause = backoff.seconds()
                self._wanted.set()
            finally:
                _settle(rounds)
            if self.listeners:
                moved, self._moved = self._moved, {}
                for told in list(self.listeners):
                    told(moved)
            await asyncio.sleep(pause)

    def _has_no_leader(self, partition: TopicPartition) -> bool:
        topic = self.topics.get(partition.topic)
        leader = None if topic is None else topic.partitions.get(partition.partition)
        return leader is not None and leader.node_id < 0

    async def _ask(self) -> None:
        await self._ask_for(list(self._interesting), create=self._auto_create)

    async def _ask_for(self, names: list[str] | None, *, create: bool = False) -> dict[str, Topic]:
        """None: for all topics."""
        while True:
            response = await self._from_any_node(lambda: self._metadata_request(names, create), _QUESTION_MS)
            found, asks_another = self._heard(response)
            if not asks_another:
                return found

    def heard(self, response: Any) -> dict[str, Topic]:
        """The topics that exist, by a node's answer to Metadata."""
        return self._heard(response)[0]

    def _heard(self, response: Any) -> tuple[dict[str, Topic], bool]:
        """The topics that exist, and whether another node has to be asked, because this one lags behind."""
        self.nodes = {b.node_id: (b.host, b.port) for b in response.brokers}
        self.controller_id = response.controller_id
        self.cluster_id = response.cluster_id or self.cluster_id
        revision = image_revision(response)
        outdated = set()
        if revision is not None:
            outdated = {each.name for each in response.topics if self._is_outdated(each, revision)}
        asks_another = bool(outdated) and self._is_first_to_lag(response.controller_id)
        if outdated and self.nodes and self.nodes.keys() <= self._behind:
            # The cluster was put back from a copy. Its revisions may stay below the former ones for months.
            outdated = set()
            asks_another = False
            self._topic_ids.clear()
            self._newest = self._forgotten_at = 0
        if revision is not None and revision >= self._newest:
            self._newest = revision
            self._behind.clear()
        found = {}
        for answer in response.topics:
            if answer.name in outdated:
                if answer.name in self.topics:
                    found[answer.name] = self.topics[answer.name]
                continue
            self.topic_errors[answer.name] = answer.error_code
            if answer.error_code == 0:
                found[answer.name] = self._merged(answer)
            elif answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.topics.pop(answer.name, None)
            if revision is not None:
                self._remember(answer, revision)
        self.topics.update(found)
        self._forget_names()
        return found, asks_another

    def _is_outdated(self, answer: Any, revision: int) -> bool:
        """Whether a node that lags behind speaks of a former topic of this name, or of the time between the two. A
        consumer that believed it would read the present topic a second time."""
        if answer.error_code not in _SAYS_WHICH:
            return False
        known_id, known_at = self._topic_ids.get(answer.name) or (self._id_of(answer.name), self._forgotten_at)
        return known_id != _id_in(answer) and revision < known_at

    def _id_of(self, name: str) -> Any:
        topic = self.topics.get(name)
        return None if topic is None else topic.topic_id

    def _is_first_to_lag(self, node_id: int) -> bool:
        """Also leaves the node, whose next answers would be as old."""
        if self._metadata_peer is not None:
            self._metadata_peer.close()
        first = node_id not in self._behind
        self._behind.add(node_id)
        return first

    def _remember(self, answer: Any, revision: int) -> None:
        if answer.error_code in _SAYS_WHICH:
            _, known_at = self._topic_ids.get(answer.name, (None, revision))
            self._topic_ids[answer.name] = _id_in(answer), max(revision, known_at)

    def _forget_names(self) -> None:
        """Programs may ask for ever more names. What is said of a forgotten one must be as new as what was known of any
        of them: otherwise another node is asked."""
        if len(self._topic_ids) <= self._forget_at:
            return
        kept = {}
        for name, (topic_id, known_at) in self._topic_ids.items():
            if name in self._interesting:
                kept[name] = topic_id, known_at
            else:
                self._forgotten_at = max(self._forgotten_at, known_at)
                self.topic_errors.pop(name, None)
        self._topic_ids = kept
        self._forget_at = max(_NAMES_REMEMBERED, 2 * len(kept))

    def _metadata_request(self, names: list[str] | None, create: bool) -> Any:
        Message = messages.MetadataRequest
        topics = None if names is None else [Message.MetadataRequestTopic(name=name) for name in names]
        return Message(topics=topics, allow_auto_topic_creation=create)

    def _merged(self, answer: Any) -> Topic:
        known = self.topics.get(answer.name)
        partitions = {}
        for p in sorted(answer.partitions, key=lambda p: int(p.partition_index)):
            leader = Leader(p.leader_id, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes))
            if known is not None and known.topic_id == answer.topic_id:
                former = known.partitions.get(p.partition_index)
                if former is not None and leader.epoch < former.epoch:
                    leader = former  # a node that lags behind
                elif former is not None and leader.node_id >= 0 and former[:2] != leader[:2]:
                    self._moved[TopicPartition(answer.name, p.partition_index)] = None
            partitions[p.partition_index] = leader
        return Topic(answer.name, answer.topic_id, partitions)

    async def _from_any_node(self, request: Callable[[], Any], at_most_ms: int | None = None) -> Any:
        """The first answer of any node. They are asked in turn, each for request.timeout.ms or `at_most_ms`. Raises
        RetriableError."""
        reasons: list[str] = []
        timeout_ms: int = self.options["request.timeout.ms"]
        if at_most_ms is not None:
            timeout_ms = min(timeout_ms, at_most_ms)
        former = self._metadata_peer
        if former is not None and not former.closed:
            try:
                return await former.call(request(), timeout_ms=timeout_ms)
            except PeerError as error:
                reasons.append(str(error))
        async with self._finding:
            if self._metadata_peer is former or self._metadata_peer is None or self._metadata_peer.closed:
                return await self._from_another(request, timeout_ms, at_most_ms, reasons)
        return await self._from_any_node(request, at_most_ms)  # another caller has found one

    async def _from_another(
        self, request: Callable[[], Any], timeout_ms: int, at_most_ms: int | None, reasons: list[str]
    ) -> Any:
        known = list(self.nodes.values())
        start = self.ports.random.randrange(0, len(known)) if known else 0
        late = {self.nodes[each] for each in self._behind & self.nodes.keys()}
        known = sorted(known[start:] + known[:start], key=late.__contains__)  # those that lag behind come last
        candidates = dict.fromkeys(known + list(self.options["bootstrap.servers"]))
        distrusted = 0
        refusals: list[SaslAuthenticationFailed] = []
        for host, port in candidates:
            try:
                peer = await self._connect(host, port, at_most_ms)
                if self._metadata_peer is not None:
                    self._metadata_peer.close()
                self._metadata_peer, self._shut_out = peer, None
                return await peer.call(request(), timeout_ms=timeout_ms)
            except PeerError as error:
                reasons.append(str(error))
                distrusted += isinstance(error, PeerDistrusted)
            except SaslAuthenticationFailed as error:
                if is_of_credential(error.code):
                    raise
                reasons.append(error.message)  # others may be set up to let this client in
                refusals.append(error)
        self._shut_out = refusals[0] if refusals and distrusted + len(refusals) == len(candidates) else None
        if self._shut_out is not None:
            raise _told_again(self._shut_out)
        if distrusted == len(candidates):
            raise AuthenticationError("no node is to be trusted: " + "; ".join(reasons[-3:]))
        raise connection_failed("no node answers: " + "; ".join(reasons[-3:]))

    # --- connections ------------------------------------------------------------------------------------------

    async def _connect(self, host: str, port: int, at_most_ms: int | None = None) -> Peer:
        """`at_most_ms`: limit for a node that another node can replace. A machine that cannot be reached does not
        refuse the connection, so the attempt would wait for the whole time-out."""
        timeout_ms: int = self.options["socket.connection.setup.timeout.ms"]
        if at_most_ms is not None:
            timeout_ms = min(timeout_ms, at_most_ms)
        if self._tls is not None:
            await self._tls.reload_aside()  # new files serve new connections
        address = f"{host}:{port}"
        if self._login is not None:
            self._login.check(address)
        try:
            peer = await self._reach(host, port, timeout_ms)
        except PeerLoginRefused as error:
            assert self._login is not None
            self._login.refused(error, address)
            raise self._login.failure(error) from None
        try:
            if self._login is not None:
                self._login.succeeded(address)
            self._check_open()  # it may have been closed while this caller waited
            await self._check_cluster(peer, timeout_ms)
        except BaseException:
            peer.close()
            raise
        self.transaction_version = peer.capabilities.features.get("transaction.version", 0)
        return peer

    async def _reach(self, host: str, port: int, timeout_ms: int) -> Peer:
        """Raises PeerError."""
        login, exchange = self._login, None
        while True:
            again = exchange is not None
            if login is not None:
                exchange = await login.exchange()
            self._check_open()
            try:
                return await Peer.connect(
                    self.ports.network,
                    host,
                    port,
                    client_id=self.options["client.id"],
                    request_timeout_ms=self.options["request.timeout.ms"],
                    connect_timeout_ms=timeout_ms,
                    tls=self._tls,
                    login=login,
                    exchange=exchange,
                )
            except PeerLoginRefused as error:
                if again or login is None or exchange is None or not is_of_credential(error.code):
                    raise
                if not await login.outdated(exchange):
                    raise

    async def _check_cluster(self, peer: Peer, timeout_ms: int) -> None:
        """Addresses are given out again, and requests name topics, groups and transactional ids that another cluster
        may have, too. So once this client knows its cluster, each connection begins with this question. Raises
        PeerError, WrongState."""
        if self.cluster_id is None:
            return
        answer = await peer.call(self._metadata_request([], False), timeout_ms=timeout_ms)
        self._check_open()
        if answer.cluster_id not in (None, self.cluster_id):
            raise PeerError(f"{peer.address} belongs to cluster {answer.cluster_id} now, not to {self.cluster_id}")

    def open_peer(self, node_id: int, purpose: Purpose = "data") -> Peer | None:
        """The connection, if it is already open."""
        task = self._peers.get((node_id, purpose))
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        peer = task.result()
        return None if peer.closed else peer

    def open_peers(self) -> list[tuple[tuple[int, Purpose], Peer]]:
        return [(key, peer) for key in list(self._peers) if (peer := self.open_peer(*key)) is not None]

    async def peer(self, node_id: int, purpose: Purpose = "data") -> Peer:
        """A connection to a node. It is opened if needed, and simultaneous callers share it. Raises PeerError, and
        SaslAuthenticationFailed."""
        key = (node_id, purpose)
        task = self._peers.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None or task.result().closed)):
            address = self.nodes.get(node_id)
            if address is None:
                self.refresh_soon()
                raise PeerError(f"node {node_id} is not known")
            task = self._peers[key] = supervision.once(
                self._connect(*address), "client-connect", node_id,
                expected=(PeerError, PeerUnsupported, HapaxError))
            self._connecting[key] = asyncio.get_running_loop().time()
            task.add_done_callback(lambda done: self._peers.get(key) is done and self._connecting.pop(key, None))
        try:
            return await asyncio.shield(task)
        except PeerError:
            self.refresh_soon()
            raise
        except asyncio.CancelledError:
            if task.cancelled() and not _is_cancelled():
                raise PeerError(f"node {node_id} takes no connection, and others have taken over") from None
            raise

    def connecting(self) -> list[tuple[int, Purpose, float]]:
        """(node, purpose, time since when on the loop's clock) of connections that are being opened."""
        return [(*key, since) for key, since in self._connecting.items()]

    def give_up_connecting(self, node_id: int, purpose: Purpose) -> None:
        """Callers that wait for the connection get PeerError."""
        if (node_id, purpose) in self._connecting:
            self._peers[node_id, purpose].cancel()

    async def call_any(self, request: Callable[[], Any]) -> Any:
        """Asks any node that answers. Raises RetriableError, PeerUnsupported."""
        return await self._from_any_node(request)

    # --- coordinators -----------------------------------------------------------------------------------------

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    def coordinated_by(self, node_id: int) -> list[tuple[CoordinatorKind, str]]:
        """The kinds and keys that a node coordinates, as far as this client knows."""
        return [key for key, owner in self._coordinators.items() if owner == node_id]

    async def coordinator(self, kind: CoordinatorKind, key: str, *, again: bool = False) -> int:
        """The node that serves a group or transactional id. `again`: ignores the cached answer. Raises HapaxError."""
        known = self._coordinators.get((kind, key))
        if known is not None and not again:
            return known
        key_type = 1 if kind == "transaction" else 0
        response = await self._from_any_node(
            lambda: messages.FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key]), _QUESTION_MS)
        answer = response.coordinators[0] if response.coordinators else response
        if answer.error_code:
            raise from_code(answer.error_code, f"coordinator of {kind} {key!r}", answer.error_message)
        self.nodes.setdefault(answer.node_id, (answer.host, answer.port))
        if self.nodes[answer.node_id] != (answer.host, answer.port):
            self.nodes[answer.node_id] = (answer.host, answer.port)
        self._coordinators[kind, key] = answer.node_id
        if len(self._coordinators) > _COORDINATORS_KNOWN:
            del self._coordinators[next(iter(self._coordinators))]
        return int(answer.node_id)

    async def coordinator_peer(self, kind: CoordinatorKind, key: str) -> Peer:
        """Raises HapaxError or PeerError."""
        return await self.peer(await self.coordinator(kind, key), "coordinator")

    # --- Hapax's own calls ------------------------------------------------------------------------------------

    async def rpc_address(self, node_id: int) -> str | None:
        """The address of one node. None: there is no such node. Raises as rpc_addresses."""
        addresses, _ = await self.rpc_addresses()
        if node_id not in addresses:  # the node may be newer than the cached addresses
            addresses, _ = await self.rpc_addresses(fresh=True)
        return addresses.get(node_id)

    async def rpc_addresses(self, *, fresh: bool = False) -> tuple[dict[int, str], str | None]:
        """The addresses of each node and of an allocator, at most one second old. A call to a node that has gone fails,
        and the next attempt of `within` asks again. `fresh`: requests them now, for a caller that must not miss a new
        node. Raises NotHapaxError where the peer is another system."""
        if fresh or self._addresses is None or (
            self._addresses.done() and (
                self._addresses.cancelled() or self._addresses.exception() is not None
                or self.now() >= self._addresses_until)
        ):
            self._addresses = supervision.once(
                self._ask_for_addresses(), "client-addresses", expected=(HapaxError, PeerError, PeerUnsupported))
        asking = self._addresses
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if asking.cancelled() and not _is_cancelled():  # with the client
                self._check_open()
            raise

    async def _ask_for_addresses(self) -> tuple[dict[int, str], str | None]:
        try:
            response = await self.call_any(lambda: messages.DescribeClusterRequest())
        except PeerUnsupported:
            raise NotHapaxError("the cluster does not answer DescribeCluster") from None
        if response.error_code:
            raise from_code(response.error_code, "DescribeCluster", response.error_message)
        self.cluster_id = self.cluster_id or response.cluster_id
        found = {}
        for broker in response.brokers:
            address = unknown_tag(broker, RPC_ADDRESS_TAG)
            if address is not None:
                found[broker.broker_id] = address.decode()
        if not found:
            raise NotHapaxError(f"cluster {response.cluster_id!r} is not Hapax: its nodes name no address for calls")
        self._addresses_until = self.now() + _DESCRIBED_MS
        allocator = unknown_tag(response, ALLOCATOR_TAG)
        return found, None if allocator is None else allocator.decode()

    async def controller_address(self) -> str:
        """The address of the acting controller's own calls. Raises RetriableError while there is none,
        NotHapaxError."""
        response = await self.call_any(lambda: messages.DescribeClusterRequest())
        self.cluster_id = self.cluster_id or response.cluster_id
        address = unknown_tag(response, CONTROLLER_TAG)
        if address is None:
            await self.rpc_addresses()  # raises where the peer is another system
            raise from_code(ErrorCode.NOT_CONTROLLER, "finding the controller")
        return address.decode()

    async def other_nodes(self) -> list[dict[str, Any]]:
        """The nodes without a Kafka listener, from DescribeCluster. Empty if the peer is another system."""
        response = await self.call_any(lambda: messages.DescribeClusterRequest())
        told = unknown_tag(response, OTHER_NODES_TAG)
        found: list[dict[str, Any]] = [] if told is None else json.loads(told)
        return found

    def channel(self, address: str) -> RpcChannel:
        self._check_open()
        found = self._rpc.get(address)
        if found is None:
            found = self._rpc[address] = self.ports.network.public_channel(
                address, self.cluster_id or "", self._tls, self._login)
        return found

    # --- trying again -----------------------------------------------------------------------------------------

    async def within(self, timeout_ms: int, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeats `attempt` after retriable failures, with pauses, for at most `timeout_ms`. Raises the last failure,
        and WrongState once this client is closed."""
        deadline = self.now() + timeout_ms
        backoff = Backoff(self.options, self.ports)
        while True:
            try:
                return await attempt()
            except RetriableError as error:
                failure: HapaxError = error
            except PeerError as error:
                failure = connection_failed(f"{what}: {error}")
            except RpcError as error:
                failure = from_status(error, what)
                if not isinstance(failure, RetriableError):
                    raise failure from error
            except PeerUnsupported as error:
                raise FatalError(f"{what}: {error}") from error
            self._check_open()
            self._addresses = None
            pause = backoff.seconds()
            if self.now() + pause * 1000 > deadline:
                raise failure
            await asyncio.sleep(pause)


def _is_cancelled() -> bool:
    """Whether the calling task itself was asked to end, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _settle(rounds: list[asyncio.Future[None]]) -> None:
    for waiting in rounds:
        if not waiting.done():
            waiting.set_result(None)

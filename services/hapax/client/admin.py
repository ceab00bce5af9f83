"""The admin client with asyncio: topics, the cluster, transactions and producers. Replicas are in `replication`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from hapax.client.acls import AclAdmin
from hapax.client.environment import ClientPorts
from hapax.client.errors import FatalError, HapaxError, NotHapaxError, RetriableError, from_code
from hapax.client.groups import GroupAdmin
from hapax.client.leaders import by_node
from hapax.client.metadata import Topic
from hapax.client.newest_image import newest_topics
from hapax.client.producers import ProducerAdmin
from hapax.client.quotas import QuotaAdmin
from hapax.client.replication import ReplicationAdmin
from hapax.client.settings import Options, Settings
from hapax.client.users import UserAdmin
from hapax.core.errors import ErrorCode
from hapax.core.transaction.record import NO_TIMEOUT_MS
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime.ports import RpcError
from hapax.wire import messages
from hapax.wire.peer import LEADER_ONLY_TAG, Peer, PeerError

_TOPIC: Final = 2
_NODE: Final = 4
_GROUP: Final = 32
"""Resource types in calls about configuration."""
_KINDS: Final = {_TOPIC: "topic", _NODE: "node", _GROUP: "group"}
_SOURCES: Final = {1: "topic", 2: "dynamic", 3: "dynamic", 4: "node", 5: "default", 8: "group"}
_SET: Final = 0
_RESET: Final = 1


class NewTopic(NamedTuple):
    """-1: the cluster's default number of partitions or replicas."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = {}


class ConfigValue(NamedTuple):
    value: str | None
    source: str
    """`topic`, `group`: set for that topic or group; `node`: set on the topic's brokers, the group's coordinators or
    the node; `default`; `dynamic`: set on Kafka's brokers while they run; `unknown`."""
    default: str | None
    """The value that applies where none is set."""
    meaning: str


class TopicPartitionInfo(NamedTuple):
    partition: int
    leader: int
    """-1: none at the moment."""
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    """In order of preference: the first one leads if it can."""
    isr: tuple[int, ...] = ()
    """The replicas that are in sync."""


class TopicInfo(NamedTuple):
    name: str
    topic_id: str
    partitions: tuple[TopicPartitionInfo, ...]


class NodeInfo(NamedTuple):
    node_id: int
    host: str
    port: int
    rpc_address: str | None
    """`host:port` of Hapax's own calls. None: the node is not Hapax."""


class ServiceNode(NamedTuple):
    """A node that Kafka's clients do not connect to: a producer-id allocator or a controller."""

    node_id: int
    role: str
    """`pid` or `controller`."""
    rpc_address: str
    rack: str
    standing: str
    acts: bool
    """This controller is the acting one."""


class ClusterInfo(NamedTuple):
    cluster_id: str
    controller_id: int
    nodes: tuple[NodeInfo, ...]
    transaction_version: int


def _infos(topics: Mapping[str, Topic]) -> list[TopicInfo]:
    return [
        TopicInfo(
            topic.name, str(topic.topic_id),
            tuple(TopicPartitionInfo(p, *leader) for p, leader in topic.partitions.items()))
        for _, topic in sorted(topics.items())]


class TransactionInfo(NamedTuple):
    """As `list_transactions` returns it. `describe_transactions` fills in the other fields."""

    transactional_id: str
    producer_id: int
    state: str
    producer_epoch: int = -1
    timeout_ms: int = -1
    started_ms: int = -1
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def two_phase(self) -> bool:
        """Whether its transactions are under two-phase commit (KIP-939): no time limit ends them."""
        return self.timeout_ms == NO_TIMEOUT_MS


class ProducerInfo(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start_offset: int
    """-1: no open transaction."""
    coordinator_epoch: int


def _config_value(told: Any) -> ConfigValue:
    source = _SOURCES.get(told.config_source, "unknown")
    if source == "default":
        return ConfigValue(told.value, source, told.value, told.documentation or "")
    defaults = [each for each in told.synonyms if _SOURCES.get(each.source) == "default"]
    return ConfigValue(
        told.value, source, _in_unit_of(told.name, defaults[0]) if defaults else None, told.documentation or "")


def _in_unit_of(name: str, synonym: Any) -> str | None:
    """Kafka's brokers report the default of `retention.ms` under the name `log.retention.hours`."""
    for suffix, factor in ((".hours", 3_600_000), (".minutes", 60_000)):
        if name.endswith(".ms") and synonym.name.endswith(suffix) and synonym.value:
            return str(int(synonym.value) * factor)
    value: str | None = synonym.value
    return value


class Admin(ReplicationAdmin, GroupAdmin, ProducerAdmin, AclAdmin, UserAdmin, QuotaAdmin):
    """Settings under Kafka's names, see `hapax.client.settings.SETTINGS`. Calls raise HapaxError."""

    def __init__(self, settings: Settings, *, ports: ClientPorts | None = None) -> None:
        options = Options(settings, "a")
        super().__init__(options, options["default.api.timeout.ms"], ports)

    # --- topics -----------------------------------------------------------------------------------------------

    async def create_topics(self, topics: Iterable[NewTopic | str], *, exist_ok: bool = False) -> None:
        """Creates topics. Returns when their leaders accept writes. `exist_ok`: an existing topic is no error."""
        wanted = {t.name: t for t in (NewTopic(t) if isinstance(t, str) else t for t in topics)}
        Message = messages.CreateTopicsRequest
        Topic = Message.CreatableTopic

        def request(names: list[str]) -> Any:
            return Message(
                topics=[
                    Topic(
                        name=t.name,
                        num_partitions=t.partitions,
                        replication_factor=t.replication_factor,
                        assignments=[],
                        configs=[Topic.CreatableTopicConfig(name=n, value=v) for n, v in sorted(t.config.items())],
                    )
                    for t in (wanted[name] for name in names)
                ],
                timeout_ms=self._options["request.timeout.ms"],
                validate_only=False,
            )

        existing = (ErrorCode.TOPIC_ALREADY_EXISTS,)
        await self._change("creating topic", list(wanted), request, lambda r: r.topics, existing, exist_ok)
        for name in wanted:
            await self._led(name)

    async def _led(self, name: str) -> None:
        async def attempt() -> None:
            topic = await self._cluster.topic(name, self._timeout)
            by_node(self._cluster, [TopicPartition(name, PartitionIndex(p)) for p in topic.partitions])

        await self._cluster.within(self._timeout, f"waiting for topic {name!r}", attempt)

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Deletes the topics that have these names now. A topic that is created later under one of the names is never
        deleted, even where an answer is lost and the call repeated. (A cluster that does not know topic ids deletes by
        name.)"""
        wanted = list(names)
        Message = messages.DeleteTopicsRequest
        found = await self._cluster.within(self._timeout, "deleting topic", lambda: self._cluster.existing(wanted))
        ids = {name: topic.topic_id for name, topic in found.items() if topic.topic_id.int}
        names_by_id = {topic_id: name for name, topic_id in ids.items()}

        def request(names: list[str]) -> Any:
            return Message(
                topic_names=names,
                topics=[
                    Message.DeleteTopicState(topic_id=ids[name], name=None) if name in ids
                    else Message.DeleteTopicState(name=name) for name in names
                ],
                timeout_ms=self._options["request.timeout.ms"],
            )

        def answers(response: Any) -> Any:
            for answer in response.responses:
                answer.name = answer.name or names_by_id.get(answer.topic_id)
            return response.responses

        gone = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
        await self._change("deleting topic", wanted, request, answers, gone, False)

    async def delete_topic(self, name: str, topic_id: bytes, if_revision: int | None = None) -> None:
        """Deletes the topic with this id, even if another topic has its name by now. `if_revision`: as in
        `change_topic` (Hapax only)."""
        from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb

        request = pb.DeleteTopicsRequest(
            topic_ids=[topic_id], if_revisions=[if_revision or 0], timeout_ms=self._options["request.timeout.ms"])
        await self._change_one(
            f"deleting topic {name!r}", "DeleteTopics", request, pb.DeleteTopicsResponse, ErrorCode.UNKNOWN_TOPIC_ID)

    async def create_partitions(self, totals: Mapping[str, int]) -> None:
        """Raises topics' numbers of partitions to these totals."""
        Message = messages.CreatePartitionsRequest

        def request(names: list[str]) -> Any:
            return Message(
                topics=[Message.CreatePartitionsTopic(name=n, count=totals[n], assignments=None) for n in names],
                timeout_ms=self._options["request.timeout.ms"],
                validate_only=False,
            )

        there = (ErrorCode.INVALID_PARTITIONS,)
        await self._change("raising the partitions of topic", list(totals), request, lambda r: r.results, there, False)
        for name in totals:
            await self._cluster.refreshed(self._timeout)
            await self._led(name)

    async def alter_topic_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Configures a topic with these values. None resets a setting to the cluster's default. Other settings keep
        their values."""
        await self._alter_config(_TOPIC, name, changes)

    async def alter_group_config(self, group: str, changes: Mapping[str, str | None]) -> None:
        """As `alter_topic_config`, for a group of the consumer protocol, which need not exist yet. Its members follow
        at their next heartbeat."""
        await self._alter_config(_GROUP, group, changes)

    async def _alter_config(self, kind: int, name: str, changes: Mapping[str, str | None]) -> None:
        what = f"configuring {_KINDS[kind]} {name!r}"
        Message = messages.IncrementalAlterConfigsRequest
        Config = Message.AlterConfigsResource.AlterableConfig
        configs = [
            Config(name=key, config_operation=_RESET if value is None else _SET, value=value)
            for key, value in sorted(changes.items())
        ]

        async def attempt() -> None:
            resource = Message.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
            answer = (await self._controller_call(Message(resources=[resource], validate_only=False))).responses[0]
            if answer.error_code:
                raise from_code(answer.error_code, what, answer.error_message)

        await self._cluster.within(self._timeout, what, attempt)

    async def topic_config(self, name: str) -> dict[str, ConfigValue]:
        """A topic's effective configuration, by name, whatever the source of each value."""
        return await self._config(None, _TOPIC, name)

    async def node_config(self, node_id: int) -> dict[str, ConfigValue]:
        """The settings of a live broker or coordinator, by name."""
        return await self._config(node_id, _NODE, str(node_id))

    async def group_config(self, group: str) -> dict[str, ConfigValue]:
        """A group's effective configuration, by name. A group that does not exist has the defaults."""
        return await self._config(None, _GROUP, group)

    async def configured_groups(self) -> list[str]:
        """The groups that have a configuration of their own, by name, whether or not they exist."""
        Message = messages.ListConfigResourcesRequest
        what = "listing the groups that are configured"

        async def attempt() -> list[str]:
            answer = await self._controller_call(Message(resource_types=[_GROUP]))
            if answer.error_code:
                raise from_code(answer.error_code, what)
            return sorted(each.resource_name for each in answer.config_resources)

        return await self._cluster.within(self._timeout, what, attempt)

    async def _config(self, node_id: int | None, kind: int, name: str) -> dict[str, ConfigValue]:
        Message = messages.DescribeConfigsRequest
        resource = Message.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        what = f"reading the configuration of {_KINDS[kind]} {name!r}"

        async def attempt() -> dict[str, ConfigValue]:
            request = Message(resources=[resource], include_synonyms=True, include_documentation=True)
            asked = self._controller_call(request) if node_id is None else self._peer_call(node_id, request)
            answer = (await asked).results[0]
            if answer.error_code:
                raise from_code(answer.error_code, what, answer.error_message)
            return {each.name: _config_value(each) for each in answer.configs}

        return await self._cluster.within(self._timeout, what, attempt)

    async def change_topic(
        self, name: str, *, set_configs: Mapping[str, str] | None = None, reset_configs: Iterable[str] = (),
        partitions: int | None = None, if_revision: int | None = None,
    ) -> int:
        """Configures a topic or raises its number of partitions, but not both in one call. `if_revision`: changes the
        topic only if its record in the metadata store still has that revision, and otherwise raises FatalError with
        INVALID_UPDATE_VERSION. Returns the store's revision that has the change, or 0 where nothing changed (Hapax
        only)."""
        from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb

        if partitions is None:
            method = "AlterTopicConfigs"
            kind: Any = pb.AlterTopicConfigsResponse
            request: Any = pb.AlterTopicConfigsRequest(changes=[pb.TopicConfigChange(
                topic=name, set=dict(set_configs or {}), reset=list(reset_configs), if_revision=if_revision or 0)])
        else:
            method, kind = "CreatePartitions", pb.CreatePartitionsResponse
            request = pb.CreatePartitionsRequest(
                total_by_topic={name: partitions}, timeout_ms=self._options["request.timeout.ms"],
                if_revision_by_topic={name: if_revision} if if_revision else {})
        answer = await self._change_one(
            f"changing topic {name!r}", method, request, kind, ErrorCode.INVALID_PARTITIONS)
        return 0 if answer is None else int(answer.revision)

    async def _change_one(self, what: str, method: str, request: Any, kind: Any, done_code: ErrorCode) -> Any:
        """Returns the controller's answer. None: an earlier attempt that was not answered has made the change, which
        `done_code` shows. Raises HapaxError."""
        in_doubt = False

        async def attempt() -> Any:
            nonlocal in_doubt
            try:
                answer = kind.FromString(await self._controller_rpc(method, request))
            except RpcError:
                in_doubt = True
                raise
            result = answer.topics[0]
            in_doubt |= result.error == ErrorCode.REQUEST_TIMED_OUT
            if result.error == done_code and in_doubt:
                return None
            if result.error:
                doubt = "; a former attempt, which was not answered, may have done it" if in_doubt else ""
                raise from_code(result.error, what, result.reason + doubt)
            return answer

        return await self._cluster.within(self._timeout, what, attempt)

    async def _change(
        self,
        what: str,
        names: list[str],
        request: Callable[[list[str]], Any],
        answers: Callable[[Any], Any],
        done_codes: tuple[ErrorCode, ...],
        done_is_fine: bool,
    ) -> None:
        """Repeats a change for the topics whose outcome is open. `done_codes`: errors that mean that the change was
        made before. They count as success where an earlier attempt's outcome is unknown."""
        open_names = dict.fromkeys(names)
        in_doubt = done_is_fine

        async def attempt() -> None:
            nonlocal in_doubt
            controller = await self._controller()
            try:
                response = await controller.call(request(list(open_names)))
            except PeerError:
                in_doubt = True
                raise
            failure: HapaxError | None = None
            for answer in answers(response):
                code = answer.error_code
                if code == 0 or (code in done_codes and in_doubt):
                    open_names.pop(answer.name, None)
                    continue
                failure = from_code(code, f"{what} {answer.name!r}", answer.error_message)
                if code in done_codes or not isinstance(failure, RetriableError):
                    raise FatalError(failure.message, code=code, advice=failure.advice)
                in_doubt |= code == ErrorCode.REQUEST_TIMED_OUT
                if code == ErrorCode.NOT_CONTROLLER:
                    await self._cluster.refreshed(self._timeout)
            if failure is not None:
                raise failure

        await self._cluster.within(self._timeout, what, attempt)

    async def list_topics(self, names: Iterable[str] | None = None) -> list[TopicInfo]:
        """By name: the given topics that exist. None: all topics, including internal ones."""
        wanted = None if names is None else list(names)
        found = await self._cluster.within(
            self._timeout, "listing topics",
            self._cluster.all_topics if wanted is None else lambda: self._cluster.existing(wanted))
        return _infos(found)

    async def list_newest_topics(self) -> list[TopicInfo]:
        """All topics that any node knows, by name, including internal ones. Asks every node: `list_topics` asks one,
        which may not have heard yet of a topic that others serve. Raises HapaxError where one does not answer."""
        return _infos(await newest_topics(self._cluster, self._timeout))

    async def describe_topic(self, name: str) -> TopicInfo:
        """Raises HapaxError with the cluster's reason if there is no such topic, or if this client may not see it."""
        found = await self.list_topics([name])
        if not found:
            code = self._cluster.topic_errors.get(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise from_code(code, f"topic {name!r}")
        return found[0]

    # --- the cluster ------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterInfo:
        await self._cluster.refreshed(self._timeout)
        addresses: dict[int, str] = {}
        with contextlib.suppress(NotHapaxError):
            addresses, _ = await self._cluster.rpc_addresses(fresh=True)
        return ClusterInfo(
            self._cluster.cluster_id or "",
            self._cluster.controller_id,
            tuple(NodeInfo(n, host, port, addresses.get(n)) for n, (host, port) in sorted(self._cluster.nodes.items())),
            max(1, self._cluster.transaction_version),
        )

    async def list_service_nodes(self) -> list[ServiceNode]:
        """The live allocators and controllers, by id (Hapax only)."""
        found = await self._cluster.within(self._timeout, "listing nodes", self._cluster.other_nodes)
        return sorted(ServiceNode(*(each[name] for name in ServiceNode._fields)) for each in found)

    # --- transactions and producers ---------------------------------------------------------------------------

    async def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), open_longer_than_ms: int = -1,
        pattern: str = "",
    ) -> list[TransactionInfo]:
        """Of all coordinators, by id. `states`: only transactions in these states, in Kafka's spelling (`Ongoing`).
        `open_longer_than_ms`: only those that began longer ago. `pattern`: only ids that match it, such as `team-a-.*`
        (`.` and `.*`)."""
        message = messages.ListTransactionsRequest(
            state_filters=list(states), producer_id_filters=list(producer_ids), duration_filter=open_longer_than_ms,
            transactional_id_pattern=pattern or None,
        )
        found = {
            t.transactional_id: TransactionInfo(t.transactional_id, t.producer_id, t.transaction_state)
            for t in await self._listed(message)}
        return [found[name] for name in sorted(found)]

    async def list_two_phase(self) -> list[TransactionInfo]:
        """The open transactions under two-phase commit, described, by id. Which of them are prepared, only the systems
        that decide them know. Raises HapaxError."""
        found = []
        for each in await self.list_transactions(states=["Ongoing"]):
            try:
                described = await self._describe_transaction(each.transactional_id)
            except FatalError as error:
                if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
                continue  # it has expired meanwhile
            if described.two_phase and described.state == "Ongoing":
                found.append(described)
        return found

    async def describe_transactions(self, ids: Iterable[str]) -> list[TransactionInfo]:
        return [await self._describe_transaction(name) for name in ids]

    async def _describe_transaction(self, transactional_id: str) -> TransactionInfo:
        async def attempt() -> Any:
            peer = await self._cluster.coordinator_peer("transaction", transactional_id)
            message = messages.DescribeTransactionsRequest(transactional_ids=[transactional_id])
            answer = (await peer.call(message)).transaction_states[0]
            if answer.error_code:
                self._cluster.forget_coordinator("transaction", transactional_id)
                raise from_code(answer.error_code, f"describing transaction {transactional_id!r}")
            return answer

        t = await self._cluster.within(self._timeout, "describing a transaction", attempt)
        partitions = tuple(
            TopicPartition(topic.topic, PartitionIndex(p)) for topic in t.topics for p in topic.partitions
        )
        return TransactionInfo(
            t.transactional_id,
            t.producer_id,
            t.transaction_state,
            t.producer_epoch,
            t.transaction_timeout_ms,
            t.transaction_start_time_ms,
            partitions,
        )

    async def abort_transaction(self, transactional_id: str, partition: TopicPartition | None = None) -> None:
        """Aborts an open transaction with WriteTxnMarkers, even one that hangs, on one partition or on all partitions
        that it has."""
        described = await self._describe_transaction(transactional_id)
        for one in described.partitions if partition is None else (partition,):
            await self.abort_hanging(one, described.producer_id)

    async def abort_hanging(
        self, partition: TopicPartition, producer_id: int, first_offset: int | None = None
    ) -> bool:
        """Aborts a producer's open transaction on a partition, whether a coordinator knows it or not. False: no
        transaction is open.

        `first_offset` names the transaction to abort, so that the call may be repeated when its outcome is unknown.
        Another transaction of the same producer counts as none."""
        meant, tried = first_offset, False

        async def attempt() -> bool:
            nonlocal meant, tried
            # Checked before each marker: after a lost answer, the producer may have another transaction open.
            producer = {p.producer_id: p for p in await self.describe_producers(partition)}.get(producer_id)
            if producer is None or producer.transaction_start_offset < 0:
                return tried
            if meant not in (None, producer.transaction_start_offset):
                return tried
            meant = producer.transaction_start_offset
            (node_id,) = by_node(self._cluster, [partition])
            leader = await self._cluster.peer(node_id)
            tried = True  # from here on it may have been aborted by this call
            await self._write_marker(leader, partition, producer)
            return True

        return await self._cluster.within(self._timeout, "aborting a transaction", attempt)

    async def _write_marker(self, leader: Peer, partition: TopicPartition, producer: ProducerInfo) -> None:
        Message = messages.WriteTxnMarkersRequest
        Marker = Message.WritableTxnMarker
        request = Message(markers=[Marker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[Marker.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
            coordinator_epoch=producer.coordinator_epoch,
        )])
        for marker in (await leader.call(request)).markers:
            for topic in marker.topics:
                for answer in topic.partitions:
                    if answer.error_code:
                        raise from_code(answer.error_code, f"aborting on {topic.name}-{answer.partition_index}")

    async def describe_producers(self, partition: TopicPartition) -> list[ProducerInfo]:
        """The producers whose state a partition's leader keeps."""
        await self._cluster.topic(partition.topic, self._timeout)
        Message = messages.DescribeProducersRequest

        async def attempt() -> Any:
            (node_id,) = by_node(self._cluster, [partition])
            topic = Message.TopicRequest(name=partition.topic, partition_indexes=[partition.partition])
            request = Message(topics=[topic])
            messages.set_unknown_tag(request, LEADER_ONLY_TAG, b"")
            response = await (await self._cluster.peer(node_id)).call(request)
            answer = response.topics[0].partitions[0]
            if answer.error_code:
                self._cluster.refresh_soon()
                what = f"producers of {partition.topic}-{partition.partition}"
                raise from_code(answer.error_code, what, answer.error_message)
            return answer

        answer = await self._cluster.within(self._timeout, "describing producers", attempt)
        return [
            ProducerInfo(
                p.producer_id,
                p.producer_epoch,
                p.last_sequence,
                p.last_timestamp,
                p.current_txn_start_offset,
                p.coordinator_epoch,
            )
            for p in answer.active_producers
        ]

    # --- calls ------------------------------------------------------------------------------------------------

    async def _controller(self) -> Peer:
        """Raises PeerError."""
        node_id = self._cluster.controller_id
        if node_id not in self._cluster.nodes:
            await self._cluster.refreshed(self._timeout)
            node_id = self._cluster.controller_id
        return await self._cluster.peer(node_id)

    async def _controller_call(self, message: Any) -> Any:
        return await (await self._controller()).call(message)

    async def _peer_call(self, node_id: int, message: Any) -> Any:
        return await (await self._cluster.peer(node_id)).call(message)

"""DescribeConfigs (32): the configuration of a topic, a node or a group, and the source of each value.

A topic and a group have values of their own; the others are settings: of the brokers for topics, of the coordinators
for groups. Only nodes of that role know these, so a node of another role forwards the request to one. A node describes
its own settings, which only a restart changes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

from hapax.core.access.resources import DESCRIBE_CLUSTER_CONFIGS, DESCRIBE_GROUP_CONFIGS, DESCRIBE_TOPIC_CONFIGS
from hapax.core.cluster.topics import IDLE_TOPIC_CONFIGS, LIST_CONFIGS, check_topic_name
from hapax.core.cluster.topics import TOPIC_CONFIGS as KAFKA_TOPIC_CONFIGS
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.configs import GROUP_CONFIGS
from hapax.core.types import NodeId
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import each_resource, refusal_of
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.runtime.cluster import ClusterView, TopicView
from hapax.runtime.ports import Network
from hapax.runtime.security_settings import SECRETS
from hapax.runtime.settings import (
    SETTING_NAMES,
    TOPIC_CONFIGS,
    Settings,
    as_text,
    field_types,
)
from hapax.runtime.settings_page import field_documentation
from hapax.wire.internal_writes import proof
from hapax.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse, set_unknown_tag
from hapax.wire.nodes import connect_to
from hapax.wire.peer import INTERNAL_WRITE_TAG, PeerError

ROW: Final = ApiRow(
    key=32, name="DescribeConfigs", versions=(1, 4), flexible_from=4, answered_by=Role.EVERY_NODE,
    need=each_resource(DESCRIBE_TOPIC_CONFIGS, DESCRIBE_GROUP_CONFIGS, DESCRIBE_CLUSTER_CONFIGS, "results")
    .open_to_nodes())

_Resource = DescribeConfigsRequest.DescribeConfigsResource
_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult
_Synonym = _Config.DescribeConfigsSynonym

TOPIC: Final = 2
NODE: Final = 4
NODE_LOGGER: Final = 8
GROUP: Final = 32
_ASK_MS: Final = 10_000
_DERIVED: Final = {"log.retention.ms": "retention_ms", "log.roll.ms": "roll_ms"}
"""Settings that are derived from others where they are not set."""
_SENSITIVE: Final = re.compile(r"(.*\.)?(password|passphrase|secret|jaas\.config|private\.key)")
"""Names of settings whose values are never shown."""
_NO_EFFECT: Final = "Checked and kept as Kafka's. It has no effect."


class Source(IntEnum):
    """Kafka's `DescribeConfigsResponse.ConfigSource`."""

    TOPIC = 1
    NODE = 4
    """A setting that the node was started with."""
    DEFAULT = 5
    NODE_LOGGER = 6
    GROUP = 8


class Type(IntEnum):
    """Kafka's `DescribeConfigsResponse.ConfigType`."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Layer(NamedTuple):
    """A value, which applies where no layer before it has one."""

    name: str
    value: str | None
    source: Source


class Described(NamedTuple):
    layers: Sequence[Layer]
    """Not empty, in Kafka's order: the resource's own value, what the node was started with, the default."""
    type: Type
    setting: str | None
    """Whose documentation holds for it."""


def topic_configs(topic: TopicView, settings: Settings) -> dict[str, Described]:
    """All of Kafka's topic configurations, by name, also those that have no effect here."""
    found = {}
    for name in KAFKA_TOPIC_CONFIGS:
        setting = TOPIC_CONFIGS.get(name)
        own = [Layer(name, topic.config[name], Source.TOPIC)] if name in topic.config else []
        below = [Layer(name, IDLE_TOPIC_CONFIGS[name], Source.DEFAULT)] if setting is None else _layers(
            setting, settings)
        found[name] = Described([*own, *below], _type_of_topic_config(name), setting)
    return found


def group_configs(config: Mapping[str, str], settings: Settings) -> dict[str, Described]:
    """`config`: the group's own."""
    return {
        name: Described(
            [*([Layer(name, config[name], Source.GROUP)] if name in config else []), *_layers(setting, settings)],
            Type.INT, setting)
        for name, setting in GROUP_CONFIGS.items()}


def node_configs(settings: Settings) -> dict[str, Described]:
    return {name: Described(_layers(name, settings), _type_of_setting(name), name) for name in SETTING_NAMES}


def _layers(setting: str, settings: Settings) -> list[Layer]:
    attribute = _DERIVED.get(setting, setting.replace(".", "_"))
    value, default = _text(getattr(settings, attribute)), _text(getattr(_DEFAULTS, attribute))
    given = value != default or setting.replace(".", "_") in settings.given
    return [*([Layer(setting, value, Source.NODE)] if given else []), Layer(setting, default, Source.DEFAULT)]


_DEFAULTS: Final = Settings()


def _text(value: object) -> str | None:
    return None if value is None else as_text(value)


Ask = Callable[[Any], Awaitable[list[Any]]]
"""A request about resources of one type -> its results. Raises Refusal."""


def through(node_id: NodeId, view: ClusterView, network: Network, kind: int) -> Ask:
    """Forwards requests about resources of this type to a node whose settings hold for them. This node, which has
    checked the client's rights, proves itself."""
    role = "broker" if kind == TOPIC else "coordinator"

    async def ask(request: Any) -> list[Any]:
        nodes = [node for node in view.nodes() if node.role == role and node.node_id not in view.silent]
        if not nodes:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, f"no {role} is available to describe the settings")
        if (me := view.node(node_id)) is not None:
            set_unknown_tag(request, INTERNAL_WRITE_TAG, proof(me.registration, me.session))
        try:
            peer = await connect_to(network, nodes[0], request_timeout_ms=_ASK_MS, connect_timeout_ms=_ASK_MS)
            try:
                answer = await peer.call(request)
            finally:
                peer.close("the answer is there")
        except PeerError as error:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, f"no answer from a {role}: {error}") from None
        return list(answer.results)

    return ask


def register(table: ApiTable, node: NodeContext) -> None:
    node_id, view, settings = node.node_id, node.view, node.settings
    elsewhere = GROUP if node.broker else TOPIC
    ask = through(node_id, view, node.network, elsewhere)

    def configs_of(kind: int, name: str) -> dict[str, Described]:
        """Raises Refusal."""
        if kind == TOPIC:
            check_topic_name(name)
            topic = view.topic(name)
            if topic is None:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            return topic_configs(topic, settings)
        if kind == GROUP:
            if not name:
                raise Refusal(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            own = view.group_config(name)
            return group_configs({} if own is None else own.config, settings)
        if kind == NODE and name == "":  # cluster-wide dynamic settings, which Hapax does not have
            return {}
        if kind not in (NODE, NODE_LOGGER):
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                "only topics (2), nodes (4), their loggers (8) and groups (32) have a configuration")
        if name != str(int(node_id)):
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"this is node {node_id}; ask node {name!r} for its own settings")
        if kind == NODE_LOGGER:
            return {"root": Described(
                [Layer("root", settings.log_level, Source.NODE_LOGGER)], Type.STRING, "log.level")}
        return node_configs(settings)

    async def handle(ctx: RequestContext, request: Any) -> Any:
        results: dict[int, Any] = {}
        forwarded = []
        for at, resource in enumerate(request.resources):
            if resource.resource_type == elsewhere:
                forwarded.append(at)
                continue
            try:
                configs = configs_of(resource.resource_type, resource.resource_name)
            except Refusal as refusal:
                results[at] = _refused(resource, refusal)
            else:
                results[at] = _described(resource, configs, request)
        if forwarded:
            answered = await _asked(ask, [request.resources[at] for at in forwarded], request)
            results |= zip(forwarded, answered, strict=True)
        return DescribeConfigsResponse(
            throttle_time_ms=0, results=[results[at] for at in range(len(request.resources))])

    table.on(ROW, handle)


async def _asked(ask: Ask, resources: Sequence[Any], request: Any) -> list[Any]:
    again = DescribeConfigsRequest(
        resources=[
            _Resource(
                resource_type=each.resource_type, resource_name=each.resource_name,
                configuration_keys=each.configuration_keys)
            for each in resources],
        include_synonyms=request.include_synonyms, include_documentation=request.include_documentation)
    try:
        return await ask(again)
    except Refusal as refusal:
        return [_refused(each, refusal) for each in resources]


def _described(resource: Any, configs: dict[str, Described], request: Any) -> Any:
    """No keys, or an empty list of keys, stands for all."""
    documentation = field_documentation() if request.include_documentation else None
    wanted = resource.configuration_keys
    read_only = resource.resource_type in (NODE, NODE_LOGGER)
    return _Result(
        error_code=0, error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name,
        configs=[
            _config(name, each, read_only, request.include_synonyms, documentation)
            for name, each in sorted(configs.items()) if not wanted or name in wanted])


def _config(
    name: str, described: Described, read_only: bool, synonyms: bool, documentation: dict[str, str] | None
) -> Any:
    sensitive = is_secret(name)
    layers = [each._replace(value=None) for each in described.layers] if sensitive else described.layers
    text = None
    if documentation is not None:
        text = _NO_EFFECT if described.setting is None else documentation[described.setting.replace(".", "_")]
    return _Config(
        name=name, value=layers[0].value, read_only=read_only, config_source=layers[0].source,
        is_default=layers[0].source is Source.DEFAULT, is_sensitive=sensitive,
        synonyms=_synonyms(layers) if synonyms else [], config_type=described.type, documentation=text)


def _synonyms(layers: Iterable[Layer]) -> list[Any]:
    """Kafka leaves out defaults that are no value."""
    return [
        _Synonym(name=each.name, value=each.value, source=each.source) for each in layers
        if each.value is not None or each.source is not Source.DEFAULT]


def is_secret(name: str) -> bool:
    return name in SECRETS or _SENSITIVE.fullmatch(name) is not None


# --- types ----------------------------------------------------------------------------------------------------------

_LISTS: Final = frozenset((
    "listeners", "advertised.listeners", "etcd.endpoints", "log.cleanup.policy", "log.dir", "group.consumer.assignors",
    "ssl.enabled.protocols"))
_SHORTS: Final = frozenset(("transaction.state.log.replication.factor", "offsets.topic.replication.factor"))
_LONGS: Final = frozenset((
    "log.roll.ms", "log.retention.bytes", "log.retention.ms", "log.retention.check.interval.ms",
    "log.cleaner.delete.retention.ms", "replica.lag.time.max.ms", "replica.high.watermark.checkpoint.interval.ms",
    "connections.max.idle.ms", "queued.max.request.bytes", "offsets.retention.check.interval.ms",
    "log.message.timestamp.before.max.ms", "log.message.timestamp.after.max.ms",
))
"""Kafka's other numbers are of type INT, and so are those that only Hapax has."""
_DOUBLES: Final = frozenset(("min.cleanable.dirty.ratio",))


def _type_of_topic_config(name: str) -> Type:
    form = KAFKA_TOPIC_CONFIGS[name]
    if isinstance(form, tuple):
        return Type.INT if form[1] < 1 << 31 else Type.LONG
    if name in LIST_CONFIGS:
        return Type.LIST
    if name in _DOUBLES:
        return Type.DOUBLE
    return Type.BOOLEAN if form.fullmatch("true") else Type.STRING


def _type_of_setting(setting: str) -> Type:
    if setting in _LISTS:
        return Type.LIST
    kind = field_types().get(setting.replace(".", "_"), NoneType)
    for _ in range(3):  # `Annotated[int, ...] | None` has three layers
        if get_origin(kind) is Annotated or (get_args(kind) and NoneType in get_args(kind)):
            kind = get_args(kind)[0]
    if get_origin(kind) is Literal or kind is str:
        return Type.STRING
    if kind is bool:
        return Type.BOOLEAN
    if kind is not int:
        return Type.UNKNOWN
    return Type.SHORT if setting in _SHORTS else Type.LONG if setting in _LONGS else Type.INT


def _refused(resource: Any, refusal: Refusal) -> Any:
    return _Result(
        error_code=refusal.code, error_message=refusal.reason, resource_type=resource.resource_type,
        resource_name=resource.resource_name, configs=[])


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    """`code` is replaced by that of each resource's type."""
    return DescribeConfigsResponse(throttle_time_ms=0, results=[
        _refused(resource, Refusal(refusal_of(resource, code))) for resource in request.resources])

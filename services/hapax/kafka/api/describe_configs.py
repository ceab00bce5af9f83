"""DescribeConfigs (32): the configuration of a topic or a node, and the source of each value.

A topic has values of its own; the others are its brokers' settings. Only a broker knows these, so a node of another
role forwards the request to a broker. A node describes its own settings, which only a restart changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import IntEnum
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.context import NodeContext
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.runtime.cluster import ClusterView, TopicView
from hapax.runtime.ports import Network
from hapax.runtime.settings import (
    SETTING_NAMES,
    TOPIC_CONFIGS,
    Settings,
    as_text,
    field_documentation,
    field_types,
)
from hapax.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse
from hapax.wire.peer import Peer, PeerError

ROW: Final = ApiRow(
    key=32, name="DescribeConfigs", versions=(1, 4), flexible_from=4, answered_by=Role.EVERY_NODE)

_Resource = DescribeConfigsRequest.DescribeConfigsResource
_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult
_Synonym = _Config.DescribeConfigsSynonym

TOPIC: Final = 2
NODE: Final = 4
GROUP: Final = 32
_GROUP_CONFIGS: Final = {
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
}
"""A group has no values of its own: its node's settings hold."""
_ASK_MS: Final = 10_000
_DERIVED: Final = {"log.retention.ms": "retention_ms", "log.roll.ms": "roll_ms"}
"""Settings that are derived from others where they are not set."""


class Source(IntEnum):
    """Kafka's `DescribeConfigsResponse.ConfigSource`."""

    TOPIC = 1
    NODE = 4
    """A setting that the node was started with."""
    DEFAULT = 5


class _Type(IntEnum):
    """Kafka's `DescribeConfigsResponse.ConfigType`."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    LONG = 5


class Layer(NamedTuple):
    """A value, which applies where no layer before it has one."""

    name: str
    value: str | None
    source: Source


def topic_layers(topic: TopicView, settings: Settings) -> dict[str, list[Layer]]:
    """The layers of each configuration of a topic, by Kafka's name: the topic's value, the broker's setting, the
    default. No list is empty."""
    own = dict(topic.config)
    found = {}
    for name, setting in TOPIC_CONFIGS.items():
        set_here = [Layer(name, own.pop(name), Source.TOPIC)] if name in own else []
        found[name] = set_here + _layers(setting, settings)
    return found | {name: [Layer(name, value, Source.TOPIC)] for name, value in own.items()}


def node_layers(settings: Settings) -> dict[str, list[Layer]]:
    return {name: _layers(name, settings) for name in SETTING_NAMES}


def _layers(setting: str, settings: Settings) -> list[Layer]:
    attribute = _DERIVED.get(setting, setting.replace(".", "_"))
    value, default = _text(getattr(settings, attribute)), _text(getattr(_DEFAULTS, attribute))
    set_here = [] if value == default else [Layer(setting, value, Source.NODE)]
    return [*set_here, Layer(setting, default, Source.DEFAULT)]


_DEFAULTS: Final = Settings()


def _text(value: object) -> str | None:
    return None if value is None else as_text(value)


AskBroker = Callable[[Any], Awaitable[list[Any]]]
"""A request about topics -> its results. Raises Refusal."""


def through(view: ClusterView, network: Network) -> AskBroker:
    """Forwards requests to any broker that is alive."""

    async def ask(request: Any) -> list[Any]:
        brokers = [node for node in view.nodes("broker") if node.node_id not in view.silent]
        if not brokers:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, "no broker is available to describe the topic's settings")
        try:
            peer = await Peer.connect(
                network, brokers[0].host, brokers[0].port, request_timeout_ms=_ASK_MS, connect_timeout_ms=_ASK_MS)
            try:
                answer = await peer.call(request)
            finally:
                peer.close("the answer is there")
        except PeerError as error:
            raise Refusal(ErrorCode.REQUEST_TIMED_OUT, f"no answer from a broker: {error}") from None
        return list(answer.results)

    return ask


def register(table: ApiTable, node: NodeContext) -> None:
    node_id, view, settings = node.node_id, node.view, node.settings
    ask_broker = None if node.broker else through(view, node.network)

    def result(resource: Any, request: Any) -> Any:
        """Raises Refusal."""
        if resource.resource_type == TOPIC:
            topic = view.topic(resource.resource_name)
            if topic is None:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {resource.resource_name!r}")
            layers = topic_layers(topic, settings)
        elif resource.resource_type == NODE:
            if resource.resource_name == "":  # cluster-wide dynamic settings, which Hapax does not have
                layers = {}
            elif resource.resource_name != str(int(node_id)):
                raise Refusal(
                    ErrorCode.INVALID_REQUEST,
                    f"this is node {node_id}; ask node {resource.resource_name!r} for its own settings")
            else:
                layers = node_layers(settings)
        elif resource.resource_type == GROUP:
            layers = {name: _layers(setting, settings) for name, setting in _GROUP_CONFIGS.items()}
        else:
            raise Refusal(ErrorCode.INVALID_REQUEST, "only topics (2), nodes (4) and groups (32) have a configuration")
        wanted = resource.configuration_keys
        return _described(resource, {
            name: each for name, each in layers.items() if wanted is None or name in wanted}, request)

    async def handle(ctx: RequestContext, request: Any) -> Any:
        results: list[Any] = [None] * len(request.resources)
        elsewhere = []
        for at, resource in enumerate(request.resources):
            if ask_broker is not None and resource.resource_type == TOPIC:
                elsewhere.append(at)
                continue
            try:
                results[at] = result(resource, request)
            except Refusal as refusal:
                results[at] = _refused(resource, refusal)
        if ask_broker is not None and elsewhere:
            asked = [request.resources[at] for at in elsewhere]
            for at, answered in zip(elsewhere, await _ask(ask_broker, asked, request), strict=True):
                results[at] = answered
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    table.on(ROW, handle)


async def _ask(ask_broker: AskBroker, resources: Sequence[Any], request: Any) -> list[Any]:
    again = DescribeConfigsRequest(
        resources=[
            _Resource(
                resource_type=each.resource_type, resource_name=each.resource_name,
                configuration_keys=each.configuration_keys)
            for each in resources],
        include_synonyms=request.include_synonyms, include_documentation=request.include_documentation)
    try:
        return await ask_broker(again)
    except Refusal as refusal:
        return [_refused(each, refusal) for each in resources]


def _described(resource: Any, layers: dict[str, list[Layer]], request: Any) -> Any:
    documentation = field_documentation() if request.include_documentation else {}
    return _Result(
        error_code=0, error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name,
        configs=[
            _Config(
                name=name, value=own[0].value, read_only=resource.resource_type == NODE, config_source=own[0].source,
                is_default=own[0].source is Source.DEFAULT, is_sensitive=False,
                synonyms=_synonyms(own) if request.include_synonyms else [],
                config_type=_type_of(own[-1].name),
                documentation=documentation.get(own[-1].name.replace(".", "_")))
            for name, own in sorted(layers.items())])


def _synonyms(layers: Iterable[Layer]) -> list[Any]:
    return [_Synonym(name=each.name, value=each.value, source=each.source) for each in layers]


def _type_of(setting: str) -> _Type:
    kind = field_types().get(setting.replace(".", "_"), NoneType)
    for _ in range(3):  # `Annotated[int, ...] | None` has three layers
        if get_origin(kind) is Annotated or (get_args(kind) and NoneType in get_args(kind)):
            kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return _Type.STRING
    return {bool: _Type.BOOLEAN, int: _Type.LONG, str: _Type.STRING}.get(kind, _Type.UNKNOWN)


def _refused(resource: Any, refusal: Refusal) -> Any:
    return _Result(
        error_code=refusal.code, error_message=refusal.reason, resource_type=resource.resource_type,
        resource_name=resource.resource_name, configs=[])

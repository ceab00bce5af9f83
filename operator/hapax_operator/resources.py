"""The custom resources as typed objects, read from bodies that the API server has validated.

A body may have been validated by another version of the definition. Missing fields get their defaults; if that is not
possible, the body is refused (`BadResource`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from hapax.core.access.resources import ResourceType
from hapax_operator.namespace_policy import UNRESTRICTED, NamespacePolicy
from hapax_operator.spark_resource import SparkSpec, read_spark

GROUP: Final = "hapax.dev"
VERSION: Final = "v1alpha1"
NEXT_VERSION: Final = "v1alpha2"
TOPICS: Final = "topics"
PRODUCERS: Final = "transactionalproducers"
SPARK_JOBS: Final = "sparkjobs"
POOLS: Final = "brokerpools"
USERS: Final = "users"
WORKLOADS: Final = "workloads"
MIRRORS: Final = "mirrors"
WATCHED: Final = (TOPICS, PRODUCERS, SPARK_JOBS, USERS, MIRRORS)
"""The kinds that users create in any namespace. The single BrokerPool is watched separately."""
KINDS: Final = {
    TOPICS: "Topic", PRODUCERS: "TransactionalProducer", SPARK_JOBS: "SparkJob", USERS: "User", POOLS: "BrokerPool",
    WORKLOADS: "Workload", MIRRORS: "Mirror"}
NEWER: Final = frozenset((SPARK_JOBS, MIRRORS))
"""Kinds that came with `NEXT_VERSION`. The definitions of a former release lack them."""

FINALIZER: Final = "hapax.dev/delete-topic"
SPARK_FINALIZER: Final = "hapax.dev/end-spark"
PAUSE: Final = "hapax.dev/pause"
"""An annotation: while it is "true", the operator observes and changes nothing."""
CARRY_OVER: Final = "hapax.dev/carry-over"
"""An annotation of a TransactionalProducer with `spec.spark`: "true" makes a SparkJob of that section."""

ADOPT: Final = "hapax.dev/adopt"
"""An annotation: while it is "true", the resource may take over what it names and did not make."""

CLUSTER: Final = "hapax.dev/cluster"
"""A label: the cluster that a resource belongs to, as NAMESPACE.NAME of its release."""

CHART_REPLICAS: Final = "hapax.dev/replicas"
"""An annotation. On the brokers' StatefulSet: the number of brokers in the chart's values. On the BrokerPool: that
number when the BrokerPool was last set to it."""

RETAIN: Final = "Retain"
DELETE: Final = "Delete"
ABORT: Final = "Abort"
ALERT: Final = "Alert"
ON_SCALE_UP: Final = "OnScaleUp"


class BadResource(ValueError):
    """A body that cannot be read; the message is one sentence."""


class Ref(NamedTuple):
    """Names a resource. `plural`: a key of `KINDS`."""

    plural: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    ref: Ref
    uid: str
    generation: int
    created: str
    """RFC 3339 in UTC, so that the order of the texts is that of the times."""
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    paused: bool = False
    adopts: bool = False
    carry_over: bool = False
    """Whether the annotation of that name is "true"."""
    cluster: str = ""
    """As its label says, or else its status; empty: neither does."""
    taken_by: str = ""
    """The cluster that its status names."""
    version: str = ""
    """The resource version. It rises with every write, unless the API server's store is restored."""

    def is_older_than(self, other: Meta) -> bool:
        """Whether this is an earlier version of the same object; False if the versions are not numbers."""
        if self.uid != other.uid or not (self.version.isdigit() and other.version.isdigit()):
            return False
        return int(self.version) < int(other.version)

    def is_overtaken(self, asked: Meta | None, known: Meta | None) -> bool:
        """Of an answer: whether a watch, which tells of each state once, has told of a later one meanwhile. `asked`:
        the resource as it was known when the API server was asked; `known`: as it is now."""
        if known is None:
            return asked is not None and asked.uid == self.uid
        if known.uid == self.uid:
            return self.is_older_than(known)
        return asked is None or asked.uid != known.uid

    @property
    def age(self) -> tuple[str, str]:
        """A sort key, the oldest first. The uid decides between resources of the same second."""
        return self.created, self.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResource:
    meta: Meta
    topic: str
    partitions: int = 1
    replication_factor: int = -1
    """-1: the cluster's default."""
    config: Mapping[str, str] = field(default_factory=dict)
    managed: bool = True
    deletion_policy: str = RETAIN
    outside: str = ""
    """Why the policy of namespaces forbids it; a sentence. Empty: it does not."""
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        return self.managed and not self.meta.paused


class LeaseSpec(NamedTuple):
    """A producer identity on lease."""

    name: str
    partitions: tuple[str, ...]
    """As topic-number."""
    expire_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerResource:
    meta: Meta
    transactional_id: str = ""
    prefix: str = ""
    lease: LeaseSpec | None = None
    """Exactly one of these three is set."""
    hanging_after_s: int = 300
    on_hanging: str = ALERT
    fence: int = 0
    allowed_topics: tuple[str, ...] | None = None
    """Names, or prefixes with a final `*`; None: every topic."""
    max_timeout_s: int = 0
    """0: the cluster's maximum."""
    managed: bool = True
    spark: SparkSpec | None = None
    """The job that writes under the ids, in the form of v1alpha1. The other form is a SparkJob."""
    outside: str = ""
    """As of a Topic."""
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        return self.managed and not self.meta.paused

    @property
    def record(self) -> Mapping[str, Any] | None:
        """The stored record of the runs of `spark`."""
        return self.status.get("spark")

    @property
    def has_runs(self) -> bool:
        """Whether runs of `spark` are wanted, or may be left."""
        return self.lease is None and (
            self.spark is not None or SPARK_FINALIZER in self.meta.finalizers or bool(self.record))


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJobResource:
    meta: Meta
    producer: str
    """The name of the TransactionalProducer, in the same namespace, under which it writes."""
    spark: SparkSpec
    managed: bool = True
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        return self.managed and not self.meta.paused

    @property
    def producer_ref(self) -> Ref:
        return Ref(PRODUCERS, self.meta.ref.namespace, self.producer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResource:
    meta: Meta
    replicas: int
    rebalance: str = ON_SCALE_UP
    chart_replicas: int | None = None
    """The number of brokers in the chart's values when the resource was last set to it."""
    replace_volume_of: int | None = None
    status: Mapping[str, Any] = field(default_factory=dict)


Resource = TopicResource | ProducerResource | SparkJobResource | PoolResource


def version_of(plural: str) -> str:
    """The version of the API in which the operator reads and writes the kind. TransactionalProducers are stored as
    v1alpha1, so that a former release reads them after a rollback."""
    return NEXT_VERSION if plural in NEWER else VERSION


def read(
    plural: str, body: Mapping[str, Any], policy: NamespacePolicy = UNRESTRICTED
) -> TopicResource | ProducerResource | SparkJobResource:
    """Raises BadResource."""
    if plural == SPARK_JOBS:
        return read_spark_job(body)
    if plural == TOPICS:
        topic = read_topic(body)
        return replace(topic, outside=_outside_of_topic(topic, policy))
    producer = read_producer(body)
    return replace(producer, outside=_outside_of_producer(producer, policy))


def _outside_of_topic(topic: TopicResource, policy: NamespacePolicy) -> str:
    namespace = topic.meta.ref.namespace
    if policy.owns(namespace, ResourceType.TOPIC, topic.topic):
        return ""
    return f"namespace {namespace} may not own the topic {topic.topic}"


def _outside_of_producer(producer: ProducerResource, policy: NamespacePolicy) -> str:
    namespace, kind = producer.meta.ref.namespace, ResourceType.TRANSACTIONAL_ID
    if producer.lease is not None:
        if not policy.owns(namespace, kind, producer.lease.name):
            return f"namespace {namespace} may not own the lease {producer.lease.name}"
        for partition in producer.lease.partitions:  # taking the lease writes to them
            topic = partition.rpartition("-")[0]
            if not policy.owns(namespace, ResourceType.TOPIC, topic):
                return f"namespace {namespace} may not own the topic {topic}, of which the lease has a partition"
        return ""
    name = producer.transactional_id or producer.prefix
    if policy.owns(namespace, kind, name, prefix=bool(producer.prefix)):
        return ""
    what = "transactional ids that begin with" if producer.prefix else "the transactional id"
    return f"namespace {namespace} may not own {what} {name}"


def read_topic(body: Mapping[str, Any]) -> TopicResource:
    """Raises BadResource."""
    meta, spec = read_meta(TOPICS, body), spec_of(body)
    config = spec.get("config") or {}
    if not isinstance(config, Mapping) or not all(isinstance(value, str) for value in config.values()):
        raise BadResource("the values of spec.config must be strings")
    return TopicResource(
        meta=meta, topic=text_of(spec, "topicName") or meta.ref.name, partitions=_number(spec, "partitions", 1),
        replication_factor=_number(spec, "replicationFactor", -1), config=dict(config),
        managed=spec.get("managed") is not False, deletion_policy=text_of(spec, "deletionPolicy") or RETAIN,
        status=body.get("status") or {},
    )


def read_producer(body: Mapping[str, Any]) -> ProducerResource:
    """Raises BadResource."""
    meta, spec = read_meta(PRODUCERS, body), spec_of(body)
    name, prefix = text_of(spec, "transactionalId"), text_of(spec, "transactionalIdPrefix")
    lease = _lease(spec)
    if bool(name) + bool(prefix) + (lease is not None) != 1:
        raise BadResource("spec must have either transactionalId or transactionalIdPrefix or lease")
    return ProducerResource(
        meta=meta, transactional_id=name, prefix=prefix, lease=lease,
        hanging_after_s=_number(spec, "hangingAfterSeconds", 300), on_hanging=text_of(spec, "onHanging") or ALERT,
        fence=_number(spec, "fence", 0),
        allowed_topics=_texts(spec, "allowedTopics"), max_timeout_s=_number(spec, "maxTransactionTimeoutSeconds", 0),
        managed=spec.get("managed") is not False, spark=_spark(spec), status=body.get("status") or {},
    )


def read_spark_job(body: Mapping[str, Any]) -> SparkJobResource:
    """Raises BadResource."""
    meta, spec = read_meta(SPARK_JOBS, body), spec_of(body)
    producer = spec.get("producer")
    name = text_of(producer, "name") if isinstance(producer, Mapping) else ""
    if not name:
        raise BadResource("spec.producer.name is missing")
    spark = _spark({"spark": spec})
    assert spark is not None
    return SparkJobResource(
        meta=meta, producer=name, spark=spark, managed=spec.get("managed") is not False,
        status=body.get("status") or {})


def read_pool(body: Mapping[str, Any]) -> PoolResource:
    """Raises BadResource."""
    meta, spec = read_meta(POOLS, body), spec_of(body)
    replicas, asked = _number(spec, "replicas", 0), _number(spec, "replaceVolumeOf", -1)
    if replicas < 1:
        raise BadResource("spec.replicas must be at least 1")
    return PoolResource(
        meta=meta, replicas=replicas, rebalance=text_of(spec, "rebalance") or ON_SCALE_UP,
        chart_replicas=replicas_in(body), replace_volume_of=None if asked < 0 else asked,
        status=body.get("status") or {})


def replicas_in(body: Mapping[str, Any]) -> int | None:
    """The number in the chart's annotation; None if it is missing or not a valid number of brokers."""
    text = str((body["metadata"].get("annotations") or {}).get(CHART_REPLICAS, ""))
    return int(text) if text.isdigit() and 0 < int(text) <= 100 else None


def _lease(spec: Mapping[str, Any]) -> LeaseSpec | None:
    lease = spec.get("lease")
    if lease is None:
        return None
    if not isinstance(lease, Mapping):
        raise BadResource("spec.lease must be an object")
    name, partitions = text_of(lease, "name"), _texts(lease, "partitions")
    if not name or not partitions:
        raise BadResource("spec.lease must have a name and partitions")
    return LeaseSpec(name, partitions, _number(lease, "expireSeconds", 3600))


def _spark(spec: Mapping[str, Any]) -> SparkSpec | None:
    try:
        return read_spark(spec)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadResource(f"the Spark job cannot be read: {error!r}") from None


def read_meta(plural: str, body: Mapping[str, Any]) -> Meta:
    metadata = body.get("metadata") or {}
    taken = str((body.get("status") or {}).get("cluster") or "")
    try:
        return Meta(
            ref=Ref(plural, metadata["namespace"], metadata["name"]), uid=metadata["uid"],
            generation=metadata.get("generation", 0), created=metadata.get("creationTimestamp", ""),
            deleting=metadata.get("deletionTimestamp") is not None, finalizers=tuple(metadata.get("finalizers") or ()),
            paused=(metadata.get("annotations") or {}).get(PAUSE) == "true",
            adopts=(metadata.get("annotations") or {}).get(ADOPT) == "true",
            carry_over=(metadata.get("annotations") or {}).get(CARRY_OVER) == "true",
            cluster=str((metadata.get("labels") or {}).get(CLUSTER) or taken), taken_by=taken,
            version=metadata.get("resourceVersion", ""),
        )
    except KeyError as error:
        raise BadResource(f"metadata.{error.args[0]} is missing") from None


def spec_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = body.get("spec")
    if not isinstance(spec, Mapping):
        raise BadResource("spec is missing")
    return spec


def text_of(spec: Mapping[str, Any], name: str) -> str:
    value = spec.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadResource(f"spec.{name} must be a string")
    return value


def _texts(spec: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = spec.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadResource(f"spec.{name} must be a list of strings")
    return tuple(value)


def _number(spec: Mapping[str, Any], name: str, default: int) -> int:
    value = spec.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadResource(f"spec.{name} must be a whole number")
    return value

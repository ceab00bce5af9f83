"""The cluster's metadata in etcd: each value as a frozen dataclass with its JSON form. `metadata_keys` has the keys.

Every value is one JSON object with `"v": 1`. A reader ignores fields it does not know and refuses a version
that it does not know (rule 22). Byte strings (topic ids, sessions) are hex. Optional facts have a default in the
dataclass, so that a field may be added without a new version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

from hapax.codec.metadata_keys import SCRAM_MECHANISMS
from hapax.codec.metadata_keys import KeyKind as KeyKind
from hapax.codec.metadata_keys import Keys as Keys
from hapax.codec.metadata_keys import ParsedKey as ParsedKey
from hapax.codec.metadata_keys import ShardKind as ShardKind
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.cluster.failover import PartitionState
from hapax.core.producer.leases import Lease
from hapax.core.quota.entities import Entity, entity_of
from hapax.core.sasl.scram_keys import ScramCredential
from hapax.core.transaction.policy import TransactionPolicy
from hapax.core.types import (
    NO_LEADER_EPOCH,
    NO_REGISTRATION,
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    RegistrationEpoch,
    ShardEpoch,
    TopicId,
    TopicIdPartition,
)

VERSION: Final = 1

TXN_STATE_TOPIC: Final = "__transaction_state"
OFFSETS_TOPIC: Final = "__consumer_offsets"
EVENTS_TOPIC: Final = "__hapax_events"
INTERNAL_TOPICS: Final = (TXN_STATE_TOPIC, OFFSETS_TOPIC, EVENTS_TOPIC)

STANDING_STOPPING: Final = "stopping"
"""A `NodeRecord.standing`: the node is about to stop, and other nodes should not wait for it."""

Role = Literal["broker", "coordinator", "pid", "controller"]


class MetadataFormatError(ValueError):
    """A value in the store that this program does not understand."""


# --- values -------------------------------------------------------------------------------------------------


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, **fields}, separators=(",", ":")).encode()


def _decode(what: str, value: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except ValueError as error:
        raise MetadataFormatError(f"{what}: not JSON: {value[:80]!r}") from error
    if not isinstance(fields, dict) or fields.get("v") != VERSION:
        raise MetadataFormatError(f"{what}: not of version {VERSION}: {value[:80]!r}")
    return fields


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Written once, when the cluster is created. The numbers of shards are fixed from then on (rule 22)."""

    cluster_id: str
    txn_shards: int
    group_shards: int
    created_ms: int

    def encode(self) -> bytes:
        return _encode({
            "cluster_id": self.cluster_id, "txn_shards": self.txn_shards, "group_shards": self.group_shards,
            "created": self.created_ms,
        })

    @classmethod
    def decode(cls, value: bytes) -> ClusterRecord:
        f = _decode("cluster", value)
        return cls(f["cluster_id"], f["txn_shards"], f["group_shards"], f["created"])


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A live node, under its lease. The create revision of its key is the node's `RegistrationEpoch`."""

    node_id: NodeId
    role: Role
    host: str
    port: int
    """Port of the Kafka listener; 0 if the role has none (PID allocator, controller)."""
    rpc_address: str
    """`host:port` of its internal gRPC listener."""
    http_address: str = ""
    session: bytes = b""
    """16 random bytes drawn by the process. They authenticate internal writes (rule 17)."""
    rack: str = ""
    identity: str = ""
    """Identifies the node's data folder (or its place under a local runner). A process with the same identity may
    replace its predecessor's registration before the lease has expired. Empty: never."""
    intact_since: RegistrationEpoch = NO_REGISTRATION
    """The first registration since this data folder was last stopped uncleanly; 0: this one (rule 5)."""
    standing: str = ""
    """Why a broker wants to lead nothing (`stopping`, `draining`, `full disk`, `slow disk`); empty: it is fit.
    It keeps leading partitions that no other in-sync replica can lead."""
    listeners: tuple[tuple[str, str, int], ...] = ()
    """Name, host and port of each further Kafka listener, as given to clients that use it."""
    heeds_passed_over: bool = False
    """True for a broker that commits nothing while a partition's record names passed-over replicas, accepted or not
    (`PartitionState`)."""
    public_rpc_address: str = ""
    """`host:port` of its public gRPC listener."""
    frames_address: str = ""
    """`host:port` at which it accepts the calls that every transaction makes, as frames; empty: none."""

    def encode(self) -> bytes:
        further: dict[str, object] = {}
        if self.listeners:
            further["listeners"] = [list(each) for each in self.listeners]
        if self.heeds_passed_over:
            further["heeds_passed_over"] = True
        if self.public_rpc_address:
            further["public_rpc_address"] = self.public_rpc_address
        if self.frames_address:
            further["frames_address"] = self.frames_address
        return _encode({
            "node_id": self.node_id, "role": self.role, "host": self.host, "port": self.port,
            "rpc_address": self.rpc_address, "http_address": self.http_address, "session": self.session.hex(),
            "rack": self.rack, "identity": self.identity, "intact_since": self.intact_since,
            "standing": self.standing, **further,
        })

    @classmethod
    def decode(cls, value: bytes) -> NodeRecord:
        f = _decode("node", value)
        if f["role"] not in get_args(Role):
            raise MetadataFormatError(f"node {f['node_id']}: unknown role {f['role']!r}")
        return cls(
            NodeId(f["node_id"]), cast(Role, f["role"]), f["host"], f["port"], f["rpc_address"],
            f.get("http_address", ""), bytes.fromhex(f.get("session", "")), f.get("rack", ""),
            f.get("identity", ""), RegistrationEpoch(f.get("intact_since", 0)), f.get("standing", ""),
            tuple((str(name), str(host), int(port)) for name, host, port in f.get("listeners", ())),
            f.get("heeds_passed_over", False), f.get("public_rpc_address", ""), f.get("frames_address", ""),
        )


@dataclass(frozen=True, slots=True)
class RacksRecord:
    """The racks of the machines that brokers run on, as the operator found them."""

    label: str = ""
    """The machines' label from which they come."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """Machine -> rack; empty: it has no such label."""

    def encode(self) -> bytes:
        return _encode({"label": self.label, "machines": dict(sorted(self.machines.items()))})

    @classmethod
    def decode(cls, value: bytes) -> RacksRecord:
        f = _decode("racks", value)
        return cls(f["label"], dict(f["machines"]))


OUTSIDE_HOST: Final = "load-balancer.invalid"
"""A host of `NodeRecord.listeners` that stands for the node's address in `OutsideRecord`. No name ends this way
(RFC 6761), so a release that does not know it tells clients nothing that they could reach."""


@dataclass(frozen=True, slots=True)
class OutsideRecord:
    """Where clients outside reach the nodes, where that is known only once something outside has given the address,
    such as a load balancer's. The operator writes it."""

    nodes: Mapping[NodeId, tuple[str, int]] = field(default_factory=dict)
    """Node -> host and port."""
    services: Mapping[NodeId, str] = field(default_factory=dict)
    """Node -> uid of the Kubernetes Service whose address it is. Former operators stored none."""

    def encode(self) -> bytes:
        return _encode({
            "nodes": {str(node): list(self.nodes[node]) for node in sorted(self.nodes)},
            **({"services": {str(node): self.services[node] for node in sorted(self.services)}}
               if self.services else {}),
        })

    @classmethod
    def decode(cls, value: bytes) -> OutsideRecord:
        f = _decode("outside", value)
        return cls({NodeId(int(node)): (str(host), int(port)) for node, (host, port) in f["nodes"].items()},
                   {NodeId(int(node)): str(uid) for node, uid in (f.get("services") or {}).items()})


@dataclass(frozen=True, slots=True)
class TopicRecord:
    topic_id: TopicId
    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)
    """Only what was set for this topic, under Kafka's names."""
    internal: bool = False
    assignment: tuple[tuple[NodeId, ...], ...] = ()
    """The replicas of the first partitions, if their creator chose them; read when the partitions are created."""
    made_by: str = ""
    """Uid of the Kubernetes resource that made it; empty: a client did."""

    def encode(self) -> bytes:
        return _encode({
            "topic_id": self.topic_id.hex(), "name": self.name, "partitions": self.partitions,
            "replication_factor": self.replication_factor, "config": dict(self.config),
            "internal": self.internal, "assignment": self.assignment,
            **({"made_by": self.made_by} if self.made_by else {}),
        })

    @classmethod
    def decode(cls, value: bytes) -> TopicRecord:
        f = _decode("topic", value)
        return cls(
            TopicId(bytes.fromhex(f["topic_id"])), f["name"], f["partitions"], f["replication_factor"],
            dict(f.get("config", {})), bool(f.get("internal", False)),
            tuple(tuple(NodeId(n) for n in replicas) for replicas in f.get("assignment", ())),
            str(f.get("made_by", "")),
        )


@dataclass(frozen=True, slots=True)
class DeletedTopicRecord:
    """Remains after a topic is deleted, so that its id is never used again (rule 10)."""

    topic_id: TopicId
    name: str
    deleted_ms: int

    def encode(self) -> bytes:
        return _encode({"topic_id": self.topic_id.hex(), "name": self.name, "deleted": self.deleted_ms})

    @classmethod
    def decode(cls, value: bytes) -> DeletedTopicRecord:
        f = _decode("deleted topic", value)
        return cls(TopicId(bytes.fromhex(f["topic_id"])), f["name"], f["deleted"])


@dataclass(frozen=True, slots=True)
class PartitionRecord(PartitionState):
    """Assigned by the controller. The leader accepts by compare-and-swap: `accepted_epoch = leader_epoch`."""

    def encode(self) -> bytes:
        """`passed_over` gets another name once the leader has accepted. A former version would keep the field and
        commit all the same; it drops a field that it does not know."""
        unclean = {} if self.unclean_ms < 0 else {"unclean_epoch": self.unclean_epoch, "unclean": self.unclean_ms}
        return _encode({
            "leader": self.leader, "leader_epoch": self.leader_epoch,
            "leader_registration": self.leader_registration, "isr": self.isr,
            "isr_registrations": self.isr_registrations, "replicas": self.replicas,
            "accepted_epoch": self.accepted_epoch, "adding": self.adding, "removing": self.removing, **unclean,
            **({"left" if self.accepted else "passed_over": self.passed_over} if self.passed_over else {}),
        })

    @classmethod
    def decode(cls, value: bytes) -> PartitionRecord:
        f = _decode("partition", value)
        return cls(
            NodeId(f["leader"]), LeaderEpoch(f["leader_epoch"]), RegistrationEpoch(f["leader_registration"]),
            tuple(NodeId(n) for n in f["replicas"]), tuple(NodeId(n) for n in f["isr"]),
            LeaderEpoch(f.get("accepted_epoch", NO_LEADER_EPOCH)),
            tuple(RegistrationEpoch(r) for r in f.get("isr_registrations", ())),
            tuple(NodeId(n) for n in f.get("adding", ())),
            tuple(NodeId(n) for n in f.get("removing", ())),
            LeaderEpoch(f.get("unclean_epoch", NO_LEADER_EPOCH)),
            f.get("unclean", -1),
            tuple((NodeId(node), RegistrationEpoch(r)) for node, r in f.get("passed_over", f.get("left", ()))),
        )


@dataclass(frozen=True, slots=True)
class DrainingRecord:
    """Exists while a broker is being drained: its partitions move away, and it gets no new ones."""

    since_ms: int
    by: str = ""  # what drains it; empty: a person

    def encode(self) -> bytes:
        return _encode({"since": self.since_ms} | ({"by": self.by} if self.by else {}))

    @classmethod
    def decode(cls, value: bytes) -> DrainingRecord:
        f = _decode("draining", value)
        return cls(f["since"], f.get("by", ""))


@dataclass(frozen=True, slots=True)
class SilentRecord:
    """Exists while a registered node does not answer the controller. No process waits for the node meanwhile."""

    registration: RegistrationEpoch
    """The process that does not answer. Another process of that node is not silent."""
    since_ms: int

    def encode(self) -> bytes:
        return _encode({"registration": self.registration, "since": self.since_ms})

    @classmethod
    def decode(cls, value: bytes) -> SilentRecord:
        f = _decode("silent", value)
        return cls(RegistrationEpoch(f["registration"]), f["since"])


@dataclass(frozen=True, slots=True)
class ThrottleRecord:
    """Exists while reassignments run with a bandwidth limit."""

    bytes_per_second: int
    """Maximum rate at which each broker copies replicas that reassignments add."""
    since_ms: int

    def encode(self) -> bytes:
        return _encode({"bytes_per_second": self.bytes_per_second, "since": self.since_ms})

    @classmethod
    def decode(cls, value: bytes) -> ThrottleRecord:
        f = _decode("throttle", value)
        return cls(f["bytes_per_second"], f["since"])


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """The owner of a coordinator's shard. The epoch rises with every change of the owner or of its registration."""

    owner: NodeId
    owner_registration: RegistrationEpoch
    epoch: ShardEpoch

    def encode(self) -> bytes:
        return _encode({
            "owner": self.owner, "owner_registration": self.owner_registration, "epoch": self.epoch,
        })

    @classmethod
    def decode(cls, value: bytes) -> ShardRecord:
        f = _decode("shard", value)
        return cls(NodeId(f["owner"]), RegistrationEpoch(f["owner_registration"]), ShardEpoch(f["epoch"]))


@dataclass(frozen=True, slots=True)
class PidCounterRecord:
    next: ProducerId
    """The first producer id that no block holds yet."""
    floor: int = 0
    """Producer ids below this are of before a restore, and are refused everywhere."""

    def encode(self) -> bytes:
        return _encode({"next": self.next, **({"floor": self.floor} if self.floor else {})})

    @classmethod
    def decode(cls, value: bytes) -> PidCounterRecord:
        f = _decode("pid counter", value)
        return cls(ProducerId(f["next"]), f.get("floor", 0))


@dataclass(frozen=True, slots=True)
class PidLeaseRecord(Lease):
    """A leased producer identity. `generation` is stored here before any partition receives it (rule 8)."""

    def encode(self) -> bytes:
        return _encode({
            "name": self.name, "producer_id": self.producer_id, "generation": self.generation,
            "holder": self.holder, "held_since": self.held_since_ms, "expires_at_ms": self.expires_at_ms,
            "partitions": [[p.topic_id.hex(), p.partition] for p in self.partitions],
            "carried": [[p.topic_id.hex(), p.partition, count] for p, count in self.carried.items()],
            **({"counted": list(self.counted)} if self.counted else {}),
            **({"call_id": self.call_id.hex()} if self.call_id else {}),
        })

    @classmethod
    def decode(cls, value: bytes) -> PidLeaseRecord:
        f = _decode("pid lease", value)
        partitions = tuple(
            TopicIdPartition(TopicId(bytes.fromhex(topic_id)), PartitionIndex(index))
            for topic_id, index in f.get("partitions", [])
        )
        carried = {
            TopicIdPartition(TopicId(bytes.fromhex(topic_id)), PartitionIndex(index)): count
            for topic_id, index, count in f.get("carried", [])
        }
        return cls(
            f["name"], ProducerId(f["producer_id"]), ProducerEpoch(f["generation"]), f["holder"],
            f.get("held_since", 0), f["expires_at_ms"], partitions, carried,
            tuple(map(ProducerId, f.get("counted", []))), bytes.fromhex(f.get("call_id", "")),
        )


@dataclass(frozen=True, slots=True)
class PolicyRecord(TransactionPolicy):
    """The operator writes one for each TransactionalProducer that it manages; coordinators enforce it."""

    def encode(self) -> bytes:
        return _encode({
            "transactional_id": self.transactional_id, "prefix": self.prefix, "allowed_topics": self.allowed_topics,
            "max_timeout_ms": self.max_timeout_ms, "created": self.created, "uid": self.uid, "owner": self.owner,
        })

    @classmethod
    def decode(cls, value: bytes) -> PolicyRecord:
        f = _decode("policy", value)
        allowed = f.get("allowed_topics")
        return cls(
            f["transactional_id"], f["prefix"], None if allowed is None else tuple(allowed),
            f.get("max_timeout_ms", 0), f["created"], f["uid"], f.get("owner", ""),
        )


@dataclass(frozen=True, slots=True)
class GroupConfigRecord:
    """Exists while a consumer group has configurations of its own, whether the group exists or not."""

    config: Mapping[str, str]
    """Under Kafka's names, such as `consumer.session.timeout.ms`. Not empty."""

    def encode(self) -> bytes:
        return _encode({"config": dict(self.config)})

    @classmethod
    def decode(cls, value: bytes) -> GroupConfigRecord:
        return cls(dict(_decode("group configuration", value)["config"]))


@dataclass(frozen=True, slots=True)
class AclRecord:
    """A binding: it permits or denies one principal one operation."""

    binding: Binding
    owner: str = ""
    """What wrote it and removes it again, such as a custom resource; empty: a Kafka client."""

    def encode(self) -> bytes:
        kind, name, pattern, principal, host, operation, permission = self.binding
        return _encode({
            "type": kind.name, "name": name, "pattern": pattern.name, "principal": principal, "host": host,
            "operation": operation.name, "permission": permission.name,
            **({"owner": self.owner} if self.owner else {}),
        })

    @classmethod
    def decode(cls, value: bytes) -> AclRecord:
        """A word that this release does not know is refused: a denial must never be passed over."""
        f = _decode("acl", value)
        try:
            binding = Binding(
                ResourceType[f["type"]], f["name"], Pattern[f["pattern"]], Principal(f["principal"]), f["host"],
                Operation[f["operation"]], Permission[f["permission"]])
        except KeyError as error:
            raise MetadataFormatError(f"acl: unknown word or missing field {error}: {value[:200]!r}") from None
        return cls(binding, f.get("owner", ""))


@dataclass(frozen=True, slots=True)
class ScramCredentialRecord:
    """What a user's password is checked with. The key names user and mechanism."""

    credential: ScramCredential
    owner: str = ""
    """As of a binding."""

    def encode(self) -> bytes:
        mechanism, salt, stored_key, server_key, iterations = self.credential
        return _encode({
            "mechanism": mechanism.sasl_name, "salt": salt.hex(), "stored_key": stored_key.hex(),
            "server_key": server_key.hex(), "iterations": iterations, **({"owner": self.owner} if self.owner else {}),
        })

    @classmethod
    def decode(cls, value: bytes) -> ScramCredentialRecord:
        f = _decode("scram credential", value)
        mechanism = SCRAM_MECHANISMS.get(str(f["mechanism"]).lower())
        if mechanism is None:
            raise MetadataFormatError(f"scram credential: unknown mechanism {f['mechanism']!r}")
        return cls(ScramCredential(
            mechanism, bytes.fromhex(f["salt"]), bytes.fromhex(f["stored_key"]), bytes.fromhex(f["server_key"]),
            f["iterations"]), f.get("owner", ""))


@dataclass(frozen=True, slots=True)
class ScramSecretRecord:
    """From which all nodes derive the salts of users that do not exist, so that these seem to exist."""

    secret: bytes

    def encode(self) -> bytes:
        return _encode({"secret": self.secret.hex()})

    @classmethod
    def decode(cls, value: bytes) -> ScramSecretRecord:
        return cls(bytes.fromhex(_decode("scram secret", value)["secret"]))


@dataclass(frozen=True, slots=True)
class QuotaRecord:
    """All quotas of one entity."""

    entity: Entity
    quotas: Mapping[str, float]
    """Under Kafka's names, such as `producer_byte_rate`. Not empty."""
    owner: str = ""
    """What wrote it and removes it again, such as a custom resource; empty: a Kafka client."""

    def encode(self) -> bytes:
        return _encode({
            "entity": dict(self.entity), "quotas": dict(self.quotas), **({"owner": self.owner} if self.owner else {})})

    @classmethod
    def decode(cls, value: bytes) -> QuotaRecord:
        f = _decode("quota", value)
        return cls(entity_of(f["entity"]), dict(f["quotas"]), f.get("owner", ""))


@dataclass(frozen=True, slots=True)
class ControllerRecord:
    """The active controller, under its lease. Its writes compare the create revision of this key."""

    node_id: NodeId
    rpc_address: str
    registration: RegistrationEpoch

    def encode(self) -> bytes:
        return _encode({
            "node_id": self.node_id, "rpc_address": self.rpc_address, "registration": self.registration,
        })

    @classmethod
    def decode(cls, value: bytes) -> ControllerRecord:
        f = _decode("controller", value)
        return cls(NodeId(f["node_id"]), f["rpc_address"], RegistrationEpoch(f["registration"]))

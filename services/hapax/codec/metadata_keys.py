"""The names of the keys in the cluster's metadata store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

from hapax.core.access.bindings import Binding
from hapax.core.quota.entities import Entity
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.core.types import NodeId, PartitionIndex, ShardId, TopicId

ShardKind = Literal["txn", "group"]

SCRAM_MECHANISMS: Final = {each.sasl_name.lower(): each for each in ScramMechanism}

KeyKind = Literal[
    "cluster", "node", "racks", "outside", "draining", "silent", "throttle", "topic", "deleted", "partition",
    "txn_shard", "group_shard", "pid_next", "pid_lease", "policy", "group_config", "acl", "scram_credential",
    "scram_secret", "quota", "controller", "unknown",
]


class ParsedKey(NamedTuple):
    """What a key names. `name` is a topic, group, lease or user name, a policy's uid, or the whole key of an ACL or a
    quota, `number` a node id, partition index, shard or SCRAM mechanism."""

    kind: KeyKind
    number: int = -1
    name: str = ""
    topic_id: TopicId = TopicId(b"")


@dataclass(frozen=True, slots=True)
class Keys:
    """The key names of one cluster: `/hapax/<cluster id>/...`."""

    cluster_id: str

    @property
    def prefix(self) -> str:
        """Ends with a slash, so that cluster `a` never sees the keys of cluster `ab`."""
        return f"/hapax/{self.cluster_id}/"

    @property
    def cluster(self) -> str:
        return self.prefix + "cluster"

    @property
    def controller(self) -> str:
        return self.prefix + "controller"

    @property
    def pid_next(self) -> str:
        return self.prefix + "pid/next"

    @property
    def pid_leases(self) -> str:
        return self.prefix + "pid/leases/"

    def pid_lease(self, name: str) -> str:
        return self.pid_leases + quote(name, safe="")

    @property
    def nodes(self) -> str:
        return self.prefix + "nodes/"

    def node(self, node_id: NodeId) -> str:
        return f"{self.nodes}{node_id}"

    @property
    def racks(self) -> str:
        return self.prefix + "racks"

    @property
    def outside(self) -> str:
        return self.prefix + "outside"

    def draining(self, node_id: NodeId) -> str:
        """Exists while a broker is being drained, whether the broker runs or not."""
        return f"{self.prefix}draining/{node_id}"

    def silent(self, node_id: NodeId) -> str:
        """Exists while a registered node does not answer the controller."""
        return f"{self.prefix}silent/{node_id}"

    @property
    def throttle(self) -> str:
        return self.prefix + "throttle"

    def topic(self, name: str) -> str:
        return f"{self.prefix}topics/{name}"

    def deleted(self, topic_id: TopicId) -> str:
        return f"{self.prefix}deleted/{topic_id.hex()}"

    def partition(self, topic_id: TopicId, index: PartitionIndex) -> str:
        return f"{self.prefix}partitions/{topic_id.hex()}/{index}"

    def shard(self, kind: ShardKind, shard: ShardId) -> str:
        return f"{self.prefix}shards/{kind}/{shard}"

    @property
    def policies(self) -> str:
        return self.prefix + "policies/"

    def policy(self, uid: str) -> str:
        return self.policies + quote(uid, safe="")

    def group_config(self, group: str) -> str:
        return f"{self.prefix}groups/{quote(group, safe='')}"

    def acl(self, binding: Binding) -> str:
        """One key per binding: it names everything that the binding says, so that equal ones are one."""
        kind, name, pattern, principal, host, operation, permission = binding
        return "/".join((
            f"{self.prefix}acls", kind.name.lower(), pattern.name.lower(), quote(name, safe=""),
            permission.name.lower(), operation.name.lower(), quote(principal, safe=""), quote(host, safe="")))

    @property
    def scram_secret(self) -> str:
        return f"{self.prefix}scram/secret"

    def scram_credential(self, mechanism: ScramMechanism, user: str) -> str:
        return f"{self.prefix}scram/users/{mechanism.sasl_name.lower()}/{quote(user, safe='')}"

    def quota(self, entity: Entity) -> str:
        """`quotas/user/alice/client-id/<default>`: the types in the order of `Entity`, reversed."""
        parts = [part for kind, name in reversed(entity)
                 for part in (kind, _DEFAULT if name is None else quote(name, safe=""))]
        return "/".join((f"{self.prefix}quotas", *parts))

    def parse(self, key: str) -> ParsedKey:
        """The inverse of all of the above; `unknown` for a key that none of them makes."""
        try:
            return self._parsed(key.removeprefix(self.prefix).split("/"), key)
        except (ValueError, KeyError):
            return ParsedKey("unknown", name=key)

    def _parsed(self, parts: list[str], key: str) -> ParsedKey:
        """Raises ValueError for a number, topic id or quoted name that these keys spell differently, KeyError for a
        mechanism that this release does not know."""
        match parts:
            case ["cluster"]:
                return ParsedKey("cluster")
            case ["controller"]:
                return ParsedKey("controller")
            case ["nodes", number]:
                return ParsedKey("node", _number(number))
            case ["racks"]:
                return ParsedKey("racks")
            case ["outside"]:
                return ParsedKey("outside")
            case ["throttle"]:
                return ParsedKey("throttle")
            case ["draining", number]:
                return ParsedKey("draining", _number(number))
            case ["silent", number]:
                return ParsedKey("silent", _number(number))
            case ["topics", name]:
                return ParsedKey("topic", name=name)
            case ["deleted", topic_id]:
                return ParsedKey("deleted", topic_id=_topic_id(topic_id))
            case ["partitions", topic_id, number]:
                return ParsedKey("partition", _number(number), topic_id=_topic_id(topic_id))
            case ["shards", "txn", number]:
                return ParsedKey("txn_shard", _number(number))
            case ["shards", "group", number]:
                return ParsedKey("group_shard", _number(number))
            case ["pid", "next"]:
                return ParsedKey("pid_next")
            case ["pid", "leases", name]:
                return ParsedKey("pid_lease", name=_name(name))
            case ["policies", uid]:
                return ParsedKey("policy", name=_name(uid))
            case ["groups", group]:
                return ParsedKey("group_config", name=_name(group))
            case ["acls", _, _, name, _, _, principal, host]:
                for text in (name, principal, host):
                    _name(text)
                return ParsedKey("acl", name=key)
            case ["scram", "secret"]:
                return ParsedKey("scram_secret")
            case ["scram", "users", mechanism, user]:
                return ParsedKey("scram_credential", SCRAM_MECHANISMS[mechanism], _name(user))
            case ["quotas", "user" | "client-id" | "ip", name]:
                _name_or_default(name)
                return ParsedKey("quota", name=key)
            case ["quotas", "user", user, "client-id", client_id]:
                _name_or_default(user)
                _name_or_default(client_id)
                return ParsedKey("quota", name=key)
            case _:
                return ParsedKey("unknown", name=key)


_DEFAULT: Final = "<default>"
"""No quoted name: the default entity."""


def _number(text: str) -> int:
    """`int` alone also accepts `01`, `1_0` and ` 1`, which would stand for the same thing as another key."""
    number = int(text)
    if str(number) != text:
        raise ValueError(text)
    return number


def _topic_id(text: str) -> TopicId:
    topic_id = bytes.fromhex(text)
    if topic_id.hex() != text:
        raise ValueError(text)
    return TopicId(topic_id)


def _name(text: str) -> str:
    """`unquote` alone also accepts `%61` for `a`, so that two keys would stand for the same name."""
    name = unquote(text)
    if quote(name, safe="") != text:
        raise ValueError(text)
    return name


def _name_or_default(text: str) -> None:
    if text != _DEFAULT:
        _name(text)

"""The `Mirror` resource: topics that are copied from another cluster and kept up to date."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hapax.core.access.resources import ResourceType
from hapax_operator.namespace_policy import NamespacePolicy
from hapax_operator.resources import MIRRORS, BadResource, Meta, read_meta, spec_of

SAME: Final = "Same"
BY_KEY: Final = "ByKey"
STOP: Final = "Stop"
SKIP: Final = "Skip"
GROUP_PREFIX: Final = "hapax-copy."
"""`hapax copy` keeps its positions in the group of this prefix and its name."""
_WILDCARD: Final = "*"
_LONGEST_NAME: Final = 100
"""Characters that `hapax copy --name` takes."""


class ClientFile(NamedTuple):
    """Where the settings of a client are."""

    kind: str
    """`secret` or `configMap`."""
    name: str
    key: str


class Side(NamedTuple):
    bootstrap: str = ""
    """Empty: of the target alone, the operator's own cluster."""
    file: ClientFile | None = None


class Names(NamedTuple):
    """A name, or all names with a prefix."""

    text: str
    prefix: bool

    @classmethod
    def read(cls, text: str) -> Names:
        return cls(text.removesuffix(_WILDCARD), text.endswith(_WILDCARD))

    def covers(self, other: Names) -> bool:
        return (self.prefix and other.text.startswith(self.text)) or self == other

    def common(self, other: Names) -> Names | None:
        """What belongs to both; None: nothing."""
        return other if self.covers(other) else self if other.covers(self) else None

    def meets(self, other: Names) -> bool:
        """Whether a name belongs to both."""
        return self.common(other) is not None

    def __str__(self) -> str:
        return self.text + (_WILDCARD if self.prefix else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorResource:
    meta: Meta
    source: Side
    target: Side
    topics: tuple[Names, ...]
    groups: tuple[Names, ...] = ()
    exclude: tuple[Names, ...] = ()
    """Topics that are not copied, though they are among `topics`."""
    prefix: str = ""
    replication_factor: int = -1
    """Of topics that are created; -1: the target's default."""
    partitioning: str = SAME
    on_lost: str = STOP
    suspend: bool = False
    replicas: int = 1
    image: str = ""
    """Empty: the operator's; likewise the pull policy."""
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def copy_name(self) -> str:
        """No other Mirror has it: namespaces have no dots in their names."""
        name = f"{self.meta.ref.namespace}.{self.meta.ref.name}"
        if len(name) <= _LONGEST_NAME:
            return name
        return f"{name[:_LONGEST_NAME - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    @property
    def group(self) -> str:
        return GROUP_PREFIX + self.copy_name

    @property
    def own_ids(self) -> Names:
        """The transactional ids of the copiers."""
        return Names(self.group + ".", prefix=True)

    @property
    def own_topics(self) -> Names:
        """The one that has the copy's positions, the one by which the positions of groups are translated, and those by
        which copiers share the source's partitions, where the target's do not correspond to them."""
        return self.own_ids

    @property
    def at_home(self) -> bool:
        """Whether it writes to the operator's own cluster."""
        return not self.target.bootstrap

    @property
    def written(self) -> tuple[Names, ...]:
        """The topics of the target, with those that it leaves out."""
        return tuple(Names(self.prefix + each.text, each.prefix) for each in self.topics)

    @property
    def place(self) -> tuple[Any, ...]:
        """On what it depends which other Mirrors it meets."""
        return self.target.bootstrap, self.written, self._left_out

    @property
    def _left_out(self) -> tuple[Names, ...]:
        return tuple(Names(self.prefix + each.text, each.prefix) for each in self.exclude)

    def meets(self, other: MirrorResource) -> bool:
        """Whether both may write to one topic, as far as addresses tell that the target is the same."""
        if {*self.target.bootstrap.split(",")}.isdisjoint(other.target.bootstrap.split(",")):
            return False
        common = [found for one in self.written for another in other.written if (found := one.common(another))]
        left_out = (*self._left_out, *other._left_out)
        return any(not any(each.covers(names) for each in left_out) for names in common)


def pattern_of(names: Iterable[Names]) -> str:
    """A regular expression that matches exactly these names as a whole."""
    return "|".join(re.escape(each.text) + (".*" if each.prefix else "") for each in names)


def forbidden(mirror: MirrorResource, policy: NamespacePolicy) -> str:
    """Why the namespace may not write what the Mirror writes to the operator's own cluster; empty: it may. What it
    writes elsewhere is that cluster's to permit."""
    if not mirror.at_home:
        return ""
    namespace = mirror.meta.ref.namespace
    kinds = (("topic", ResourceType.TOPIC, (*mirror.written, mirror.own_topics)),
             ("group", ResourceType.GROUP, (*mirror.groups, Names(mirror.group, prefix=False))),
             ("transactional id", ResourceType.TRANSACTIONAL_ID, (mirror.own_ids,)))
    for what, kind, names in kinds:
        for each in names:
            if not policy.owns(namespace, kind, each.text, prefix=each.prefix):
                return f"namespace {namespace} may not own the {what}{'s' if each.prefix else ''} {each}"
    return ""


def read_mirror(body: Mapping[str, Any]) -> MirrorResource:
    """Raises BadResource."""
    meta, spec = read_meta(MIRRORS, body), spec_of(body)
    try:
        return MirrorResource(
            meta=meta, source=_side(spec["source"]), target=_side(spec.get("target") or {}),
            topics=_names(spec["topics"]), exclude=_names(spec.get("exclude") or ()),
            replication_factor=int(spec.get("replicationFactor", -1)), groups=_names(spec.get("groups") or ()),
            prefix=str(spec.get("prefix") or ""), partitioning=str(spec.get("partitioning", SAME)),
            on_lost=str(spec.get("onLost", STOP)), suspend=spec.get("suspend") is True,
            replicas=int(spec.get("replicas", 1)), image=str(spec.get("image") or ""),
            pull_policy=str(spec.get("imagePullPolicy") or ""),
            pull_secrets=tuple(str(each) for each in spec.get("imagePullSecrets") or ()),
            resources=dict(spec.get("resources") or {}), node_selector=dict(spec.get("nodeSelector") or {}),
            tolerations=tuple(dict(each) for each in spec.get("tolerations") or ()),
            affinity=dict(spec.get("affinity") or {}), template=dict(spec.get("podTemplate") or {}),
            status=body.get("status") or {})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadResource(f"spec cannot be read: {error!r}") from None


def _side(given: Mapping[str, Any]) -> Side:
    for kind in ("secret", "configMap"):
        if kind in given:
            file = given[kind]
            return Side(str(given.get("bootstrapServers") or ""), ClientFile(
                kind, str(file["name"]), str(file.get("key") or "client.properties")))
    return Side(str(given.get("bootstrapServers") or ""))


def _names(given: Sequence[Any]) -> tuple[Names, ...]:
    return tuple(Names.read(str(each)) for each in given)

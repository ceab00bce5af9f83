"""Which names the resources of a namespace may own, and what its Users may be permitted. Pure.

The policy belongs to the cluster: it is given to the operator, and no resource changes it. A namespace may own what any
rule that names it says. To own a topic is to describe it by a Topic and to permit its own Users everything on
it; the same for groups, transactional ids (and leases), and the names of Users. A grant lets a namespace permit its
Users some operations on what it does not own.

Never permitted, whatever the rules say: ClusterAction, which is for the cluster's own nodes, All on the cluster, which
includes it, and names that begin with `__`, unless a pattern of the policy begins with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hapax.core.access.bindings import Binding
from hapax.core.access.principals import Principal, parsed
from hapax.core.access.resources import CLUSTER_NAME, WILDCARD, Operation, Pattern, ResourceType, title
from hapax.core.quota.entities import CLIENT_KEYS

_PLACEHOLDER: Final = "{namespace}"
_RESERVED: Final = "__"
_OWNABLE: Final = {
    ResourceType.TOPIC: "topics", ResourceType.GROUP: "groups", ResourceType.TRANSACTIONAL_ID: "transactionalIds"}
_AMBIGUOUS: Final = re.compile(r"\{namespace\}[a-z0-9*-]")
_NEVER: Final = frozenset((Operation.CLUSTER_ACTION, Operation.ALL))
"""On the cluster."""

OPERATIONS: Final = {
    title(each): each for each in Operation if each not in (Operation.UNKNOWN, Operation.ANY)}
"""By the names that resources and the policy use."""
TYPES: Final = {
    title(each): each for each in (
        ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)}


class BadPolicy(ValueError):
    """The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names, or beginnings of names with a final `*`. `{namespace}` stands for the namespace in question."""

    patterns: tuple[str, ...] = ()

    def covers(self, name: str, namespace: str, *, prefix: bool = False) -> bool:
        """`prefix`: whether all names that begin with `name` are covered."""
        return any(_covers(each.replace(_PLACEHOLDER, namespace), name, prefix) for each in self.patterns)


def _covers(pattern: str, name: str, prefix: bool) -> bool:
    if not pattern.endswith(WILDCARD):
        return pattern == name and not prefix
    beginning = pattern[:-1]
    if name.startswith(_RESERVED) and not beginning.startswith(_RESERVED):
        return False
    return name.startswith(beginning)


@dataclass(frozen=True, slots=True)
class Grant:
    kind: ResourceType
    names: Names
    operations: frozenset[Operation]


@dataclass(frozen=True, slots=True)
class Rule:
    namespaces: Names
    owns: Mapping[ResourceType, Names] = field(default_factory=dict)
    users: Names = field(default_factory=Names)
    grants: tuple[Grant, ...] = ()
    quotas: Mapping[str, float] = field(default_factory=dict)
    """Key -> the most that a User may be given."""


@dataclass(frozen=True, slots=True)
class NamespacePolicy:
    rules: tuple[Rule, ...]
    reserved: frozenset[Principal] = frozenset()
    """Principals that no User may be: those of nodes and super users."""

    def _rules(self, namespace: str) -> Iterable[Rule]:
        return (each for each in self.rules if each.namespaces.covers(namespace, namespace))

    def owns(self, namespace: str, kind: ResourceType, name: str, *, prefix: bool = False) -> bool:
        return any(
            each.owns.get(kind, Names()).covers(name, namespace, prefix=prefix) for each in self._rules(namespace))

    def owns_user(self, namespace: str, name: str) -> bool:
        return any(each.users.covers(name, namespace) for each in self._rules(namespace))

    def reserving(self, principals: Iterable[Principal]) -> NamespacePolicy:
        return replace(self, reserved=self.reserved.union(principals))

    def is_reserved(self, principal: Principal) -> bool:
        return principal in self.reserved

    def permits(self, namespace: str, binding: Binding) -> bool:
        """Whether a User of the namespace may have the binding. Denials are judged alike: where a resource is open to
        everybody until a binding names it, a denial closes it to all."""
        if binding.kind is ResourceType.CLUSTER:
            if binding.operation in _NEVER:
                return False
        elif self._owns(namespace, binding):
            return True
        return any(
            binding.operation in grant.operations or Operation.ALL in grant.operations
            for rule in self._rules(namespace) for grant in rule.grants
            if grant.kind is binding.kind and _names_of(grant.names, namespace, binding))

    def _owns(self, namespace: str, binding: Binding) -> bool:
        return any(
            _names_of(each.owns.get(binding.kind, Names()), namespace, binding) for each in self._rules(namespace))

    def most(self, namespace: str, key: str) -> float | None:
        """The highest quota that a rule allows; None: the policy sets no limit."""
        return max((each.quotas[key] for each in self._rules(namespace) if key in each.quotas), default=None)


def _names_of(names: Names, namespace: str, binding: Binding) -> bool:
    """Whether all resources that the binding names are covered."""
    if binding.kind is ResourceType.CLUSTER:
        return binding.name == CLUSTER_NAME
    if binding.pattern is Pattern.LITERAL and binding.name == WILDCARD:
        return names.covers("", namespace, prefix=True)
    return names.covers(binding.name, namespace, prefix=binding.pattern is Pattern.PREFIXED)


_EVERYTHING: Final = Names((WILDCARD,))
UNRESTRICTED: Final = NamespacePolicy((Rule(
    _EVERYTHING, dict.fromkeys(_OWNABLE, _EVERYTHING), _EVERYTHING,
    (Grant(ResourceType.CLUSTER, Names(), frozenset(set(Operation) - _NEVER)),)),))
"""Of an operator that was given no policy: all namespaces belong to one tenant."""


# --- reading ----------------------------------------------------------------------------------------------------------


def read_policy(document: Mapping[str, Any]) -> NamespacePolicy:
    """From `namespaces` and `reservedPrincipals` of the operator's file. Raises BadPolicy."""
    rules = document.get("namespaces")
    if not isinstance(rules, Sequence) or isinstance(rules, str):
        raise BadPolicy("namespaces must be a list of rules")
    try:
        kept = frozenset(parsed(each) for each in _texts(document, "reservedPrincipals"))
    except ValueError as error:
        raise BadPolicy(f"reservedPrincipals: {error}") from None
    return NamespacePolicy(tuple(_rule(each) for each in rules), kept)


def _rule(rule: Any) -> Rule:
    known = {"names", "users", "grants", "quotas", *_OWNABLE.values()}
    _check_keys("a rule", rule, known)
    if not rule.get("names"):
        raise BadPolicy("a rule has no names of namespaces")
    quotas = rule.get("quotas") or {}
    _check_keys("quotas", quotas, set(CLIENT_KEYS))
    for key, value in quotas.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise BadPolicy(f"the quota {key} must be a number above 0")
    return Rule(
        _names(rule, "names"), {kind: _names(rule, key) for kind, key in _OWNABLE.items() if key in rule},
        _names(rule, "users"), tuple(_grant(each) for each in rule.get("grants") or ()),
        {key: float(value) for key, value in quotas.items()})


def _grant(grant: Any) -> Grant:
    _check_keys("a grant", grant, {"type", "names", "operations"})
    kind = TYPES.get(str(grant.get("type")))
    if kind is None:
        raise BadPolicy(f"the type of a grant is one of {', '.join(TYPES)}")
    operations = _texts(grant, "operations")
    unknown = [each for each in operations if each not in OPERATIONS]
    if unknown or not operations:
        raise BadPolicy(f"the operations of a grant are some of {', '.join(OPERATIONS)}")
    found = frozenset(OPERATIONS[each] for each in operations)
    if kind is ResourceType.CLUSTER and found & _NEVER:
        raise BadPolicy("ClusterAction and All on the cluster are not for Users: they are what the cluster's nodes do")
    names = _names(grant, "names")
    if bool(names.patterns) == (kind is ResourceType.CLUSTER):
        raise BadPolicy("a grant has names, unless its type is Cluster")
    return Grant(kind, names, found)


def _check_keys(what: str, value: Any, known: set[str]) -> None:
    if not isinstance(value, Mapping):
        raise BadPolicy(f"{what} must be an object")
    unknown = sorted(str(each) for each in value if each not in known)
    if unknown:
        raise BadPolicy(f"{what} has the unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")


def _names(rule: Mapping[str, Any], key: str) -> Names:
    patterns = _texts(rule, key)
    for each in patterns:
        if WILDCARD in each[:-1]:
            raise BadPolicy(f"{key}: {each!r} has a * before its end")
        if _AMBIGUOUS.search(each):
            raise BadPolicy(
                f"{key}: {each!r} also covers names of other namespaces, whose names go on where this one ends: put a "
                f"character after {_PLACEHOLDER} that no namespace has in its name, such as a dot")
    return Names(patterns)


def _texts(rule: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = rule.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise BadPolicy(f"{key} must be a list of names")
    return tuple(value)

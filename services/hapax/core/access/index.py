"""The decision: may a principal on a host do this to that resource? And by which binding?

The order is Kafka's (`StandardAuthorizer`): super users may do everything; one binding that denies outweighs all that
permit; otherwise one that permits is needed. Only where no binding of any principal names the resource does
`allow.everyone.if.no.acl.found` count.

Stricter than Kafka: an internal topic is permitted by a literal binding of its name alone, so that the common `*` does
not open the cluster's own records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from hapax.core.access.bindings import Binding
from hapax.core.access.principals import EVERY_USER, Principal
from hapax.core.access.resources import (
    IMPLIED_BY,
    WILDCARD,
    Action,
    Operation,
    Pattern,
    Permission,
    ResourceType,
)
from hapax.core.hosts import plain_host


class Policy(NamedTuple):
    """What holds beside the bindings."""

    super_users: frozenset[Principal] = frozenset()
    allow_without_bindings: bool = False
    """Whether everybody may use a resource that no binding names."""
    literal_only: frozenset[str] = frozenset()
    """Topics that only a literal binding of their name permits."""


class Decision(NamedTuple):
    allowed: bool
    rule: Binding | None
    """The binding that decided; None: a super user, or no binding names the resource for this principal."""
    reason: str


_SUPER: Final = Decision(True, None, "super user")
_UNNAMED: Final = Decision(True, None, "no binding names the resource")
_NO_RULE: Final = Decision(False, None, "no binding permits it")
_NOT_LOADED: Final = Decision(False, None, "the bindings are not known yet")

_Rules = Mapping[tuple[ResourceType, Pattern, str], tuple[Binding, ...]]


class AccessIndex:
    """All bindings, found by the resource. Immutable: a change makes another index, which shares most of this one."""

    __slots__ = ("_bindings", "_hosts", "_prefix_lengths", "_rules")

    def __init__(self, bindings: Mapping[str, Binding] | None = None) -> None:
        """`bindings` by their keys in the store."""
        self._bindings: dict[str, Binding] = {}
        self._rules: _Rules = {}
        self._prefix_lengths: Mapping[ResourceType, tuple[int, ...]] = {}
        self._hosts: Mapping[str, str] = {}
        if bindings:
            self._add(bindings)

    def changed(self, changes: Mapping[str, Binding | None]) -> AccessIndex:
        """The index after these keys were written, or removed (None)."""
        following = AccessIndex()
        following._bindings = self._bindings
        following._rules, following._hosts = self._rules, self._hosts
        following._add(changes)
        return following

    def _add(self, changes: Mapping[str, Binding | None]) -> None:
        bindings, rules, hosts = dict(self._bindings), dict(self._rules), dict(self._hosts)
        for key, binding in changes.items():
            former = bindings.pop(key, None)
            if former is not None:
                place = _place(former)
                left = list(rules[place])
                left.remove(former)  # once: another key may hold the same
                if left:
                    rules[place] = tuple(left)
                else:
                    del rules[place]
            if binding is not None:
                bindings[key] = binding
                place = _place(binding)
                rules[place] = (*rules.get(place, ()), binding)
                hosts[binding.host] = plain_host(binding.host)
        lengths: dict[ResourceType, set[int]] = {}
        for kind, pattern, name in rules:
            if pattern is Pattern.PREFIXED:
                lengths.setdefault(kind, set()).add(len(name))
        self._bindings, self._rules, self._hosts = bindings, rules, hosts
        self._prefix_lengths = {kind: tuple(sorted(found)) for kind, found in lengths.items()}

    def __len__(self) -> int:
        return len(self._bindings)

    def bindings(self) -> Mapping[str, Binding]:
        """By key."""
        return self._bindings

    def naming(self, kind: ResourceType, name: str) -> Iterator[Binding]:
        """The bindings of all principals that name the resource."""
        rules = self._rules
        yield from rules.get((kind, Pattern.LITERAL, name), ())
        if name != WILDCARD:
            yield from rules.get((kind, Pattern.LITERAL, WILDCARD), ())
        for length in self._prefix_lengths.get(kind, ()):
            if length > len(name):
                break
            yield from rules.get((kind, Pattern.PREFIXED, name[:length]), ())

    def decide(self, policy: Policy, principal: Principal, host: str, action: Action, name: str) -> Decision:
        """`host`: the client's address as `plain_host` spells it."""
        if principal in policy.super_users:
            return _SUPER
        literal_only = action.kind is ResourceType.TOPIC and name in policy.literal_only
        named = False
        permitting: Binding | None = None
        for binding in self.naming(action.kind, name):
            named = True
            if not self._concerns(binding, principal, host, action.operation):
                continue
            if binding.permission is Permission.DENY:
                return Decision(False, binding, "denied by a binding")
            if permitting is None and (
                not literal_only or (binding.pattern is Pattern.LITERAL and binding.name == name)
            ):
                permitting = binding
        if permitting is not None:
            return Decision(True, permitting, "permitted by a binding")
        return _UNNAMED if policy.allow_without_bindings and not named and not literal_only else _NO_RULE

    def decide_any(self, policy: Policy, principal: Principal, host: str, action: Action) -> Decision:
        """Whether there may be some resource of the type on which the operation is permitted (KIP-679). A denial counts
        where it covers all that a permission names."""
        if principal in policy.super_users:
            return _SUPER
        denied: list[Binding] = []
        permitted: list[Binding] = []
        for (kind, _, _), rules in self._rules.items():
            if kind is action.kind:
                for binding in rules:
                    if self._concerns(binding, principal, host, action.operation):
                        (denied if binding.permission is Permission.DENY else permitted).append(binding)
        everywhere = next((each for each in denied if _is_wildcard(each)), None)
        if everywhere is not None:
            return Decision(False, everywhere, "denied by a binding")
        if policy.allow_without_bindings and (action.kind, Pattern.LITERAL, WILDCARD) not in self._rules:
            return _UNNAMED  # else every resource of the type is named
        for binding in permitted:
            if not any(_covers(each, binding) for each in denied):
                return Decision(True, binding, "permitted by a binding")
        return _NO_RULE

    def _concerns(self, binding: Binding, principal: Principal, host: str, operation: Operation) -> bool:
        """Whether the binding speaks of this principal, host and operation."""
        if binding.principal not in (principal, EVERY_USER):
            return False
        if binding.host != WILDCARD and self._hosts[binding.host] != host:
            return False
        if binding.operation in (operation, Operation.ALL):
            return True
        return binding.permission is Permission.ALLOW and binding.operation in IMPLIED_BY.get(operation, ())


class UnknownBindings(AccessIndex):
    """Stands for the bindings of a node that has never read them: only super users may do anything."""

    def decide(self, policy: Policy, principal: Principal, host: str, action: Action, name: str) -> Decision:
        return _SUPER if principal in policy.super_users else _NOT_LOADED

    def decide_any(self, policy: Policy, principal: Principal, host: str, action: Action) -> Decision:
        return self.decide(policy, principal, host, action, "")


def of_bindings(bindings: Iterable[Binding]) -> AccessIndex:
    """For tests and tools: an index of bindings without keys in a store."""
    return AccessIndex({str(number): binding for number, binding in enumerate(bindings)})


def _place(binding: Binding) -> tuple[ResourceType, Pattern, str]:
    return binding.kind, binding.pattern, binding.name


def _is_wildcard(binding: Binding) -> bool:
    return binding.pattern is Pattern.LITERAL and binding.name == WILDCARD


def _covers(denial: Binding, permission: Binding) -> bool:
    """Whether the denial names everything that the permission names."""
    if denial.pattern is Pattern.PREFIXED:
        return permission.name.startswith(denial.name) and not _is_wildcard(permission)
    return permission.pattern is Pattern.LITERAL and permission.name == denial.name

"""Bindings (ACLs): each permits or denies one principal one operation on the resources that its pattern names."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from hapax.core.access.principals import Principal, parsed
from hapax.core.access.resources import CLUSTER_NAME, WILDCARD, Operation, Pattern, Permission, ResourceType, title
from hapax.core.errors import ErrorCode, Refusal

LONGEST_TEXT: Final = 1024
"""Characters of a resource's name, a principal and a host."""
_ANY: Final = 1
"""In all of Kafka's enumerations."""

_Value = TypeVar("_Value", ResourceType, Pattern, Operation, Permission)


class Binding(NamedTuple):
    kind: ResourceType
    name: str
    pattern: Pattern
    """`LITERAL` or `PREFIXED`."""
    principal: Principal
    host: str
    """An IP address, or `*`."""
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        """For log lines: one line, whatever the names contain."""
        return (
            f"{title(self.permission)} {self.principal!r} {title(self.operation)} on {title(self.kind)} "
            f"{title(self.pattern)} {self.name!r} from {self.host!r}")


class Filter(NamedTuple):
    """Selects bindings. None, and `ANY`, select every value."""

    kind: ResourceType
    name: str | None
    pattern: Pattern
    """`MATCH`: every binding that concerns the resource `name`, also by `*` and by prefix."""
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, binding: Binding) -> bool:
        return (
            self.kind in (ResourceType.ANY, binding.kind)
            and self.pattern in (Pattern.ANY, Pattern.MATCH, binding.pattern)
            and (self.name is None or self._names(binding))
            and (self.principal is None or self.principal == binding.principal)
            and (self.host is None or self.host == binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
        )

    def _names(self, binding: Binding) -> bool:
        if self.name == binding.name:
            return True
        if self.pattern is not Pattern.MATCH or self.name is None:
            return False
        if binding.pattern is Pattern.LITERAL:
            return binding.name == WILDCARD
        return self.name.startswith(binding.name)


def checked_binding(
    kind: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> Binding:
    """A binding that may be stored. Raises Refusal (INVALID_REQUEST)."""
    resource = _concrete(ResourceType, kind, "resource type")
    if pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        raise _invalid("a binding's pattern is LITERAL or PREFIXED")
    if not name:
        raise _invalid("the resource has no name")
    if resource is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise _invalid(f"the only resource of the type Cluster is {CLUSTER_NAME}")
    if permission not in (Permission.ALLOW, Permission.DENY):
        raise _invalid("a binding's permission is ALLOW or DENY")
    try:
        who = parsed(principal)
    except ValueError as error:
        raise _invalid(str(error)) from None
    if not host:
        raise _invalid("the host is empty; * stands for every host")
    if max(len(name), len(principal), len(host)) > LONGEST_TEXT:
        raise _invalid(f"a name is longer than {LONGEST_TEXT} characters")
    return Binding(
        resource, name, Pattern(pattern), who, host, _concrete(Operation, operation, "operation"),
        Permission(permission))


def checked_filter(
    kind: int, name: str | None, pattern: int, principal: str | None, host: str | None, operation: int,
    permission: int,
) -> Filter:
    """Raises Refusal (INVALID_REQUEST): a value is unknown here."""
    return Filter(
        _known(ResourceType, kind, "resource type"), name, _known(Pattern, pattern, "pattern"), principal, host,
        _known(Operation, operation, "operation"), _known(Permission, permission, "permission"))


def _known(values: type[_Value], number: int, what: str) -> _Value:
    if number == 0 or number not in values._value2member_map_:
        raise _invalid(f"unknown {what} {number}")
    return values(number)


def _concrete(values: type[_Value], number: int, what: str) -> _Value:
    value = _known(values, number, what)
    if value == _ANY:
        raise _invalid(f"a binding has one {what}")
    return value


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)

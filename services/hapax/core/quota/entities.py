"""Whom a quota names, and what it may say (KIP-546): checked as Kafka's controller checks it, and somewhat stricter.

An entity is a user, a client id, a user with a client id, or an IP address. Each name may be absent, which is the
default: it holds for all that have no quota of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import IntEnum
from ipaddress import ip_address
from typing import Final, NamedTuple, TypeAlias

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.hosts import plain_host

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
"""Bytes of Produce requests per second."""
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
"""Bytes of Fetch answers per second."""
REQUEST_PERCENTAGE: Final = "request_percentage"
"""Time of a node's event loop; 100 is all of it."""
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
"""Partitions created, added and deleted per second."""
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
"""Connections per second."""

CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
IP_KEYS: Final = (CONNECTION_CREATION_RATE,)
KEYS: Final = (*CLIENT_KEYS, *IP_KEYS)

LONGEST_NAME: Final = 1024
_WHOLE: Final = {
    PRODUCER_BYTE_RATE: 2**63 - 1, CONSUMER_BYTE_RATE: 2**63 - 1, CONNECTION_CREATION_RATE: 2**31 - 1,
}
"""Keys whose values are whole numbers, and the largest."""
_EPSILON: Final = 1e-6

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(type, name) in the order of the types; None: the default. At most one of each type."""


def entity_of(names: Mapping[str, str | None]) -> Entity:
    return tuple(sorted(names.items()))


def entity_text(entity: Entity) -> str:
    """For people: one line, whatever the names contain."""
    return ", ".join(f"{kind} {'default' if name is None else repr(name)}" for kind, name in entity)


def checked_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Raises Refusal (INVALID_REQUEST)."""
    names: dict[str, str | None] = {}
    for kind, name in parts:
        if kind in names:
            raise _invalid(f"the entity names its {kind} twice")
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"unknown type of entity {kind[:LONGEST_NAME]!r}")
        if name == "":
            raise _invalid(f"the {kind} is empty; the default has no name at all")
        if name is not None and len(name) > LONGEST_NAME:
            raise _invalid(f"the {kind} is longer than {LONGEST_NAME} characters")
        names[kind] = name
    if not names:
        raise _invalid("the entity is empty")
    if IP in names:
        if len(names) > 1:
            raise _invalid("an ip is not combined with a user or client-id")
        address = names[IP]
        if address is not None:
            names[IP] = _plain_address(address)
    return entity_of(names)


def _plain_address(text: str) -> str:
    """One spelling for each address, by which connections are found: two spellings would be two quotas of one client.
    Raises Refusal."""
    try:
        ip_address(text)
    except ValueError:
        raise _invalid(f"{text!r} is no IP address") from None
    return plain_host(text)


def keys_of(entity: Entity) -> tuple[str, ...]:
    """The quotas that an entity may have."""
    return IP_KEYS if entity[0][0] == IP else CLIENT_KEYS


def checked_change(entity: Entity, ops: Iterable[tuple[str, float | None]]) -> dict[str, float | None]:
    """Key -> value, None: removed. Raises Refusal (INVALID_REQUEST). A key that no quota can have may be removed: it is
    not there."""
    change: dict[str, float | None] = {}
    for key, value in ops:
        if key in change:
            raise _invalid(f"the request changes {key[:LONGEST_NAME]!r} of this entity twice")
        change[key] = None if value is None else _checked_value(entity, key, value)
    return change


def _checked_value(entity: Entity, key: str, value: float) -> float:
    if key not in keys_of(entity):
        raise _invalid(f"{entity_text(entity)} cannot have the quota {key[:LONGEST_NAME]!r}")
    if not (math.isfinite(value) and value > 0):
        raise _invalid(f"{key} must be greater than 0")
    most = _WHOLE.get(key)
    if most is not None:
        whole = float(math.floor(value + _EPSILON))
        if abs(whole - value) > _EPSILON or whole < 1:
            raise _invalid(f"{key} must be a whole number")
        if value > most:
            raise _invalid(f"{key} is at most {most}")
        return whole
    return value


def changed(quotas: Mapping[str, float], change: Mapping[str, float | None]) -> dict[str, float]:
    """An entity's quotas after the change."""
    merged = {**quotas, **change}
    return {key: value for key, value in merged.items() if value is not None}


# --- which entities a request asks for --------------------------------------------------------------------------------


class Match(IntEnum):
    """Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2
    """Entities that have the type, also as a default."""


class EntityFilter(NamedTuple):
    exact: Mapping[str, str | None]
    """Type -> name; None: the default."""
    any_of: frozenset[str]
    strict: bool
    """Whether entities with further types are left out."""

    def matches(self, entity: Entity) -> bool:
        names = dict(entity)
        if self.strict and len(names) != len(self.exact) + len(self.any_of):
            return False
        return (
            all(kind in names and names[kind] == name for kind, name in self.exact.items())
            and all(kind in names for kind in self.any_of))


def checked_filter(components: Iterable[tuple[str, int, str | None]], strict: bool) -> EntityFilter:
    """Of (type, match type, name). Raises Refusal: INVALID_REQUEST, or UNSUPPORTED_VERSION for an unknown type."""
    exact: dict[str, str | None] = {}
    any_of: set[str] = set()
    for kind, match, name in components:
        if not kind:
            raise _invalid("a component of the filter has no type")
        if kind in exact or kind in any_of:
            raise _invalid(f"the filter names the type {kind[:LONGEST_NAME]!r} twice")
        if kind not in (USER, CLIENT_ID, IP):
            raise Refusal(ErrorCode.UNSUPPORTED_VERSION, f"unknown type of entity {kind[:LONGEST_NAME]!r}")
        if match not in tuple(Match):
            raise _invalid(f"unknown match type {match}")
        if (match == Match.EXACT) != (name is not None):
            raise _invalid("a name is given for an exact match, and for no other")
        if match == Match.ANY:
            any_of.add(kind)
        else:
            exact[kind] = plain_host(name) if kind == IP and name is not None else name
    named = exact.keys() | any_of
    if IP in named and len(named) > 1:
        raise _invalid("an ip is not combined with a user or client-id")
    return EntityFilter(exact, frozenset(any_of), strict)


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)

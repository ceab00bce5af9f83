"""Which quota holds for a client: the most specific one, in Kafka's order.

    user and client id, user and default client id, user, default user and client id, default user and default client
    id, default user, client id, default client id

Each key is looked up for itself. The quota that is found also says who shares it: one of a user is shared by all
clients of that user, one of a client id by all users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from hapax.core.quota.entities import CLIENT_ID, CONNECTION_CREATION_RATE, IP, USER, Entity


class Limit(NamedTuple):
    rate: float
    """Per second; for request_percentage, in percent."""
    user: str | None
    """Who shares it: None where the quota is not of users."""
    client_id: str | None
    by_default: bool
    """The client id has no quota of its own: clients may make up any number of such names."""


class QuotaIndex:
    """All quotas. Immutable."""

    __slots__ = ("_of_keys", "entities", "limits_clients", "limits_connections")

    def __init__(self, entities: Mapping[Entity, Mapping[str, float]] | None = None) -> None:
        self.entities: Final = dict(entities or {})
        self._of_keys: dict[str, dict[tuple[str | None, ...], float]] = {}
        for entity, quotas in self.entities.items():
            for key, rate in quotas.items():
                self._of_keys.setdefault(key, {})[_place(entity)] = rate
        self.limits_connections: Final = CONNECTION_CREATION_RATE in self._of_keys
        self.limits_clients: Final = len(self._of_keys) > self.limits_connections

    def __len__(self) -> int:
        return len(self.entities)

    def keys(self) -> frozenset[str]:
        """The keys that some entity has."""
        return frozenset(self._of_keys)

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Of a key of clients. None: there is no limit."""
        quotas = self._of_keys.get(key)
        if quotas is None:
            return None
        for who in (user, _DEFAULT):
            rate = quotas.get((USER, who, CLIENT_ID, client_id))
            if rate is not None:
                return Limit(rate, user, client_id, False)
            rate = quotas.get((USER, who, CLIENT_ID, _DEFAULT))
            if rate is not None:
                return Limit(rate, user, client_id, True)
            rate = quotas.get((USER, who))
            if rate is not None:
                return Limit(rate, user, None, False)
        rate = quotas.get((CLIENT_ID, client_id))
        if rate is not None:
            return Limit(rate, None, client_id, False)
        rate = quotas.get((CLIENT_ID, _DEFAULT))
        return None if rate is None else Limit(rate, None, client_id, True)

    def connections(self, address: str) -> tuple[float, bool] | None:
        """Connections per second of an IP address, and whether by default. None: there is no limit."""
        quotas = self._of_keys.get(CONNECTION_CREATION_RATE)
        if quotas is None:
            return None
        rate = quotas.get((IP, address))
        if rate is not None:
            return rate, False
        rate = quotas.get((IP, _DEFAULT))
        return None if rate is None else (rate, True)


_DEFAULT: Final = None


def _place(entity: Entity) -> tuple[str | None, ...]:
    names = dict(entity)
    if USER in names and CLIENT_ID in names:
        return USER, names[USER], CLIENT_ID, names[CLIENT_ID]
    ((kind, name),) = entity
    return kind, name

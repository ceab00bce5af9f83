"""What the platform allows a transactional id: its topics, and how long its transactions may be open (rule 20).

A policy covers one id or all ids with a prefix. Where several policies cover an id, the **oldest** one applies, so that
a second description of the same id cannot replace the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

ANY_END: Final = "*"
"""At the end of an allowed topic: all topics with this prefix."""


@dataclass(frozen=True, slots=True)
class TransactionPolicy:
    """Allows what it does not limit."""

    transactional_id: str = ""
    """The id that it covers. Empty: it covers all ids with the prefix."""
    prefix: str = ""
    allowed_topics: tuple[str, ...] | None = None
    """Topic names, or prefixes with `*` at the end. None: every topic."""
    max_timeout_ms: int = 0
    """0: the cluster's transaction.max.timeout.ms."""
    created: str = ""
    """When the resource that describes it was created: RFC 3339 in UTC, so that the texts compare as their times do."""
    uid: str = ""
    """Of the resource that describes it. Decides between two policies of the same second."""
    owner: str = ""
    """The name of that resource, for messages."""

    @property
    def age(self) -> tuple[str, str]:
        """Sort key: the oldest policy first."""
        return self.created, self.uid

    def covers(self, transactional_id: str) -> bool:
        if self.transactional_id:
            return self.transactional_id == transactional_id
        return bool(self.prefix) and transactional_id.startswith(self.prefix)

    def covers_all_of(self, other: TransactionPolicy) -> bool:
        """Whether it covers every id that the other policy covers."""
        if other.transactional_id:
            return self.covers(other.transactional_id)
        return bool(self.prefix) and not self.transactional_id and other.prefix.startswith(self.prefix)

    def allows(self, topic: str) -> bool:
        if self.allowed_topics is None:
            return True
        return any(
            topic.startswith(allowed[:-1]) if allowed.endswith(ANY_END) else topic == allowed
            for allowed in self.allowed_topics
        )


UNLIMITED: Final = TransactionPolicy()


class StoredPolicy(NamedTuple):
    """A policy, and its revision in the metadata store, which a change of it compares."""

    policy: TransactionPolicy
    mod_revision: int


class TransactionPolicies:
    """All policies that are in force, by uid."""

    __slots__ = ("_by_id", "_by_prefix", "_stored")

    def __init__(self) -> None:
        self._stored: dict[str, StoredPolicy] = {}
        self._by_id: dict[str, list[TransactionPolicy]] = {}
        self._by_prefix: list[TransactionPolicy] = []

    def __iter__(self) -> Iterator[StoredPolicy]:
        return iter(list(self._stored.values()))

    def get(self, uid: str) -> StoredPolicy | None:
        return self._stored.get(uid)

    def put(self, policy: TransactionPolicy, mod_revision: int = 0) -> None:
        self.remove(policy.uid)
        self._stored[policy.uid] = StoredPolicy(policy, mod_revision)
        if policy.transactional_id:
            self._by_id.setdefault(policy.transactional_id, []).append(policy)
        else:
            self._by_prefix.append(policy)

    def remove(self, uid: str) -> None:
        former = self._stored.pop(uid, None)
        if former is None:
            return
        policy = former.policy
        if not policy.transactional_id:
            self._by_prefix.remove(policy)
            return
        of_id = self._by_id[policy.transactional_id]
        of_id.remove(policy)
        if not of_id:
            del self._by_id[policy.transactional_id]

    def of(self, transactional_id: str) -> TransactionPolicy:
        """The policy that applies to the id. Every registration of a partition calls it, and it looks at every prefix:
        most clusters have few."""
        covering = self._by_id.get(transactional_id, ())
        if self._by_prefix:
            covering = [*covering, *(each for each in self._by_prefix if transactional_id.startswith(each.prefix))]
        return min(covering, key=lambda each: each.age, default=UNLIMITED)

"""What the coordinators are to enforce for a TransactionalProducer, and who of several counts. Pure.

Each resource that is managed keeps a policy of its own in the metadata store, also where it limits nothing: the oldest
that covers an id counts (`hapax.core.transaction.policy`), for the coordinators as for the operators, and when it goes,
the next one counts at once, whether or not an operator runs then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hapax.codec.metadata import PolicyRecord
from hapax.core.transaction.policy import StoredPolicy, TransactionPolicy
from hapax_operator.resources import ProducerResource


@dataclass(frozen=True, slots=True)
class Standing:
    """How a resource stands among those that cover ids of its own."""

    conflict: TransactionPolicy | None = None
    """An older one covers all of its ids: this one has nothing to say."""
    older: tuple[TransactionPolicy, ...] = ()
    """Those that cover some."""

    def counts_for(self, transactional_id: str) -> bool:
        return self.conflict is None and not any(each.covers(transactional_id) for each in self.older)


def policy_of(resource: ProducerResource) -> PolicyRecord | None:
    """None: it leaves the ids alone."""
    if not resource.managed or resource.lease is not None:
        return None
    return PolicyRecord(
        transactional_id=resource.transactional_id, prefix=resource.prefix, allowed_topics=resource.allowed_topics,
        max_timeout_ms=resource.max_timeout_s * 1000, created=resource.meta.created, uid=resource.meta.uid,
        owner=str(resource.meta.ref))


def must_store(resource: ProducerResource, stored: StoredPolicy | None) -> bool:
    """Whether what the store holds for the resource is to be changed. One that is paused leaves it as it is."""
    if resource.meta.paused or resource.meta.deleting:
        return False
    return policy_of(resource) != (None if stored is None else stored.policy)


def standing(resource: ProducerResource, stored: Iterable[StoredPolicy]) -> Standing:
    own = policy_of(resource)
    if own is None:
        return Standing()
    older = sorted(
        (each.policy for each in stored if each.policy.age < own.age and each.policy.uid != own.uid),
        key=lambda each: each.age)
    conflict = next((each for each in older if each.covers_all_of(own)), None)
    return Standing(conflict, tuple(each for each in older if own.covers_all_of(each)))


def touched(resources: Iterable[ProducerResource], changed: TransactionPolicy) -> list[ProducerResource]:
    """Those whose standing a change of that policy may change."""
    found = []
    for each in resources:
        own = policy_of(each)
        if own is not None and (own.covers_all_of(changed) or changed.covers_all_of(own)):
            found.append(each)
    return found

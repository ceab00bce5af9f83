"""The policy that coordinators enforce for a TransactionalProducer, and which of several resources applies. Pure.

Each managed resource has its own policy in the metadata store, even if it limits nothing. The oldest policy that covers
an id applies (`hapax.core.transaction.policy`), for coordinators and operators alike. When it is deleted, the next
oldest applies at once, even if no operator runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hapax.codec.metadata import PolicyRecord
from hapax.core.transaction.policy import StoredPolicy, TransactionPolicy
from hapax_operator.resources import ProducerResource


@dataclass(frozen=True, slots=True)
class Standing:
    """The precedence of a resource among those that cover the same ids."""

    conflict: TransactionPolicy | None = None
    """An older policy that covers all of its ids, so that this one never applies."""
    older: tuple[TransactionPolicy, ...] = ()
    """Older policies that cover some of its ids."""

    def counts_for(self, transactional_id: str) -> bool:
        return self.conflict is None and not any(each.covers(transactional_id) for each in self.older)


def policy_of(resource: ProducerResource) -> PolicyRecord | None:
    """None if the resource is not managed, or its namespace may not own the ids."""
    if not resource.managed or resource.lease is not None or resource.outside:
        return None
    return PolicyRecord(
        transactional_id=resource.transactional_id, prefix=resource.prefix, allowed_topics=resource.allowed_topics,
        max_timeout_ms=resource.max_timeout_s * 1000, created=resource.meta.created, uid=resource.meta.uid,
        owner=str(resource.meta.ref))


def must_ask(resource: ProducerResource, stored: StoredPolicy | None) -> bool:
    """Whether the resource may take the ids only if no producer has used them. A stored policy says that it has taken
    them: it is stored before anything else is done for the ids."""
    return stored is None and policy_of(resource) is not None and not resource.meta.adopts


def must_store(resource: ProducerResource, stored: StoredPolicy | None) -> bool:
    """Whether the resource's stored policy must be changed. That of a paused resource is only ever removed, because its
    namespace may not own the ids."""
    if (resource.meta.paused and not resource.outside) or resource.meta.deleting:
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
    """The resources whose precedence a change of this policy may affect."""
    found = []
    for each in resources:
        own = policy_of(each)
        if own is not None and (own.covers_all_of(changed) or changed.covers_all_of(own)):
            found.append(each)
    return found

"""The quotas in a node's image of the cluster, and the index that finds a client's.

The index is swapped once for each batch of changes. While the store is away the last one stays in force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hapax.codec.metadata import QuotaRecord
from hapax.core.quota.entities import USER
from hapax.core.quota.index import QuotaIndex
from hapax.runtime.ports import KeyValue


class StoredQuota(NamedTuple):
    record: QuotaRecord
    mod_revision: int


class QuotaImage:
    def __init__(self) -> None:
        self.index = QuotaIndex()
        """Immutable; another object after each change."""
        self.stored: dict[str, StoredQuota] = {}
        """By key in the store."""
        self.swapped: Callable[[], None] | None = None
        """Called after each change."""
        self._dirty = False

    def apply(self, key: str, kv: KeyValue | None) -> str | None:
        """The user that the quotas name; None: they name none. Raises MetadataFormatError."""
        changed = self.stored.pop(key, None)
        if kv is not None:
            changed = self.stored[key] = StoredQuota(QuotaRecord.decode(kv.value), kv.mod_revision)
        self._dirty = True
        return None if changed is None else dict(changed.record.entity).get(USER)

    def swap(self) -> None:
        """Puts what was applied in force."""
        if self._dirty:
            self._dirty = False
            self.index = QuotaIndex({each.record.entity: each.record.quotas for each in self.stored.values()})
            if self.swapped is not None:
                self.swapped()


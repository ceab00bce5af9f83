"""The bindings (ACLs) in a node's image of the cluster, and the index that decides by them.

The index is swapped once for each batch of changes. While the store is away the last one stays in force; before the
first one is read, only super users may do anything.
"""

from __future__ import annotations

from typing import NamedTuple

from hapax.codec.metadata import AclRecord
from hapax.core.access.bindings import Binding
from hapax.core.access.index import AccessIndex, UnknownBindings
from hapax.core.access.principals import Principal
from hapax.runtime.ports import KeyValue


class StoredBinding(NamedTuple):
    binding: Binding
    owner: str
    mod_revision: int


class AccessImage:
    def __init__(self) -> None:
        self.index: AccessIndex = UnknownBindings()
        """Immutable; another object after each change."""
        self.stored: dict[str, StoredBinding] = {}
        """By key in the store, in the order of their creation here."""
        self._changes: dict[str, Binding | None] = {}

    def apply(self, key: str, kv: KeyValue | None) -> Principal | None:
        """Whom the binding concerns; None: it was not known. Raises MetadataFormatError."""
        if kv is None:
            former = self.stored.pop(key, None)
            self._changes[key] = None
            return None if former is None else former.binding.principal
        record = AclRecord.decode(kv.value)
        self.stored[key] = StoredBinding(record.binding, record.owner, kv.mod_revision)
        self._changes[key] = record.binding
        return record.binding.principal

    def swap(self) -> None:
        """Puts what was applied in force. The image is complete as of some revision."""
        if isinstance(self.index, UnknownBindings):
            self.index = AccessIndex()
        if self._changes:
            changes, self._changes = self._changes, {}
            self.index = self.index.changed(changes)

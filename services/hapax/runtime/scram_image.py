"""The users' SCRAM credentials in a node's image of the cluster, and the decoys of users who have none."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from hapax.codec.metadata import ScramCredentialRecord, ScramSecretRecord
from hapax.core.sasl.scram_keys import (
    ScramCredential,
    ScramMechanism,
    Shape,
    decoy,
    default_shape,
    shape_of,
)
from hapax.runtime.ports import KeyValue, Randomness

_MOST_SHAPES: Final = 64
"""Of which a decoy has one: more would take longer to choose from."""


class StoredCredential(NamedTuple):
    credential: ScramCredential
    mod_revision: int
    owner: str


class ScramImage:
    """Whether a name belongs to a user shows neither in an answer nor in the time that it takes: the decoy is computed
    for users too."""

    def __init__(self, random: Randomness) -> None:
        self.secret: bytes | None = None
        """The cluster's; the controller writes it with the first credential."""
        self._withdrawn: list[Callable[[ScramMechanism, str], None]] = []
        self._random = random
        self._own_secret = b""  # while there is none, and so no user to hide
        self._stored: dict[ScramMechanism, dict[str, StoredCredential]] = {each: {} for each in ScramMechanism}
        self._shapes: dict[ScramMechanism | None, Counter[Shape]] = {None: Counter()}
        """By mechanism; None: of the credentials that passwords in clear are compared with."""
        self._shapes |= {each: Counter() for each in ScramMechanism}
        self._shown: dict[ScramMechanism | None, list[Shape]] = {each: [] for each in self._shapes}
        """Those that a credential has, sorted: all nodes must choose from the same ones."""

    def apply(self, mechanism: ScramMechanism, name: str, kv: KeyValue | None) -> None:
        """Raises MetadataFormatError."""
        added = None
        if kv is not None:
            record = ScramCredentialRecord.decode(kv.value)
            added = StoredCredential(record.credential, kv.mod_revision, record.owner)
        former = self._stored[mechanism].get(name)
        self._count(mechanism, name, -1)
        if added is None:
            self._stored[mechanism].pop(name, None)
        else:
            self._stored[mechanism][name] = added
        self._count(mechanism, name, 1)
        if former is not None and (added is None or added.credential != former.credential):
            for withdrawn in self._withdrawn:
                withdrawn(mechanism, name)

    def on_withdrawn(self, callback: Callable[[ScramMechanism, str], None]) -> None:
        """`callback` is called when a user's credential is removed or replaced."""
        self._withdrawn.append(callback)

    def apply_secret(self, kv: KeyValue | None) -> None:
        """Raises MetadataFormatError."""
        self.secret = None if kv is None else ScramSecretRecord.decode(kv.value).secret

    def _count(self, mechanism: ScramMechanism, name: str, by: int) -> None:
        for of, found in ((mechanism, self._stored[mechanism].get(name)), (None, self._for_plain(name))):
            if found is not None:
                shapes, shape = self._shapes[of], shape_of(found.credential)
                if not shapes[shape]:
                    insort(self._shown[of], shape)
                shapes[shape] += by
                if not shapes[shape]:
                    del shapes[shape]
                    del self._shown[of][bisect_left(self._shown[of], shape)]

    def _for_plain(self, name: str) -> StoredCredential | None:
        """The one that takes less work."""
        return next((stored[name] for stored in self._stored.values() if name in stored), None)

    # --- logins -------------------------------------------------------------------------------------------------

    def find(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
        """The user's credential; a decoy for a user who has none."""
        instead = self._decoy(mechanism, name)
        found = self._stored[mechanism].get(name)
        return instead if found is None else found.credential

    def find_for_plain(self, name: str) -> ScramCredential:
        """What a password in clear is compared with: any of the user's credentials."""
        instead = self._decoy(None, name)
        found = self._for_plain(name)
        return instead if found is None else found.credential

    def _decoy(self, mechanism: ScramMechanism | None, name: str) -> ScramCredential:
        shapes = self._shown[mechanism][:_MOST_SHAPES]
        return decoy(
            self.secret or self._instead(), name,
            shapes or [default_shape(mechanism or ScramMechanism.SCRAM_SHA_256)])

    def _instead(self) -> bytes:
        self._own_secret = self._own_secret or self._random.randbytes(32)
        return self._own_secret

    def is_current(self, name: str, credential: ScramCredential) -> bool:
        """False: it was removed or replaced meanwhile."""
        found = self._stored[credential.mechanism].get(name)
        return found is not None and found.credential == credential

    # --- administration -----------------------------------------------------------------------------------------

    def stored(self, mechanism: ScramMechanism, name: str) -> StoredCredential | None:
        return self._stored[mechanism].get(name)

    def users(self) -> list[str]:
        return sorted({name for stored in self._stored.values() for name in stored})

    def owned(self) -> list[tuple[ScramMechanism, str, str]]:
        """(mechanism, user, owner) of the credentials that something other than a Kafka client made."""
        return [(mechanism, name, each.owner) for mechanism, stored in self._stored.items()
                for name, each in stored.items() if each.owner]

    def of_user(self, name: str) -> Mapping[ScramMechanism, int]:
        """Iterations by mechanism; empty: there is no such user."""
        return {
            mechanism: stored[name].credential.iterations
            for mechanism, stored in self._stored.items() if name in stored}

"""Users' SCRAM credentials: written under the controller's fence, one key per user and mechanism."""

from __future__ import annotations

from typing import Final

from hapax.codec.metadata import ScramCredentialRecord, ScramSecretRecord
from hapax.controller.fenced import Fence, write_fenced
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.sasl.credentials import check_credential, known_mechanism
from hapax.core.sasl.scram_keys import ScramCredential
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.runtime.cluster import ClusterView
from hapax.runtime.guarded_writes import GuardedWrite
from hapax.runtime.ports import Compare, Delete, MetadataStore, Put, Randomness

_CHANGED: Final = Refusal(ErrorCode.REQUEST_TIMED_OUT, "another call changed the credential at the same time")
_SECRET_BYTES: Final = 32


class ScramCredentials:
    def __init__(self, store: MetadataStore, view: ClusterView, random: Randomness, fence: Fence) -> None:
        self._store = store
        self._view = view
        self._random = random
        self._fence = fence

    async def alter(self, request: pb.AlterScramCredentialsRequest) -> pb.AlterScramCredentialsResponse:
        results = [pb.ScramResult(user=change.user) for change in request.changes]
        changes: dict[str, GuardedWrite] = {}
        places: dict[str, pb.ScramResult] = {}
        for change, result in zip(request.changes, results, strict=True):
            try:
                self._fence()
                key, write = self._write(change)
            except Refusal as refusal:
                result.error, result.reason = refusal.code, refusal.reason
                continue
            changes[key] = write
            places[key] = result
        if any(not change.remove for change in request.changes):
            changes = self._secret() | changes
        for key, why in (await write_fenced(self._store, self._view, self._fence, changes, _CHANGED)).items():
            if key in places:  # the secret may be there already
                places[key].error, places[key].reason = why.code, why.reason
        return pb.AlterScramCredentialsResponse(results=results, revision=self._view.revision)

    def _write(self, change: pb.ScramChange) -> tuple[str, GuardedWrite]:
        """Raises Refusal."""
        mechanism = known_mechanism(change.mechanism)
        stored = self._view.scram.stored(mechanism, change.user)
        key = self._view.keys.scram_credential(mechanism, change.user)
        unchanged = Compare(key, "mod_revision", 0 if stored is None else stored.mod_revision)
        if change.remove:
            if stored is None:
                raise Refusal(
                    ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
            return key, GuardedWrite((unchanged,), (Delete(key),))
        check_credential(change.user, change.iterations, change.salt)
        if not len(change.stored_key) == len(change.server_key) == mechanism.key_bytes:
            raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the keys do not have the mechanism's length")
        credential = ScramCredential(
            mechanism, change.salt, change.stored_key, change.server_key, change.iterations)
        return key, GuardedWrite((unchanged,), (Put(key, ScramCredentialRecord(credential).encode()),))

    def _secret(self) -> dict[str, GuardedWrite]:
        """Before the first user there is no one to hide."""
        if self._view.scram.secret is not None:
            return {}
        key = self._view.keys.scram_secret
        record = ScramSecretRecord(self._random.randbytes(_SECRET_BYTES))
        return {key: GuardedWrite((Compare(key, "mod_revision", 0),), (Put(key, record.encode()),))}

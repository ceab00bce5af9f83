"""Users' SCRAM credentials: written under the controller's fence, one key per user and mechanism."""

from __future__ import annotations

from typing import Final

from hapax.codec.metadata import ScramCredentialRecord, ScramSecretRecord
from hapax.controller.fenced import Fence, Told, write_fenced
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.sasl.credentials import check_credential, known_mechanism
from hapax.core.sasl.scram_keys import ScramCredential, ScramMechanism
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.guarded_writes import GuardedWrite
from hapax.runtime.ports import Compare, Delete, MetadataStore, Put, Randomness

_CHANGED: Final = Refusal(ErrorCode.REQUEST_TIMED_OUT, "another call changed the credential at the same time")
_SECRET_BYTES: Final = 32


class ScramCredentials:
    def __init__(
        self, store: MetadataStore, view: ClusterView, random: Randomness, fence: Fence,
        audit: Audit = SILENT,
    ) -> None:
        self._store = store
        self._view = view
        self._random = random
        self._fence = fence
        self._audit = audit

    async def alter(self, request: pb.AlterScramCredentialsRequest) -> pb.AlterScramCredentialsResponse:
        results = [pb.ScramResult(user=change.user) for change in request.changes]
        changes: dict[str, GuardedWrite] = {}
        places: dict[str, pb.ScramResult] = {}
        told = Told[str](self._audit)
        for change, result in zip(request.changes, results, strict=True):
            try:
                self._fence()
                key, write = self._write(change, request.owner)
            except Refusal as refusal:
                result.error, result.reason = refusal.code, refusal.reason
                continue
            changes[key] = write
            places[key] = result
            mechanism = known_mechanism(change.mechanism)
            stored = self._view.scram.stored(mechanism, change.user)
            told.of(
                key, "user_changed", user=change.user,
                old=None if stored is None else _told(mechanism, stored.credential.iterations),
                new=None if change.remove else _told(mechanism, change.iterations))
        if any(not change.remove for change in request.changes):
            changes = self._secret() | changes
        failed = await write_fenced(self._store, self._view, self._fence, changes, _CHANGED, told)
        for key, why in failed.items():
            if key in places:  # the secret may be there already
                places[key].error, places[key].reason = why.code, why.reason
        return pb.AlterScramCredentialsResponse(results=results, revision=self._view.revision)

    def _write(self, change: pb.ScramChange, owner: str) -> tuple[str, GuardedWrite]:
        """Raises Refusal. A credential that another client changes keeps its owner, which puts it right again."""
        mechanism = known_mechanism(change.mechanism)
        stored = self._view.scram.stored(mechanism, change.user)
        key = self._view.keys.scram_credential(mechanism, change.user)
        if owner and stored is not None and stored.owner != owner:
            raise Refusal(ErrorCode.POLICY_VIOLATION, f"the credential does not belong to {owner}")
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
        record = ScramCredentialRecord(credential, owner if stored is None else stored.owner)
        return key, GuardedWrite((unchanged,), (Put(key, record.encode()),))

    def _secret(self) -> dict[str, GuardedWrite]:
        """Before the first user there is no one to hide."""
        if self._view.scram.secret is not None:
            return {}
        key = self._view.keys.scram_secret
        record = ScramSecretRecord(self._random.randbytes(_SECRET_BYTES))
        return {key: GuardedWrite((Compare(key, "mod_revision", 0),), (Put(key, record.encode()),))}


def _told(mechanism: ScramMechanism, iterations: int) -> dict[str, object]:
    """No salt and no key: an audit log is read by many."""
    return {"mechanism": mechanism.sasl_name, "iterations": iterations}

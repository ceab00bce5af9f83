"""What the cluster has for a user, read from the local view of the metadata store without a request."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hapax.core.access.bindings import Binding
from hapax.core.quota.entities import USER, entity_of
from hapax.core.sasl.scram_keys import ScramCredential, ScramMechanism, keys_of, salted_password
from hapax.runtime.cluster import ClusterView
from hapax_operator.plan_user import PasswordSeen, QuotasSeen, UserSeen
from hapax_operator.user_resource import UserResource, read_owner
from hapax_operator.user_secret import Password, SecretSeen


class _Fit(NamedTuple):
    credential: ScramCredential
    digest: bytes
    fits: bool


@dataclass(slots=True)
class _Grouped:
    """All bindings, of one state of the image."""

    state: object = None
    by_principal: dict[str, dict[Binding, str]] = field(default_factory=dict)
    by_owner: dict[str, dict[Binding, str]] = field(default_factory=dict)


class UserObserver:
    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._grouped = _Grouped()
        self._fits: dict[str, _Fit] = {}
        """By uid. A check takes some milliseconds of a thread, and its outcome rarely changes."""

    def forget(self, uid: str) -> None:
        self._fits.pop(uid, None)

    def owners(self, name: str = "") -> set[str]:
        """The Users that own something of this user, or anything at all."""
        found = {each.owner for each in self._view.access.stored.values() if not name or name in each.binding.principal}
        found |= {owner for _, user, owner in self._view.scram.owned() if not name or user == name}
        found |= {each.record.owner for each in self._view.quotas.stored.values()
                  if not name or dict(each.record.entity).get(USER) == name}
        return {each for each in found if read_owner(each) is not None}

    def owned(self, owner: str) -> UserSeen:
        """Only what belongs to the owner."""
        return UserSeen(
            bindings=self._bindings().by_owner.get(owner, {}), passwords=self._passwords(owner),
            quotas=self._quotas(owner))

    async def seen(self, resource: UserResource, secret: SecretSeen | None) -> UserSeen:
        """Without what does not come from the cluster; `secret` is only compared."""
        name, owner = resource.name, resource.owner
        kept = None if secret is None else secret.password()
        passwords = dict(self._passwords(owner))
        for mechanism in ScramMechanism:
            stored = self._view.scram.stored(mechanism, name)
            if stored is None:
                continue
            fits = False
            if kept is not None and kept.mechanism is mechanism:
                fits = await self._fit(resource.meta.uid, stored.credential, kept)
            passwords[name, mechanism] = PasswordSeen(stored.owner, fits)
        quotas = dict(self._quotas(owner))
        own = self._view.quotas.stored.get(self._view.keys.quota(entity_of({USER: resource.quota_user})))
        if own is not None:
            quotas[resource.quota_user] = QuotasSeen(own.record.owner, own.record.quotas)
        default = self._view.quotas.stored.get(self._view.keys.quota(entity_of({USER: None})))
        grouped = self._bindings()
        return UserSeen(
            bindings={**grouped.by_principal.get(resource.principal, {}), **grouped.by_owner.get(owner, {})},
            passwords=passwords, quotas=quotas, default_quotas={} if default is None else default.record.quotas)

    def _bindings(self) -> _Grouped:
        image = self._view.access
        if self._grouped.state is not image.index:
            grouped = _Grouped(image.index)
            for stored in image.stored.values():
                grouped.by_principal.setdefault(stored.binding.principal, {})[stored.binding] = stored.owner
                if stored.owner:
                    grouped.by_owner.setdefault(stored.owner, {})[stored.binding] = stored.owner
            self._grouped = grouped
        return self._grouped

    def _passwords(self, owner: str) -> Mapping[tuple[str, ScramMechanism], PasswordSeen]:
        return {
            (name, mechanism): PasswordSeen(each) for mechanism, name, each in self._view.scram.owned()
            if each == owner}

    def _quotas(self, owner: str) -> Mapping[str, QuotasSeen]:
        """Only of users: the operator makes no others."""
        return {
            str(dict(each.record.entity).get(USER)): QuotasSeen(owner, each.record.quotas)
            for each in self._view.quotas.stored.values() if each.record.owner == owner}

    async def _fit(self, uid: str, credential: ScramCredential, password: Password) -> bool:
        digest = hashlib.sha256(password.text.encode()).digest()
        known = self._fits.get(uid)
        if known is None or known.credential != credential or known.digest != digest:
            salted = await asyncio.to_thread(
                salted_password, credential.mechanism, password.text, credential.salt, credential.iterations)
            fits = keys_of(credential.mechanism, salted) == (credential.stored_key, credential.server_key)
            known = self._fits[uid] = _Fit(credential, digest, fits)
        return known.fits

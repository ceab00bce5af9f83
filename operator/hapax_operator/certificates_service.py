"""The keeper of certificates: reads the Secrets, plans (`plan_certificates`), and writes, until nothing is left to do.

It needs the API server alone, and etcd once its Secret is there, so it runs before anything else of the cluster can.
Every write names the version that was read. So two keepers at a time, or one that was frozen, do no harm: the write of
the later one is refused, and it reads again. The issuers are written before what they have signed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hapax.runtime import telemetry
from hapax.runtime.etcd_login import password_in
from hapax.runtime.ports import Clock
from hapax.runtime.tls import Material
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.certificates_secrets import (
    Data,
    Issuers,
    bundle_seen,
    content,
    decoded,
    encoded,
    holder_seen,
    leaf_seen,
)
from hapax_operator.certificates_spec import Spec, offer_name
from hapax_operator.certificates_store import StoreNotReady, set_up_store
from hapax_operator.etcd_observe import pods_of, wanted_of
from hapax_operator.plan_certificates import (
    AUTHORITIES,
    SERVICES,
    EtcdSeen,
    Holder,
    HolderSeen,
    LeafSeen,
    Plan,
    RollEtcd,
    Seen,
    Write,
    plan,
    signer,
)
from hapax_operator.plan_outside import address_of

log = telemetry.logger("certificates")

TRUSTED: Final = "hapax.dev/trusted-issuers"
"""An annotation of the pods of etcd: the issuers that they trust since they started."""
_ROUNDS: Final = 32
_SOON_S: Final = 1.0
"""Between two looks while something is missing."""
_LATER_S: Final = 30.0
_KEYS: Final = "/openid/v1/jwks"
"""Kubernetes lets every service account read it."""


class Keeper:
    """`run()` ends only with an error that another start may heal."""

    def __init__(self, spec: Spec, api: KubeApi, clock: Clock, ready: Path | None = None) -> None:
        """`ready`: a file that exists while nothing is missing."""
        self._spec = spec
        self._api = api
        self._clock = clock
        self._ready = ready
        self._secrets = f"/api/v1/namespaces/{spec.namespace}/secrets"
        self._workloads = f"/apis/apps/v1/namespaces/{spec.namespace}/statefulsets"
        self._stored: Mapping[str, str] | None = None
        """The passwords that are known to be in the store."""

    async def run(self) -> None:
        """Raises ValueError if the Secret of the issuers is damaged."""
        while True:
            try:
                wait_s = await self.look()
            except (KubeUnavailable, KubeRefused, StoreNotReady) as error:
                log.warning("cannot go on yet, trying again", error=error)
                wait_s = _SOON_S
            await asyncio.sleep(wait_s)

    async def look(self) -> float:
        """Does all that can be done now. Returns the seconds until the next look. Raises KubeUnavailable, KubeRefused,
        StoreNotReady, ValueError."""
        for _ in range(_ROUNDS):
            now = self._clock.now_ms() // 1000
            state = await _State.read(self)
            planned = plan(state.wanted, state.seen, self._spec.overlap_s, now)
            if planned.empty:
                self._tell(planned)
                return _SOON_S if planned.missing or not _settled(state.seen) else min(_LATER_S, planned.wait_s)
            await self._apply(state, planned, now)
        return _SOON_S

    async def _apply(self, state: _State, planned: Plan, now: int) -> None:
        if planned.issuers:
            issuers = state.issuers.changed(
                planned.issuers, self._spec, now, state.certificates, state.annotations)
            if await self._write(self._spec.issuers, state.bodies.get(self._spec.issuers), issuers.data()):
                for action in planned.issuers:
                    log.info("an issuer has changed", what=type(action).__name__, authority=action.authority)
            return
        for write in planned.writes:
            await self._hold(state, write, now)
        if planned.roll is not None:
            await self._roll(state, planned.roll, self._spec.etcd.workload)
        if planned.store is not None:
            await self._set_up(state)

    async def _hold(self, state: _State, write: Write, now: int) -> None:
        name = write.holder.name
        signers = {
            each: signer(state.issuers.known.get(each, ()), self._spec.overlap_s[each], now) for each in AUTHORITIES}
        data = content(
            write.holder, self._spec, state.issuers, state.data(name), write.issue, signers, state.offers, now,
            state.tokens)
        if await self._write(name, state.bodies.get(name), data):
            log.info("a Secret was written", name=name, issued=len(write.issue))

    async def _write(self, name: str, present: Mapping[str, Any] | None, data: Data) -> bool:
        """False: it has changed in the meantime."""
        metadata: dict[str, Any] = {
            "name": name, "namespace": self._spec.namespace, "labels": dict(self._spec.labels)}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded(data)}
        if present is None:
            await self._api.create(self._secrets, body)
            return True
        found = present["metadata"]
        metadata |= {
            "resourceVersion": found["resourceVersion"], "uid": found["uid"],
            "annotations": found.get("annotations") or {},
            "labels": {**(found.get("labels") or {}), **self._spec.labels}}
        return await self._api.replace(f"{self._secrets}/{name}", body)

    async def _roll(self, state: _State, roll: RollEtcd, workload: str) -> None:
        """Its pods are replaced by the keeper of etcd, one after the other."""
        assert state.etcd is not None
        mark = {"metadata": {"annotations": {TRUSTED: ",".join(sorted(roll.trusted))}}}
        if await self._api.merge(f"{self._workloads}/{workload}", {
            "metadata": {"resourceVersion": state.etcd["metadata"]["resourceVersion"]}, "spec": {"template": mark},
        }):
            log.info("the members of etcd start again, one after the other, to read their authorities")

    async def _set_up(self, state: _State) -> None:
        """Raises StoreNotReady."""
        etcd = self._spec.etcd
        passwords = state.passwords()
        login = None
        if etcd.workload:
            files = state.data(etcd.secret)
            root = Material(files["root.crt"], files["root.key"], files[f"{SERVICES}-ca.crt"])
        else:
            # Without a certificate of its own, it logs in.
            root = Material(*(_bytes_in(Path(etcd.folder) / name) for name in ("tls.crt", "tls.key", "ca.crt")))
            if etcd.login_folder:
                login = (_text_in(Path(etcd.login_folder) / "username"), _text_in(Path(etcd.login_folder) / "password"))
        changed = await asyncio.to_thread(
            set_up_store, etcd.endpoints, root, self._spec.cluster, passwords, users_of_etcd=bool(etcd.workload),
            login=login)
        log.info("the store is closed and the first users can log in", changes=changed)
        self._stored = passwords
        if not state.issuers.store_ready:
            done = state.issuers.with_store_ready()
            await self._write(self._spec.issuers, state.bodies[self._spec.issuers], done.data())

    def stored(self, passwords: Mapping[str, str]) -> bool:
        return self._stored == passwords

    def _tell(self, planned: Plan) -> None:
        if planned.missing:
            log.info("waiting before these Secrets can be made", names=", ".join(planned.missing))
        if self._ready is None:
            return
        if planned.missing:
            self._ready.unlink(missing_ok=True)
        else:
            self._ready.touch()

    # --- reading

    @property
    def spec(self) -> Spec:
        return self._spec

    async def secret(self, name: str) -> Mapping[str, Any] | None:
        return await self._api.read(f"{self._secrets}/{name}")

    async def tokens(self) -> bytes | None:
        """The keys with which the API server signs tokens; None: it does not tell. They are public."""
        try:
            found = await self._api.read(_KEYS)
        except KubeRefused as refused:
            log.warning("pods cannot log in with tokens yet: the API server's keys cannot be read", error=refused)
            return None
        return None if found is None or not found.get("keys") else json.dumps(found, sort_keys=True).encode()

    async def service(self, name: str) -> Mapping[str, Any] | None:
        return await self._api.read(f"/api/v1/namespaces/{self._spec.namespace}/services/{name}")

    async def pod(self, name: str) -> Mapping[str, Any] | None:
        return await self._api.read(f"/api/v1/namespaces/{self._spec.namespace}/pods/{name}")

    async def workload(self, name: str) -> Mapping[str, Any] | None:
        return await self._api.read(f"{self._workloads}/{name}")


class _State:
    """What was read in one look."""

    def __init__(self) -> None:
        self.bodies: dict[str, Mapping[str, Any]] = {}
        """Secrets that are there, by name."""
        self.wanted: list[Holder] = []
        self.issuers = Issuers()
        self.annotations: Mapping[str, str] = {}
        """Of the issuers' Secret."""
        self.certificates: dict[str, bytes] = {}
        """Of issuers that other Secrets have, by id."""
        self.offers: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        self.etcd: Mapping[str, Any] | None = None
        self.etcd_pods: list[Mapping[str, Any]] = []
        """Read only where some are no members'."""
        self.tokens: bytes | None = None
        self.seen = Seen()

    def data(self, name: str) -> Data:
        body = self.bodies.get(name)
        return {} if body is None else decoded(body)

    def passwords(self) -> dict[str, str]:
        return {
            holder.user: self.data(holder.name)["password"].decode() for holder in self.wanted
            if holder.user and holder.name in self.bodies}

    @classmethod
    async def read(cls, keeper: Keeper) -> _State:
        """Raises ValueError, KubeUnavailable, KubeRefused."""
        state, spec = cls(), keeper.spec
        replicas = {}
        for name in spec.workloads:
            body = await keeper.workload(name)
            if body is not None:
                replicas[name] = int(body["spec"].get("replicas", 1))
        addresses = {}
        for name in spec.services:
            service = await keeper.service(name)
            if service is not None and address_of(service):
                addresses[name] = address_of(service)
        state.wanted = spec.holders(replicas, addresses)
        for name in (spec.issuers, *(holder.name for holder in state.wanted)):
            found = await keeper.secret(name)
            if found is not None:
                state.bodies[name] = found
        state.issuers = Issuers.read(state.data(spec.issuers))
        if spec.issuers in state.bodies:
            state.annotations = state.bodies[spec.issuers]["metadata"].get("annotations") or {}
        if spec.etcd.workload:
            state.etcd = await keeper.workload(spec.etcd.workload)
            if state.etcd is not None and spare_pods(state.etcd):
                pods = [await keeper.pod(f"{spec.etcd.workload}-{each}") for each in range(wanted_of(state.etcd)[2])]
                state.etcd_pods = [each for each in pods if each is not None]
        if any(holder.tokens for holder in state.wanted):
            state.tokens = await keeper.tokens()
        holders = {}
        for holder in state.wanted:
            if holder.name in state.bodies:
                data = state.data(holder.name)
                holders[holder.name] = holder_seen(holder, spec, data, state.tokens)
                for each in AUTHORITIES:
                    state.certificates |= bundle_seen(data.get(f"{each}-ca.crt", b""))
        offers = await state._offers(keeper) if spec.cert_manager else None
        state.seen = state._seen(keeper, holders, offers)
        return state

    async def _offers(self, keeper: Keeper) -> dict[tuple[str, str], LeafSeen]:
        found = {}
        for holder in self.wanted:
            for leaf in holder.leaves:
                body = await keeper.secret(offer_name(holder.name, leaf.name))
                data = {} if body is None else decoded(body)
                chain, key = data.get("tls.crt", b""), data.get("tls.key", b"")
                seen = leaf_seen(chain, key)
                issuers = bundle_seen(data.get("ca.crt", b""))
                if seen is None or seen.issuer not in issuers:
                    continue  # cert-manager has not issued it yet
                self.certificates |= issuers
                self.offers[holder.name, leaf.name] = chain, key
                found[holder.name, leaf.name] = seen
        return found

    def _seen(
        self, keeper: Keeper, holders: Mapping[str, HolderSeen], offers: Mapping[tuple[str, str], LeafSeen] | None
    ) -> Seen:
        users_ready = all(holder.name in holders and holders[holder.name].complete
                          for holder in self.wanted if holder.user)
        return Seen(
            issuers=self.issuers.known, holders=holders, offers=offers,
            etcd=None if self.etcd is None else etcd_seen(self.etcd, self.etcd_pods),
            store_ready=self.issuers.store_ready,
            users_stored=users_ready and keeper.stored(self.passwords()),
            asked=self.issuers.asked(self.annotations))


def spare_pods(workload: Mapping[str, Any]) -> bool:
    """Whether a StatefulSet of etcd has more pods than members are wanted: those wait, and never become ready."""
    members, _, replicas = wanted_of(workload)
    return members < replicas


def etcd_seen(workload: Mapping[str, Any], pods: Sequence[Mapping[str, Any]] = ()) -> EtcdSeen:
    """From the body of a StatefulSet and, where it has spare pods, from theirs."""
    marked = (workload["spec"]["template"]["metadata"].get("annotations") or {}).get(TRUSTED)
    status, wanted = workload.get("status") or {}, workload["spec"].get("replicas", 1)
    settled = status.get("observedGeneration") == workload["metadata"].get("generation")
    if spare_pods(workload):
        settled = settled and _members_run(workload, pods)
    else:
        # The current revision stays the former one: its keeper replaces the pods, not the StatefulSet's own update.
        settled = settled and (
            wanted == status.get("replicas", 0) == status.get("readyReplicas", 0) == status.get("updatedReplicas", 0))
    return EtcdSeen(None if marked is None else frozenset(filter(None, marked.split(","))), settled)


def _members_run(workload: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> bool:
    """Whether each pod is ready as described, or one beyond the wanted members that waits to be one. Such a pod is not
    replaced for a new revision either, and reads its authorities only when it starts as a member."""
    name, (members, _, replicas) = workload["metadata"]["name"], wanted_of(workload)
    revision = (workload.get("status") or {}).get("updateRevision")
    revisions = {each["metadata"]["name"]: (each["metadata"].get("labels") or {}).get("controller-revision-hash")
                 for each in pods}
    seen = pods_of(name, pods, ())
    return all(
        ordinal in seen and not seen[ordinal].deleting
        and ((seen[ordinal].ready and revisions[f"{name}-{ordinal}"] == revision)
             or (ordinal >= members and not seen[ordinal].runs_as))
        for ordinal in range(replicas))


def _bytes_in(path: Path) -> bytes:
    """Nothing where there is no such file."""
    return path.read_bytes() if path.exists() else b""


def _text_in(path: Path) -> str:
    return password_in(path)()


def _settled(seen: Seen) -> bool:
    return seen.etcd is None or seen.etcd.settled

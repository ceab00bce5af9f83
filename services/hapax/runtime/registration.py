"""A node's registration in the metadata store: its key under a lease, kept alive until the service ends.

The key's create revision is the node's registration epoch. A process that restarts on the same data folder deletes
its predecessor's key by compare-and-swap and creates its own, so that it need not wait for the old lease to end. The
controller sees a new epoch and assigns new leader epochs. Any other process with a node id that is taken waits at most
one lease for it, and then gives up. A process that may choose its id (`among`) takes its predecessor's id or, if it
has none, the lowest free one.

The service continues during an outage of the store: epochs at the partition leaders decide what it may do, not its
lease (rule 12). If the store then answers that the registration is gone or belongs to another process, `on_lost` is
called with one sentence, and the service must end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hapax.codec.metadata import STANDING_STOPPING, Keys, NodeRecord
from hapax.core.types import NodeId, RegistrationEpoch
from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import (
    Compare,
    Delete,
    KeyValue,
    MetadataCompacted,
    MetadataLeaseGone,
    MetadataStore,
    MetadataUnavailable,
    Put,
    Randomness,
    Task,
)

log = telemetry.logger("registration")

DEFAULT_TTL_S: Final = 9.0
_RENEWALS_PER_TTL: Final = 5
"""Renewals during one lease. A machine may stall for four fifths of a lease without losing its registration."""
_WAIT_SLACK_S: Final = 1.0
"""Added to the lease's time to live: etcd looks for expired leases twice a second."""
_RETRY_S: Final = 0.1
_GIVE_UP_S: Final = 3.0


class NodeIdTaken(Exception):
    """Another live process is registered under the node id."""


class Registration:
    """Use `register`. `epoch` and `record.session` prove this process to the others."""

    def __init__(
        self, store: MetadataStore, keys: Keys, record: NodeRecord, ttl_s: float, random: Randomness,
        on_lost: Callable[[str], None], among: range,
    ) -> None:
        self.record = record
        self.epoch = RegistrationEpoch(0)
        self.lease = 0
        self._store = store
        self._keys = keys
        self._key = keys.node(record.node_id)
        self._among = among
        self._ttl_s = ttl_s
        self._random = random
        self._on_lost = on_lost
        self._keeper: Task | None = None
        self._standing = record.standing
        self._rack = record.rack
        self._revision = 0
        """The key's mod revision, as far as it is known. Writes compare it, so that a delayed write of an old standing
        cannot replace a newer one."""
        self._written = True
        """Whether the store is known to have `record`. False while the outcome of a write is unknown."""
        self._speaking = asyncio.Lock()
        self._speaker: Task | None = None
        self._confirmed_until = 0.0

    @property
    def confirmed(self) -> bool:
        """True while the lease cannot have expired. False after an outage of the store for a whole lease."""
        return asyncio.get_running_loop().time() < self._confirmed_until

    def fence(self) -> Compare:
        """The compare for this node's own writes: they fail if the registration is gone or another process's."""
        return Compare(self._key, "create_revision", self.epoch)

    async def stand(self, standing: str) -> bool:
        """Writes how fit the node is (`NodeRecord.standing`). False: the registration is gone. Raises
        MetadataUnavailable, MetadataLeaseGone."""
        self._standing = standing
        async with self._speaking:
            while True:
                record = replace(self.record, standing=self._standing, rack=self._rack)
                self._written = False
                said = await self._store.txn(
                    [Compare(self._key, "mod_revision", self._revision)],
                    [Put(self._key, record.encode(), self.lease)])
                if said.succeeded:
                    self.record, self._revision, self._written = record, said.revision, True
                    return True
                existing = await self._store.get(self._key)
                if existing is None or existing.create_revision != self.epoch:
                    return False
                self._revision = existing.mod_revision  # of an earlier write of this process

    def declare(self, standing: str) -> None:
        """Like `stand`, but in the background, until the store has it. A stopping node keeps that standing."""
        if self._standing == STANDING_STOPPING:
            return
        self._standing = standing
        self._begin_to_speak()

    def move(self, rack: str) -> None:
        """Writes the rack in the background, until the store has it."""
        self._rack = rack
        self._begin_to_speak()

    def _begin_to_speak(self) -> None:
        if self._speaker is None or self._speaker.done():
            self._speaker = supervision.keep(self._speak, "standing", self._random)

    async def _speak(self) -> None:
        while (self.record.standing, self.record.rack) != (self._standing, self._rack) or not self._written:
            try:
                if not await self.stand(self._standing):
                    return
            except (MetadataUnavailable, MetadataLeaseGone) as error:
                log.warning("could not write this node's standing and rack; trying again", error=error)
                await asyncio.sleep(_RETRY_S * (0.5 + self._random.random()))

    async def close(self) -> None:
        """Revokes the registration, so that other nodes take over without waiting for the lease to end."""
        keeper, speaker = self._keeper, self._speaker
        self._keeper = self._speaker = None
        await supervision.end(keeper, speaker)
        if not self.lease:
            return
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                await self._store.revoke_lease(self.lease)
                self.lease = 0
        except (MetadataUnavailable, TimeoutError) as error:
            log.warning("could not revoke the registration; it ends with its lease", error=error)

    # --- taking the key

    async def start(self) -> None:
        deadline: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            try:
                existing = await (self._choose() if self._among else self._store.get(self._key))
                if existing is None:
                    if await self._create():
                        break
                elif self._is_mine(existing):  # an attempt whose answer was lost
                    self.epoch, self.lease = RegistrationEpoch(existing.create_revision), existing.lease
                    self._revision = existing.mod_revision
                    break
                elif self._is_predecessor(existing):
                    log.info("replacing the registration of this data folder's last process")
                    await self._store.txn(
                        [Compare(self._key, "mod_revision", existing.mod_revision)], [Delete(self._key)])
                else:
                    deadline = deadline or loop.time() + self._ttl_s + _WAIT_SLACK_S
                    await self._wait_for_end(existing, deadline)
            except (MetadataUnavailable, MetadataLeaseGone) as error:
                log.warning("could not register, trying again", error=error)
                await asyncio.sleep(_RETRY_S * (0.5 + self._random.random()))
        self._confirm(loop.time())
        log.info("registered", node=self.record.node_id, epoch=self.epoch)
        self._keeper = supervision.keep(self._keep, "registration", self._random)

    async def _choose(self) -> KeyValue | None:
        """Chooses an id. Returns the existing key if it is this folder's own. Raises NodeIdTaken."""
        listed, _ = await self._store.list(self._keys.nodes)
        taken = {kv.key: kv for kv in listed}
        keys = {self._keys.node(NodeId(node_id)): NodeId(node_id) for node_id in self._among}
        own = [key for key in keys if key in taken and (self._is_mine(taken[key]) or self._is_predecessor(taken[key]))]
        free = [key for key in keys if key not in taken]
        if not own and not free:
            raise NodeIdTaken(f"all node ids from {self._among[0]} to {self._among[-1]} are in use")
        self._key = (own or free)[0]
        self.record = replace(self.record, node_id=keys[self._key])
        return taken.get(self._key)

    async def _create(self) -> bool:
        self.lease = await self._store.grant_lease(self._ttl_s)
        created = await self._store.txn(
            [Compare(self._key, "create_revision", 0)], [Put(self._key, self.record.encode(), self.lease)])
        self.epoch, self._revision = RegistrationEpoch(created.revision), created.revision
        return created.succeeded

    def _is_mine(self, existing: KeyValue) -> bool:
        return NodeRecord.decode(existing.value).session == self.record.session

    def _is_predecessor(self, existing: KeyValue) -> bool:
        identity = NodeRecord.decode(existing.value).identity
        return bool(identity) and identity == self.record.identity

    async def _wait_for_end(self, existing: KeyValue, deadline: float) -> None:
        """Returns when the key has changed; raises NodeIdTaken when it is still held at the deadline."""
        other = NodeRecord.decode(existing.value)
        log.warning("node id is taken, waiting for its lease to end",
                    node=other.node_id, host=other.host, port=other.port)
        try:
            async with asyncio.timeout_at(deadline):
                async for events in self._store.watch(self._key, existing.mod_revision + 1):
                    if any(event.key == self._key for event in events):
                        return
        except TimeoutError:
            raise NodeIdTaken(
                f"node id {other.node_id} is in use by a live {other.role} at {other.host}:{other.port} "
                f"(rpc {other.rpc_address}): give this process another node.id, or stop that one"
            ) from None
        except MetadataCompacted:
            return

    # --- keeping it

    def _confirm(self, as_of: float) -> None:
        self._confirmed_until = as_of + self._ttl_s

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self._ttl_s / _RENEWALS_PER_TTL
        away = False
        while True:
            await asyncio.sleep(pause)
            as_of = loop.time()
            try:
                remaining = await self._store.keep_alive(self.lease)
                existing = await self._store.get(self._key)
            except MetadataUnavailable as error:
                pause = _RETRY_S
                if not self.confirmed and not away:
                    away = True
                    log.warning("metadata store is away for a whole lease; serving on, fenced by epochs", error=error)
                continue
            pause, away = self._ttl_s / _RENEWALS_PER_TTL, False
            lost = self._lost(remaining, existing)
            if lost:
                log.error(lost)
                self._on_lost(lost)
                return
            self._confirm(as_of)

    def _lost(self, remaining: float, existing: KeyValue | None) -> str:
        node = self.record.node_id
        if existing is not None and existing.create_revision != self.epoch:
            other = NodeRecord.decode(existing.value)
            return f"another process registered as node {node} ({other.host}:{other.port}): this one ends"
        if remaining <= 0 or existing is None:
            return f"the registration of node {node} has ended with its lease: this process ends"
        return ""


async def register(
    store: MetadataStore,
    keys: Keys,
    record: NodeRecord,
    *,
    random: Randomness,
    on_lost: Callable[[str], None],
    ttl_s: float = DEFAULT_TTL_S,
    among: range = range(0),
) -> Registration:
    """Registers the node; waits without a limit while the store is unavailable. Draws a session if `record` has none.

    `among`: the node ids to choose from; if empty, the record's id is used. Raises NodeIdTaken.
    """
    if not record.session:
        record = replace(record, session=random.randbytes(16))
    registration = Registration(store, keys, record, ttl_s, random, on_lost, among)
    try:
        await registration.start()
    except BaseException:
        # Asked to end while it registered: the key may be there already, and must not outlive the process.
        await registration.close()
        raise
    return registration

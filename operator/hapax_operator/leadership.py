"""Leader election of operators: the one that holds a key in the metadata store, under its own lease, reconciles.

The key is deleted with the registration, and a process that loses its registration exits. So no process has to check
whether it still holds the key. The controller in the same process has a separate election: failover waits neither for
this one nor for the API server.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

from hapax.runtime import telemetry
from hapax.runtime.ports import (
    Compare,
    Delete,
    MetadataCompacted,
    MetadataLeaseGone,
    MetadataStore,
    MetadataUnavailable,
    Put,
)
from hapax.runtime.registration import Registration

log = telemetry.logger("operator")

_RETRY_S: Final = 0.5


def operator_key(prefix: str) -> str:
    """`prefix`: the cluster's prefix, with a final slash."""
    return prefix + "operator"


async def lead(store: MetadataStore, prefix: str, registration: Registration) -> Compare:
    """Waits until this process holds the key. Returns the comparison that its writes must include."""
    key = operator_key(prefix)
    record = json.dumps({"v": 1, "node_id": registration.record.node_id, "registration": registration.epoch}).encode()
    while True:
        try:
            held = await store.get(key)
            if held is not None and held.lease == registration.lease:
                return Compare(key, "create_revision", held.create_revision)
            if held is not None and _node_id(held.value) == registration.record.node_id:
                # The holder had this node id. It is dead, otherwise this process could not have registered.
                await store.txn([Compare(key, "mod_revision", held.mod_revision), registration.fence()], [Delete(key)])
                continue
            if held is None:
                await store.txn(
                    [Compare(key, "create_revision", 0), registration.fence()], [Put(key, record, registration.lease)])
                continue
            log.info("another operator reconciles; standing by")
            await _until_gone(store, key, held.mod_revision + 1)
        except (MetadataUnavailable, MetadataLeaseGone, MetadataCompacted) as error:
            log.warning("could not take the operator's key, trying again", error=error)
            await asyncio.sleep(_RETRY_S)


def _node_id(value: bytes) -> int:
    return int(json.loads(value)["node_id"])


async def _until_gone(store: MetadataStore, key: str, revision: int) -> None:
    async for events in store.watch(key, revision):
        if any(event.key == key and event.kv is None for event in events):
            return

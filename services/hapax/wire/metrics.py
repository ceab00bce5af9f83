"""Metrics of all services: events recorded, and fencings."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter

EVENTS: Final = counter("hapax_events_total", "Events recorded in `__hapax_events`.", ["kind"])
EVENTS_DROPPED: Final = counter(
    "hapax_events_dropped_total", "Events dropped from the full queue while the topic could not be written.")
FENCINGS: Final = counter(
    "hapax_fencings_total",
    "Fencings: of producers by a newer initialisation (`initialized`), by their transaction's time limit (`timed_out`) "
    "or by a newer commit token (`newer_token`), counted where they are decided; writes refused because the producer's "
    "epoch was raised (`stale_epoch`), because their connection is superseded (`older_connection`) or their shard has "
    "a newer owner (`stale_shard`); shards that another node took from this one (`shard_taken`); leases taken over "
    "(`lease_taken`); registrations of dead nodes that were revoked (`registration_revoked`).", ["cause"])

"""What a PID allocator tells."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter, gauge

BLOCKS: Final = counter("hapax_pid_blocks_allocated_total", "Blocks of producer ids allocated.")
IDS_BELOW: Final = gauge(
    "hapax_pid_producer_ids_below", "Upper bound, exclusive, of the producer ids that this allocator has given out.")
LEASES_GRANTED: Final = counter("hapax_pid_leases_granted_total", "Leases granted or taken over.")
LEASES_REFUSED: Final = counter("hapax_pid_leases_refused_total", "Lease calls refused, by error code.", ["code"])

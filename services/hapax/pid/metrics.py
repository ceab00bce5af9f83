"""What a PID allocator tells."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter, gauge

BLOCKS: Final = counter("hapax_pid_blocks_allocated_total", "Blocks of producer ids.")
IDS_BELOW: Final = gauge(
    "hapax_pid_producer_ids_below", "Every producer id that this allocator gave out is below this one.")
LEASES_GRANTED: Final = counter("hapax_pid_leases_granted_total", "Leases granted or taken over.")
LEASES_REFUSED: Final = counter("hapax_pid_leases_refused_total", "Calls about leases that were refused.", ["code"])

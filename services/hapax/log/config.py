"""The settings that concern one partition's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hapax.runtime.settings import Settings

UNLIMITED: Final = -1
INTERNAL_MERGED_BYTES: Final = 64 << 20
"""A coordinator's partitions have small segments, so that little is left uncompacted for it to read at a take-over.
Segments that compaction merges may be larger."""

INTERNAL_MARKER_RETENTION_MS: Final = 600_000
"""Only coordinators read an internal topic, at a take-over, which lasts seconds. There should be little to read."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one partition's log, from the node's and the topic's configuration."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    compacted_segment_bytes: int = 1 << 30
    """Maximum size of a segment that compaction merges from several."""
    index_interval_bytes: int = 4096
    index_bytes: int = 10 << 20
    retention_bytes: int = UNLIMITED
    retention_ms: int = 7 * 86_400_000
    """-1: kept without a time limit."""
    delete: bool = True
    """Retention by time and size applies."""
    compact: bool = False
    """Only the last record of each key is kept."""
    delete_retention_ms: int = 86_400_000
    """Milliseconds that a compacted log keeps a tombstone after it was first cleaned."""
    marker_retention_ms: int = 86_400_000
    """Milliseconds that a compacted log keeps a transaction marker after the last record of the transaction was
    removed."""
    checkpoint_bytes: int = 64 << 20
    """Appended bytes after which a snapshot of the producers is written. Recovery scans at most about this much."""

    @classmethod
    def from_settings(cls, settings: Settings, *, internal: bool = False) -> LogConfig:
        """`settings` are the topic's (`Settings.for_topic`)."""
        compact = "compact" in settings.log_cleanup_policy
        segment_bytes = settings.log_segment_bytes
        return cls(
            segment_bytes=segment_bytes,
            compacted_segment_bytes=max(segment_bytes, INTERNAL_MERGED_BYTES) if internal else segment_bytes,
            segment_ms=settings.roll_ms,
            index_interval_bytes=settings.log_index_interval_bytes,
            index_bytes=settings.log_index_size_max_bytes,
            retention_bytes=settings.log_retention_bytes,
            retention_ms=settings.retention_ms,
            delete="delete" in settings.log_cleanup_policy,
            compact=compact,
            delete_retention_ms=settings.log_cleaner_delete_retention_ms,
            marker_retention_ms=min(
                settings.log_cleaner_delete_retention_ms,
                INTERNAL_MARKER_RETENTION_MS if internal else settings.log_cleaner_delete_retention_ms),
            checkpoint_bytes=settings.log_snapshot_interval_bytes,
        )

"""Bugs in what compaction keeps and removes, and in the code that decodes clients' batches."""


# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

COMPACTION = "log/compaction.py"
DELETES = unit("broker/test_compaction_deletes.py")
RULE = "rule 26: compaction keeps deletes"

MUTANTS = (
    Mutant(
        "compressed batches are kept whole", RULE, COMPACTION,
        "        if len(kept) == len(records) and not first_cleaned:\n",
        "        if header.compression or len(kept) == len(records) and not first_cleaned:\n",
        (DELETES,),
    ),
    Mutant(
        "a tombstone's age counts from its client's timestamp", RULE, COMPACTION,
        "        tombstones_go = horizon is not None and horizon <= self.rules.now_ms and not self.has_unreadable\n",
        "        tombstones_go = header.max_timestamp <= self.rules.now_ms - self.rules.delete_retention_ms\n",
        (DELETES,),
    ),
    Mutant(
        "each run puts the delete horizon off", RULE, COMPACTION,
        "        first_cleaned = horizon is None and any(",
        "        first_cleaned = any(",
        (DELETES,),
    ),
    Mutant(
        "a tombstone goes although an unreadable batch may hold its key", RULE, COMPACTION,
        " and horizon <= self.rules.now_ms and not self.has_unreadable\n",
        " and horizon <= self.rules.now_ms\n",
        (DELETES,),
    ),
    Mutant(
        "a rewritten batch's timestamps move with its horizon", RULE, "codec/raw_records.py",
        "        shift = base - horizon_ms\n",
        "        shift = 0\n",
        (DELETES,),
    ),
    Mutant(
        "clients set delete horizons", RULE, "codec/batch.py",
        "    if header.attributes & DELETE_HORIZON:",
        "    if False:",
        (DELETES,),
    ),
    Mutant(
        "a marker goes with its last record", "rule 26; KIP-534: a reader of the record finds its marker", COMPACTION,
        "        if horizon > self.rules.now_ms:\n            return batch\n",
        "",
        (DELETES,),
    ),
    Mutant(
        "an unreadable batch ends compaction", "hostile bytes condemn their batch alone", COMPACTION,
        "        except Refusal as refusal:\n            self.has_unreadable = True\n",
        "        except Refusal as refusal:\n            raise\n            self.has_unreadable = True\n",
        (DELETES,),
    ),
    Mutant(
        "what is decompressed has no bound", "hostile bytes: decompression bombs", "codec/raw_records.py",
        "MAX_RECORDS_BYTES: Final = 32 << 20\n",
        "MAX_RECORDS_BYTES: Final = 1 << 40\n",
        (DELETES, unit("codec/test_raw_records.py")),
    ),
    Mutant(
        "large batches are looked into on the loop", "rule 18: the loop never blocks", COMPACTION,
        "    if header.record_count <= _RECORDS_ON_LOOP and not header.attributes & COMPRESSION_MASK:\n",
        "    if True:\n",
        (DELETES,),
    ),
    Mutant(
        "a run holds the keys of any number of bytes", "hostile bytes: decompression bombs", COMPACTION,
        "            if self.seen_bytes > _MAX_DIRTY_BYTES:\n                break\n",
        "",
        (DELETES,),
    ),
    Mutant(
        "a lookup by time ends at a batch that lost its newest record", "ListOffsets in compacted topics", "log/times.py",
        "        begin = place.last_offset + 1\n    found",
        "        return None\n    found",
        (unit("broker/test_lookups.py"),),
    ),
    Mutant(
        "compaction leaves a batch's greatest timestamp as it was", "ListOffsets in compacted topics", "codec/raw_records.py",
        "        max_timestamp=header.max_timestamp if attributes & LOG_APPEND_TIME else greatest,\n",
        "        max_timestamp=header.max_timestamp,\n",
        (unit("broker/test_lookups.py"), unit("codec/test_raw_records.py")),
    ),
    Mutant(
        "a lookup by time skips what cannot be read", "hostile bytes condemn their batch alone", "log/times.py",
        "        return [FoundRecord(max(start, place.base_offset), place.max_timestamp)]\n",
        "        return []\n",
        (unit("broker/test_lookups.py"),),
    ),
    Mutant(
        "compaction merges segments by size alone", "offsets beyond 2^31 in one segment", COMPACTION,
        "                or self.following[segment.base_offset] - 1 - groups[-1][0].base_offset > MAX_RELATIVE_OFFSET\n",
        "",
        (unit("log/test_far_offsets.py"),),
    ),
    Mutant(
        "a copy rolls where its log ends, not where the batch lies", "offsets beyond 2^31 in one segment", "log/segment_log.py",
        "self.roll(base_offset), 0  # compaction",
        "self.roll(), 0  # compaction",
        (unit("log/test_far_offsets.py"),),
    ),
    Mutant(
        "a crash between renames removes the new time index", "compaction's swap", COMPACTION,
        "        elif suffix not in files:\n",
        "        elif suffix != LOG and folder.exists(f\"{offset_name(base, LOG)}{CLEANED}\"):\n",
        (unit("broker/test_compaction.py"),),
    ),
    Mutant(
        "batches without timestamps are never retained away", "rule 14: retention by batch time", "log/segment.py",
        "        return self.file.modified() // 1_000_000 or NO_TIMESTAMP\n",
        "        return NO_TIMESTAMP\n",
        (unit("log/test_segment_log.py"),),
    ),
    Mutant(
        "a trickle without timestamps keeps its segment for ever", "rule 14: retention by batch time", "log/segment.py",
        "        return now_ms - self._undated_ms > age_ms\n",
        "        return False\n",
        (unit("log/test_segment_log.py"),),
    ),
)

"""Bugs in DeleteRecords: deleted records that come back, and others that go."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

_TESTS = (unit("broker/test_delete_records.py"), unit("broker/test_deletion_chaos.py"))

MUTANTS = (
    Mutant(
        "a deletion is answered before the followers have noted it", "DeleteRecords; rule 5", "broker/log_start.py",
        "        return self.report if replication is None else min(self.report, replication.deleted())\n",
        "        return self.report\n",
        _TESTS,
    ),
    Mutant(
        "a deletion is answered before it is noted here", "DeleteRecords", "broker/log_start.py",
        "        return self.report if replication is None else min(self.report, replication.deleted())\n",
        "        return self._partition.machine.log_start_offset\n",
        _TESTS,
    ),
    Mutant(
        "a follower reports a log start that it has not noted", "DeleteRecords", "broker/fetcher.py",
        "replica.maintenance.log_start.report, max_bytes",
        "machine.log_start_offset, max_bytes",
        _TESTS,
    ),
    Mutant(
        "a replica joins before it has noted what is deleted", "DeleteRecords; rule 5", "core/partition/replication.py",
        "            and follower.start >= self.deleted_below\n",
        "",
        _TESTS,
    ),
    Mutant(
        "what is deleted is forgotten by the next leader", "DeleteRecords; rule 5", "broker/partitions.py",
        "        made.deleted_below = replica.maintenance.log_start.noted_below\n",
        "",
        _TESTS,
    ),
    Mutant(
        "a cut leaves out what deleted records say of producers", "DeleteRecords", "broker/copying.py",
        "decode_snapshot(content, offset), segment_log.start_offset)\n",
        "decode_snapshot(content, offset), replica.machine.log_start_offset)\n",
        _TESTS,
    ),
    Mutant(
        "the epochs of deleted records go before these", "DeleteRecords; KIP-101", "broker/log_start.py",
        "        self._partition.machine.advance_log_start(offset, self._partition.log.start_offset)\n",
        "        self._partition.machine.advance_log_start(offset)\n",
        _TESTS,
    ),
    Mutant(
        "segments go that a cut would need", "DeleteRecords", "broker/log_start.py",
        "        dropped = segment_log.drop_below(min(start, covered))\n",
        "        dropped = segment_log.drop_below(start)\n",
        _TESTS,
    ),
    Mutant(
        "a copy begins within a batch", "DeleteRecords", "broker/snapshots.py",
        "replica.machine.snapshot(), replica.log.start_offset",
        "replica.machine.snapshot(), replica.machine.log_start_offset",
        _TESTS,
    ),
    Mutant(
        "a note deletes records that came after a power cut", "DeleteRecords; rule 13", "log/recovery.py",
        "    if declared > log.end_offset:\n",
        "    if False:\n",
        _TESTS,
    ),
    Mutant(
        "records above the high watermark can be deleted", "DeleteRecords", "broker/kafka_api.py",
        "        if not 0 <= below <= committed:\n",
        "        if below < 0:\n",
        _TESTS,
    ),
    Mutant(
        "a copy that is made again keeps the note of the former one", "DeleteRecords", "broker/log_start.py",
        "            folder.remove(LOG_START)\n",
        "            pass\n",
        _TESTS,
    ),
)

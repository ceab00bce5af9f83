"""Decides from a history alone whether the log kept its guarantees. Pure: takes records, returns a report.

    report = check(read_lines(open("history.jsonl")))
    assert report.valid, report

The definitions follow the Kafka workload of Jepsen (jepsen.tests.kafka): processes append unique values to
topic-partitions and poll them, in transactions. The order of the offsets gives the order of the versions. What a
history of clients cannot show (replicas, sequence numbers, leaders) is checked in `invariants`.
"""

from __future__ import annotations

from hapax_checker.check import ALLOWED_ALWAYS, Report, check
from hapax_checker.copies import in_order, one_to_one, token_outcomes
from hapax_checker.invariants import (
    Batch,
    Replica,
    contiguous_sequences,
    ids_never_reused,
    one_leader_per_epoch,
    one_owner_per_epoch,
    replicas_equal,
    stable_offsets,
)
from hapax_checker.keys import Current, KeyWrite, Reading, by_time, newest_of_each_key
from hapax_checker.positions import PositionOperation, stale_positions
from hapax_checker.record import Operation, line_of, read_lines

__all__ = [
    "ALLOWED_ALWAYS",
    "Batch",
    "Current",
    "KeyWrite",
    "Operation",
    "PositionOperation",
    "Reading",
    "Replica",
    "Report",
    "by_time",
    "check",
    "contiguous_sequences",
    "ids_never_reused",
    "in_order",
    "line_of",
    "newest_of_each_key",
    "one_leader_per_epoch",
    "one_owner_per_epoch",
    "one_to_one",
    "read_lines",
    "replicas_equal",
    "stable_offsets",
    "stale_positions",
    "token_outcomes",
]

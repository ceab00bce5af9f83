"""Bugs that a second review of descriptions, codecs, the controller and leases found."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, unit

MUTANTS = (
    Mutant(
        "a refused write does not say who fenced its producer", "an error says what is known", "broker/fenced_by.py",
        "        return response.reason if response.error in _FENCED else \"\"\n",
        "        return \"\"\n",
        (unit("broker/test_fenced_by.py"),),
    ),
    Mutant(
        "a fenced static member is not told by whom", "an error says what is known", "core/group/rounds.py",
        "        if code is not ErrorCode.FENCED_INSTANCE_ID or holder is None:\n",
        "        if True:\n",
        (SCENARIOS,),
    ),
    Mutant(
        "a lease's name that counts records is forgotten", "rule 8: 0 means that nothing was written", "core/producer/leases.py",
        "        lease.rests and not lease.counted and not any(lease.carried.values())\n",
        "        lease.rests and not lease.counted\n",
        (unit("core/producer/test_leases.py"), unit("pid/test_pid_service.py")),
    ),
    Mutant(
        "a lease at rest keeps the partitions of deleted topics", "rule 10: a partition whose topic is gone counts as done", "pid/leases.py",
        "if lease.rests and any(map(self._partitions.is_deleted, lease.partitions)):\n",
        "if False:\n",
        (unit("pid/test_pid_service.py"),),
    ),
    Mutant(
        "one transaction of the store writes a key twice", "rule 19: a controller's plan can be written", "runtime/guarded_writes.py",
        "            or not written.isdisjoint(keys)\n",
        "",
        (unit("runtime/test_guarded_writes.py"), unit("controller")),
    ),
    Mutant(
        "a departed coordinator is listed until something else changes", "rule 11: who is listed can be asked", "kafka/api/metadata.py",
        "image = self._view.revision, len(self._view.departed_coordinators(LISTED_AFTER_S))\n",
        "image = self._view.revision, 0\n",
        (unit("kafka/test_node_apis.py"),),
    ),
    Mutant(
        "producers of offsets are never forgotten", "rule 14: expiry bounds a broker's memory", "broker/periodic_tasks.py",
        "        if not replica.storage_error and not replica.settings.restoring:\n            due =",
        "        if not replica.internal and not replica.storage_error:\n            due =",
        (unit("broker/test_periodic_tasks.py"),),
    ),
    Mutant(
        "producers of offsets are forgotten before their transactional ids", "rule 3: late offsets of a fenced producer stay out", "broker/replica.py",
        "        if not self.internal:\n            return settings.producer_id_expiration_ms\n",
        "        if not self.internal or self.internal:\n            return settings.producer_id_expiration_ms\n",
        (unit("broker/test_periodic_tasks.py"),),
    ),
    Mutant(
        "an offset with a retention of its own forgets its topic's id", "rule 10: a topic made again inherits no offset", "codec/offsets_log.py",
        "    if value.topic_id != NO_TOPIC_ID:\n",
        "    if value.topic_id != NO_TOPIC_ID and value.expire_timestamp == NO_TIMESTAMP:\n",
        (unit("codec/test_offsets_log.py"),),
    ),
    Mutant(
        "a record that ends before its value is one with an empty value", "recovery trusts nothing that is not whole", "codec/internal_records.py",
        "at + max(length_of_value, 0) >= end:",
        "at + (length_of_value if value else 0) > end:",
        (unit("codec/test_internal_records.py"),),
    ),
    Mutant(
        "an offset's retention ends after the last time that can be written", "what is decided can be written", "core/group/offsets.py",
        "TimestampMs(min(now.wall + retention_ms, _NEVER))\n",
        "TimestampMs(now.wall + retention_ms)\n",
        (unit("core/group/test_names.py"),),
    ),
    Mutant(
        "an election that was never written is waited for", "a failover's time is its own", "controller/failover_clock.py",
        "{each for each in self._pending if not settled(each)} | set(elected)\n",
        "self._pending | set(elected)\n",
        (unit("controller/test_failover_clock.py"),),
    ),
    Mutant(
        "a topic asked for by its id and an empty name is not found", "the Java client finds what it was assigned",
        "kafka/api/metadata.py",
        "entry.name is None or (entry.topic_id is not None and entry.topic_id.int != 0)",
        "entry.name is None",
        (unit("kafka/test_node_apis.py"),),
    ),
    Mutant(
        "an unknown topic id has no name in an answer that needs one", "every answer can be decoded", "kafka/api/metadata.py",
        "_unknown(None if version >= 12 else \"\", topic_id",
        "_unknown(None, topic_id",
        (unit("kafka/test_node_apis.py"),),
    ),
    Mutant(
        "a former owner lists transactions from memory", "rule 23: a confirmed read is a barrier", "coordinator/kafka_api.py",
        "            await asyncio.gather(*(shard.confirm() for shard in shards))\n",
        "",
        (unit("coordinator/test_cut_off.py"),),
    ),
)

"""Bugs at the edges: leases, administration by REST and by Kafka's calls, listings of the metadata store."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, unit

MUTANTS = (
    Mutant(
        "a partition forgets a lease before its records are counted", "rule 8", "core/partition/producer_table.py",
        "            last_offset < self.expired_below\n            and keep_until_ms <= LEASE_COUNTED\n",
        "            last_offset < self.expired_below\n            and keep_until_ms <= self.expired_at_ms\n",
        (SCENARIOS, unit("pid/test_pid_service.py")),
    ),
    Mutant(
        "progress that a partition has forgotten is 0", "rule 8", "pid/leased_partitions.py",
        "                elif producer_id in result.unknown_producer_ids:\n",
        "                elif False:\n",
        (unit("pid/test_pid_service.py"),),
    ),
    Mutant(
        "a fence of an older renewal shortens the lease", "rule 8", "core/partition/machine.py",
        "            return replace(fence, keep_until_ms=later_end(producer.keep_until_ms, fence.keep_until_ms))\n",
        "            return fence\n",
        (SCENARIOS, unit("pid/test_pid_service.py")),
    ),
    Mutant(
        "partitions may forget a closed id before its counts are stored", "rule 8", "core/producer/leases.py",
        "    return replace(lease, generation=CLOSED_GENERATION)\n",
        "    return replace(lease, generation=CLOSED_GENERATION, expires_at_ms=0)\n",
        (unit("pid/test_pid_service.py"),),
    ),
    Mutant(
        "a deleted topic stays in the leases that wrote to it", "rule 10", "pid/leases.py",
        "[each for each in lease.partitions if self._partitions.is_deleted(each)])\n",
        "[])\n",
        (unit("pid/test_pid_service.py"),),
    ),
    Mutant(
        "copies keep what their leader has forgotten", "rule 14: expiry is the same on every replica", "broker/periodic_tasks.py",
        "            replica.machine.sweep_dead()\n            return\n",
        "            return\n",
        (unit("broker/test_periodic_tasks.py"),),
    ),
    Mutant(
        "a resumed reset of a group is planned again", "a shift is made once under its key", "admin/groups.py",
        "        if attempt.decided is not None:\n",
        "        if False:\n",
        (unit("admin/test_repeated.py"),),
    ),
    Mutant(
        "a group that stands where it stood counts as not moved", "a shift is made once under its key", "client/groups.py",
        "if found[each] == (each.before, each.before_ms)]\n",
        "if found[each][0] == each.before]\n",
        (unit("admin/test_repeated.py"),),
    ),
    Mutant(
        "what is to be done is decided without the claim", "idempotency keys: one worker at a time", "admin/idempotency.py",
        "            [Compare(self._where, \"mod_revision\", self._revision)],\n",
        "            [],\n",
        (unit("admin/test_idempotency.py"),),
    ),
    Mutant(
        "a topic named by its id is deleted by its name", "rule 10", "kafka/api/delete_topics.py",
        "                [entry.name for entry in by_name if entry.name is not None], [found[entry] for entry in by_id],\n",
        "                [*(each.name or \"\" for each in by_name), *(topic.name for each in by_id if (topic := self._view.topic_by_id(found[each])))], [],\n",
        (unit("kafka/api/test_delete_topics.py"),),
    ),
    Mutant(
        "a controller of an earlier release claims to have added to a list", "rolling upgrade: it hides a lost change",
        "runtime/administration.py",
        "            if (change.append or change.subtract) and not result.error and not result.lists_changed:\n",
        "            if False:\n",
        (unit("kafka/test_configs.py"),),
    ),
    Mutant(
        "members beat less often than their sessions last", "a member that beats keeps its partitions",
        "core/group/configs.py",
        "    if _has_interval(config) and heartbeat >= session:\n",
        "    if False:\n",
        (unit("core/group/test_configs.py"),),
    ),
    Mutant(
        "a deletion under If-Match compares nothing", "every write to etcd compares a revision", "controller/topics.py",
        "        _check_revision(topic, if_revision)\n        return topic\n",
        "        return topic\n",
        (unit("controller/test_controller.py"),),
    ),
    Mutant(
        "REST deletes whatever has the name", "rule 10", "admin/topics.py",
        "admin.delete_topic(topic, found.topic_id, revision))\n",
        "admin.delete_topics([topic]))\n",
        (unit("admin/test_repeated.py"),),
    ),
    Mutant(
        "what was waited for is looked up again", "rule 11: an answer names a coordinator, or an error", "kafka/api/find_coordinator.py",
        "        return _Found(owner, ErrorCode.NONE, None)\n",
        "        return _Found(self._view.shard_owner(kind, shard), ErrorCode.NONE, None)\n",
        (unit("runtime/test_cluster_view.py"),),
    ),
    Mutant(
        "a compaction of the history during a listing ends the node", "rule 12: the store may be away, not the node", "runtime/etcd.py",
        "            except MetadataCompacted as error:\n                log.info(\"the history was compacted during",
        "            except ZeroDivisionError as error:\n                log.info(\"the history was compacted during",
        (unit("runtime/test_etcd.py"),),
    ),
)

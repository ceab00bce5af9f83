"""Bugs in the control plane, in leases, in the client and in the calls between them."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, explore, sim, unit

REPLICATED = "--brokers 3 --replication 3 --controllers 2 --hours 0.004 --faults-every 1"

MUTANTS = (
    Mutant(
        "a lease is taken again by the call that has it", "a late first attempt fences its own caller", "pid/leases.py",
        "                    if leases.repeats(before, request, now):\n",
        "                    if False:\n",
        (unit("pid/test_repeated_calls.py"),),
    ),
    Mutant(
        "an unclean election whose answer was lost is not told", "records that may be lost are told of",
        "controller/service.py",
        "            self._unclean_elections.changed(partition)\n",
        "",
        (unit("controller/test_unclean.py"),),
    ),
    Mutant(
        "a call that names no cluster is taken", "rule 22", "runtime/rpc.py",
        "    if not named:\n        raise RpcError(",
        "    if not named:\n        return\n        raise RpcError(",
        (unit("runtime/test_rpc.py"),),
    ),
    Mutant(
        "while releases mix, a former call to another cluster's controller is carried out", "rule 22", "runtime/rpc_former.py",
        "        check_cluster(own, text_field(payload, number) or own)\n",
        "",
        (unit("runtime/test_rpc_former.py"),),
    ),
    Mutant(
        "a status that the former release does not know says that the call may be repeated", "rule 22: a refusal is final", "runtime/rpc_former.py",
        '_INDEX.get(status, _INDEX["FAILED_PRECONDITION"])',
        '_INDEX.get(status, _INDEX["UNAVAILABLE"])',
        (unit("runtime/test_rpc_former.py"),),
    ),
    Mutant(
        "a pod that has come back is looked for at its former address alone", "calls pause for seconds in each roll", "runtime/network.py",
        "            if not silent:\n",
        "            if True:\n",
        (unit("runtime/test_network_names.py"),),
    ),
    Mutant(
        "a handler is cancelled with its caller", "a caller that went away leaves no half-done decision",
        "runtime/rpc_server.py",
        "await asyncio.shield(self._running.spawn(run(method, handler, request, peer)))",
        "await self._running.spawn(run(method, handler, request, peer))",
        (unit("runtime/test_rpc.py"),),
    ),
    Mutant(
        "a client creates an internal topic with a number of partitions of its own", "rule 22: the number of shards is fixed", "controller/topics.py",
        "        if spec.name in INTERNAL_TOPICS:  #",
        "        if False:  #",
        (unit("controller/test_controller.py"),),
    ),
    Mutant(
        "a lease is taken over and not fenced, since its event has no writer yet", "rule 8", "wire/rpc_node.py",
        "        if self._events is None:\n            self._early.append((kind, fields))\n        else:\n            self._events.record(kind, **fields)\n",
        "        assert self._events is not None\n        self._events.record(kind, **fields)\n",
        (unit("pid/test_pid_service.py"),),
    ),
    Mutant(
        "a reader waits for the pace of the scrubber", "a read hangs", "log/survey.py",
        "        if pace is None:\n            running.hurry()\n",
        "",
        (unit("log/test_survey.py"),),
    ),
    Mutant(
        "an event that is too large for its topic holds up all later ones", "an event is hidden", "wire/events.py",
        "                if len(batch) == 1 and self.dropped == dropped:  #",
        "                if False:  #",
        (unit("wire/test_events.py"),),
    ),
    Mutant(
        "an event that comes as the writer ends waits for the next one", "an event is hidden", "wire/events.py",
        "        if self._writer is None or self._writer.done():\n            self._writer = supervision.keep(self._write, \"events\", self._random)\n",
        "        if self._writer is None:\n            self._writer = supervision.keep(self._write, \"events\", self._random)\n"
        "            self._writer.add_done_callback(lambda _: setattr(self, \"_writer\", None))\n",
        (unit("wire/test_events.py"),),
    ),
    Mutant(
        "producer ids are handed out twice", "ids are never reused; etcd: every write compares", "pid/blocks.py",
        "        compares = [Compare(self._key, \"mod_revision\", revision)]\n        if revision:",
        "        compares: list[Compare] = []\n        if False:",
        (unit("pid/test_pid_service.py"), sim()),
    ),
    Mutant(
        "a store that went back is believed", "rule 12", "runtime/rollback_guard.py",
        "        if revision < self.revision:\n            raise StoreRefused(",
        "        if revision < 0:\n            raise StoreRefused(",
        (unit("runtime/test_cluster_view.py"),),
    ),
    Mutant(
        "a take-over of a lease keeps its generation", "rule 8", "core/producer/leases.py",
        "producer_id, generation = lease.producer_id, ProducerEpoch(lease.generation + 1)",
        "producer_id, generation = lease.producer_id, ProducerEpoch(lease.generation)",
        (unit("core/producer/test_leases.py"), sim()),
    ),
    Mutant(
        "a lease is granted before its fences are stored", "rule 8", "pid/leases.py",
        "        held = await self._fence(lease)\n        for holding",
        "        held = await self.progress_of(lease.producer_id, list(lease.partitions))\n        for holding",
        (unit("pid/test_pid_service.py"), sim()),
    ),
    Mutant(
        "any replica may lead", "only an in-sync replica may lead", "core/cluster/failover.py",
        "    elected = _candidate(partition, electable, brokers)\n",
        "    elected = _candidate(partition, partition.replicas, brokers)\n",
        (unit("core/cluster/test_failover.py"), unit("controller")),
    ),
    Mutant(
        "a reassignment to fewer replicas ends with one that is not in sync", "acknowledged records keep their copies", "core/cluster/failover.py",
        "    needed = target if len(partition.adding) < len(partition.removing) else partition.adding\n",
        "    needed = partition.adding\n",
        (unit("core/cluster/test_failover.py"), unit("controller/test_reassignments.py")),
    ),
    Mutant(
        "a refusal of all elections looks like success to version 0", "an error is hidden", "kafka/api/elect_leaders.py",
        "            return _response(refused_all(partitions or (), refusal), refusal.code)\n",
        "            return _response([], refusal.code)\n",
        (unit("controller/test_admin_cases.py"),),
    ),
    Mutant(
        "an unknown kind of election elects the preferred replica", "what is not known is refused", "kafka/api/elect_leaders.py",
        "            if kind not in (PREFERRED, UNCLEAN):\n",
        "            if False:\n",
        (unit("controller/test_admin_cases.py"),),
    ),
    Mutant(
        "a restarted leader goes on under its old epoch", "rule 5", "core/cluster/failover.py",
        "    same_leader = leader is not None and leader.registration == partition.leader_registration\n",
        "    same_leader = leader is not None\n",
        (unit("core/cluster/test_failover.py"), sim()),
    ),
    Mutant(
        "a broker serves what the store gave to its former life", "rule 5", "broker/partitions.py",
        "            or assigned.record.leader_registration != self._registration.epoch\n        ):\n            return None\n        return assigned\n",
        "        ):\n            return None\n        return assigned\n",
        (unit("broker/test_partitions.py"), sim()),
    ),
    Mutant(
        "a leader that was replaced serves on", "epochs fence", "broker/partitions.py",
        "leader_epoch=replica.leader_epoch)\n            self._withdraw(replica)\n",
        "leader_epoch=replica.leader_epoch)\n                return\n            self._withdraw(replica)\n",
        (unit("broker/test_partitions.py"), sim()),
    ),
    Mutant(
        "the controller writes without a fence", "rule 19: etcd locks alone are no mutual exclusion",
        "runtime/guarded_writes.py",
        "            [fence, *(c for change in batch for c in change.compares)],",
        "            [c for change in batch for c in change.compares],",
        (unit("runtime/test_guarded_writes.py"), unit("controller")),
    ),
    Mutant(
        "changes do not compare revisions", "every write to etcd compares", "runtime/guarded_writes.py",
        "            [fence, *(c for change in batch for c in change.compares)],",
        "            [fence],",
        (unit("runtime/test_guarded_writes.py"), unit("controller")),
    ),
    Mutant(
        "a folder of another cluster is taken", "rule 22", "runtime/node_ids.py",
        "        if wanted is not None and fields.get(name) != wanted:\n",
        "        if name not in fields:\n",
        (unit("runtime/test_node_ids.py"),),
    ),
    Mutant(
        "the number of a doubtful batch is used again", "idempotence", "core/producer/partition_queue.py",
        "        if batch.doubtful or any(later.in_flight or later.doubtful for later in followers):\n",
        "        if False:\n",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "an unacknowledged commit is taken for an abort", "client", "core/producer/error_kinds.py",
        "    return COORDINATOR.get(code, ErrorKind.FATAL)",
        "    return COORDINATOR.get(code, ErrorKind.ABORT)",
        (unit("core/producer/test_machine.py"),),
    ),
    Mutant(
        "followers that lag count for nothing", "rule 5", "core/partition/replication.py",
        "            if member.end < end:\n                end = member.end\n",
        "            if member.end < 0:\n                end = member.end\n",
        (explore("elections"), unit("core/partition/test_replication.py"), sim("1-6", REPLICATED)),
    ),
    Mutant(
        "a pending addition does not count", "rule 5", "core/partition/replication.py",
        "            counted.update(dict.fromkeys(self.pending.added))",
        "            counted.update(dict.fromkeys(()))",
        (explore("elections-in-sync"), unit("core/partition/test_replication.py"),),
    ),
    Mutant(
        "the high watermark advances with too few in sync", "min.insync.replicas", "core/partition/replication.py",
        "        if self.passed_over or len(self.isr) < self._effective_minimum:\n            return UNKNOWN_END\n",
        "",
        (unit("core/partition/test_replication.py"),),
    ),
    Mutant(
        "a follower's history is not compared with its leader's", "truncation by leader epoch", "broker/followers.py",
        "            self._diverging = diverging(replica, named.last_fetched_epoch, named.offset)\n",
        "            self._diverging = None\n",
        (unit("broker/test_replication.py"), sim("1-6", REPLICATED)),
    ),
    Mutant(
        "a cut log keeps the producers' state of what was cut", "replicas", "broker/copying.py",
        "        await replay_again(segment_log, replica.machine.log_end_offset, replica.replay)\n",
        "",
        (explore("elections-twice"), unit("broker/test_replication.py"), sim("1-6", REPLICATED)),
    ),
    Mutant(
        "followers append without replaying", "replicas hold the leader's producer state", "broker/copying.py",
        "                replica.replay(header, batch, 0)\n                machine = replica.machine\n",
        "                machine = replica.machine\n                machine.log_end_offset = header.next_offset\n",
        (explore("elections"), unit("broker/test_replication.py"), sim("1-6", REPLICATED)),
    ),
    Mutant(
        "a follower acknowledges what it has not synced", "rule 5", "broker/followers.py",
        "        self._synced(replica, named)\n        if replica.machine.log_end_offset",
        "        self._synced(replica, named._replace(synced_end=named.offset))\n        if replica.machine.log_end_offset",
        (unit("broker/test_replication.py"), sim("1-6", REPLICATED)),
    ),
    Mutant(
        "anybody may fetch as a replica", "rule 17", "broker/followers.py",
        "        return node if node is not None and node.node_id == request.replica_id and node.role == \"broker\" else None",
        "        return node if node is not None else self.partitions.view.node(request.replica_id)",
        (unit("broker/test_replication.py"), unit("broker/test_kafka_api.py"),),
    ),
    Mutant(
        "a follower commits what it only heard of", "rule 5", "broker/copying.py",
        "        moved = machine.advance_high_watermark(min(high_watermark, machine.log_end_offset))\n",
        "        machine.advance_high_watermark(machine.log_end_offset)\n",
        (unit("broker/test_replication.py"), sim("1-6", REPLICATED)),
    ),
    Mutant(
        "coordinators are not listed among the nodes", "rule 11", "kafka/api/metadata.py",
        '    return [node for node in view.nodes() if node.port > 0 and node.role in ("broker", "coordinator")]',
        '    return [node for node in view.nodes() if node.port > 0 and node.role == "broker"]',
        (unit("kafka/test_node_apis.py"), sim("1")),
    ),
    Mutant(
        "clients take control batches for records", "rule 16", "client/readings.py",
        "            visible = not header.is_control\n",
        "            visible = True\n",
        (sim(), unit("client")),
    ),
    Mutant(
        "an error of a write with acks=0 is kept quiet", "rule 16", "kafka/api/produce.py",
        "        if self.request.acks == 0:\n",
        "        if self.request.acks == 0:\n            return None\n        if self.request.acks == 0:\n",
        (unit("broker/test_kafka_api.py"), unit("kafka")),
    ),
    Mutant(
        "cold ranges are read on the loop", "rule 18", "log/reading.py",
        "        if not warmed and not segment.file.is_cached(position, size):",
        "        if False and not segment.file.is_cached(position, size):",
        (unit("log/test_segment_log.py"), unit("broker")),
    ),
    Mutant(
        "a folder without its topic's name is replaced by an empty one", "found by this simulator", "broker/partitions.py",
        "            if _holds_records(disk, folder):\n                raise OSError",
        "            if False:\n                raise OSError",
        (unit("broker/test_partitions.py"),),
    ),
    Mutant(
        "what a killed process wrote is taken for durable", "rule 13, found by this simulator", "broker/partitions.py",
        "            if not clean:  # as the log itself",
        "            if False:  # as the log itself",
        (
            "simulation/test_power_cuts.py",
            sim("1-6", "--hours 0.004 --faults-every 1 --only 'power cut' --only kill"),
        ),
    ),
    Mutant(
        "a torn leader-epoch checkpoint ends the broker's following", "found by this simulator", "log/recovery.py",
        "    except ValueError:\n        return await _epochs_of_batches(log)",
        "    except KeyError:\n        return await _epochs_of_batches(log)",
        (unit("log/test_recovery.py"), sim()),
    ),
    Mutant(
        "what a former process left is served unchecked", "no damage is served", "log/soundness.py",
        "        if start >= self.trusted_from:\n            return True\n        at =",
        "        if start >= 0:\n            return True\n        at =",
        (unit("log/test_survey.py"),),
    ),
    Mutant(
        "a damaged replica goes though it is the last", "nothing removes the last copy", "core/cluster/damage.py",
        "        return Remedy.LEAVE if others and (partition.leader == me or partition.leader in others) else",
        "        return Remedy.LEAVE if partition.leader == me or partition.leader in others else",
        (unit("core/cluster/test_damage.py"),),
    ),
    Mutant(
        "a leader remembers what a replica had that goes", "rule 5", "core/partition/replication.py",
        "        if follower is not None:\n            follower.end = UNKNOWN_END\n",
        "        if follower is None:\n            return\n",
        (unit("core/partition/test_replication.py"),),
    ),
    Mutant(
        "an offset that leaps is taken for a gap", "recovery trusts nothing", "log/recovery.py",
        "                return header.last_offset < following.base_offset\n",
        "                return True\n",
        (unit("log/test_recovery.py"),),
    ),
)

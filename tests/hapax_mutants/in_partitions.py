"""Bugs in what a partition decides, stores and shows."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, explore, sim, unit

MACHINE = "core/partition/machine.py"

MUTANTS = (
    Mutant(
        "a replica copies over what its leader has compacted", "rule 5: a new replica copies the leader's producer snapshot",
        "broker/inheritance.py",
        "        return header.base_offset != expected or header.record_count <= header.last_offset_delta\n",
        "        return False\n",
        (unit("broker/test_inheritance.py"), sim()),
    ),
    Mutant(
        "what is inherited never counts", "rule 5: a new replica copies the leader's producer snapshot",
        "broker/inheritance.py",
        "            machine.adopt(inherited.snapshot, inherited.aborted)\n",
        "            pass\n",
        (unit("broker/test_inheritance.py"),),
    ),
    Mutant(
        "what a former leader handed out counts under the next one", "rule 5", "broker/inheritance.py",
        "        return inherited.leader_epoch != leader_epoch\n",
        "        return False\n",
        (unit("broker/test_inheritance.py"),),
    ),
    Mutant(
        "a new replica does not learn what was aborted", "read_committed; rule 5", "core/partition/machine.py",
        "AbortedIndex(entry for entry in aborted if entry.last_offset >= self.log_start_offset)\n        self._load",
        "AbortedIndex(())\n        self._load",
        (unit("broker/test_inheritance.py"),),
    ),
    Mutant(
        "a replica joins before it knows the producers", "rule 5", "core/partition/replication.py",
        "max(high_watermark, self.epoch_start, follower.handed_end)",
        "max(high_watermark, self.epoch_start)",
        (unit("core/partition/test_replication.py"), unit("broker/test_inheritance.py")),
    ),
    Mutant(
        "compaction overtakes a replica unnoticed", "rule 5", "core/partition/replication.py",
        "        return not follower.overtaken or offset >= follower.handed_end\n",
        "        return True\n",
        (unit("core/partition/test_replication.py"),),
    ),
    Mutant(
        "a log whose snapshots are lost counts as whole", "rule 5", "broker/opening.py",
        "    replica.inheritance.lacking |= recovery.incomplete and replica.inheritance.inherited is None\n",
        "",
        (unit("broker/test_inheritance.py"),),
    ),
    Mutant(
        "what was inherited goes with the first snapshot", "rule 5: a cut would leave the copy without it",
        "broker/inheritance.py",
        "if inherited is not None and log.snapshot_below(log.committed_offset) >= inherited.offset:",
        "if inherited is not None and log.snapshot_below(log.end_offset) >= inherited.offset:",
        (unit("broker/test_inheritance.py"),),
    ),
    Mutant(
        "compaction goes up to a snapshot that a cut would remove", "rule 5", "broker/log_maintenance.py",
        "        limit = min(machine.last_stable_offset, segment_log.snapshot_below(machine.high_watermark))\n        if not dirty",
        "        limit = min(machine.last_stable_offset, segment_log.covered)\n        if not dirty",
        (unit("broker/test_inheritance.py"),),
    ),
    Mutant(
        "compaction believes a wrong index of aborted transactions", "an index without checksum; rule 13",
        "broker/log_maintenance.py",
        "        await self._check_aborted()\n",
        "",
        (unit("broker/test_aborted_listing.py"),),
    ),
    Mutant(
        "a wrong entry of an aborted transaction stays", "an index without checksum; rule 13",
        "log/survey.py",
        "            await self.marker_checker.end(segment, marker_check)\n",
        "            pass\n",
        (unit("broker/test_aborted_listing.py"),),
    ),
    Mutant(
        "a duplicate is appended again", "idempotence", MACHINE,
        "if entry.last_sequence == last and entry.delta == delta:",
        "if entry.last_sequence == last and entry.delta == delta:\n                    return None\n                if False:",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "gaps in sequences are let through", "idempotence", MACHINE,
        "        if base == expected:\n            return None\n",
        "        if distance(expected, base) >= 0:\n            return None\n",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a window of four batches", "redpanda#3038", "core/partition/producer_table.py",
        "        for delta, last_offset in zip(values[::2], values[1::2], strict=True):\n            if delta < 0:",
        "        for delta, last_offset in zip(values[:8:2], values[1:9:2], strict=True):\n            if delta < 0:",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a batch below the window is a gap", "rule 15, redpanda#3039", MACHINE,
        "                if distance(last, window[-1].first_sequence) > 0:",
        "                if distance(last, window[-1].first_sequence) > 0 > base:",
        (SCENARIOS,),
    ),
    Mutant(
        "what an aborted transaction wrote counts as the next one's duplicate", "librdkafka's purge", MACHINE,
        "        return self.log_end_offset if transaction is None else transaction.first_offset\n",
        "        return 0 if transaction is None else transaction.first_offset\n",
        (SCENARIOS,),
    ),
    Mutant(
        "sequences do not wrap", "idempotence", MACHINE,
        "expected = (producer.last_sequence + 1) & MAX_SEQUENCE",
        "expected = producer.last_sequence + 1",
        (SCENARIOS,),
    ),
    Mutant(
        "an old epoch may write", "fencing", MACHINE,
        "            if header.producer_epoch < producer.epoch:\n                raise _stale_epoch(header.producer_id,",
        "            if header.producer_epoch < 0:\n                raise _stale_epoch(header.producer_id,",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a new epoch may begin at any sequence", "idempotence", MACHINE,
        "            if base != 0:\n",
        "            if base < 0:\n",
        (SCENARIOS,),
    ),
    Mutant(
        "the end of the last transaction is one too far", "redpanda#3036: exclusive taken for inclusive", MACHINE,
        "            if first_open < stable:\n                stable = first_open\n",
        "            if first_open < stable:\n                stable = first_open + 1\n",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "open transactions do not hold the stable offset back", "readers", MACHINE,
        "        if self._open:\n            first_open = next",
        "        if False:\n            first_open = next",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a marker above the high watermark already decides", "readers", MACHINE,
        "        if 0 <= self._undecided_first < stable:",
        "        if 0 <= self._undecided_first < 0:",
        (SCENARIOS,),
    ),
    Mutant(
        "an aborted transaction is not indexed", "readers", MACHINE,
        "                self.aborted.add(aborted)\n",
        "",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "the aborted index stops a transaction early", "KAFKA-5376", "core/partition/aborted_index.py",
        "            if self._stable[i] >= end_offset:\n                break",
        "            if self._first[i] >= fetch_offset:\n                break",
        (sim(), SCENARIOS, unit("core")),
    ),
    Mutant(
        "a fetch drops the aborted list", "KAFKA-5376", "broker/replica.py",
        "aborted = machine.aborted_transactions(offset, fetched.next_offset) if committed else ()",
        "aborted = ()",
        (sim(),),
    ),
    Mutant(
        "read_committed reads to the high watermark", "readers", "broker/replica.py",
        "end = machine.last_stable_offset if committed else machine.high_watermark",
        "end = machine.high_watermark",
        (sim(),),
    ),
    Mutant(
        "readers read past the high watermark", "rule 5", "broker/replica.py",
        "end = machine.last_stable_offset if committed else machine.high_watermark",
        "end = machine.log_end_offset if not machine.open_transactions() else machine.last_stable_offset",
        (sim(), unit("broker")),
    ),
    Mutant(
        "an answer leaves before its record is durable", "rule 5, NATS 2.12.1", "broker/replica.py",
        "        if end_offset <= self.machine.high_watermark:\n            call.settle(number, result)\n        else:",
        "        if end_offset <= self.machine.log_end_offset:\n            call.settle(number, result)\n        else:",
        (explore("elections"), unit("broker/test_kafka_api.py"), sim("1-6", "--hours 0.004 --faults-every 1 --only 'restart all brokers'")),
    ),
    Mutant(
        "a duplicate's answer does not wait", "rule 5", MACHINE,
        "Duplicate(entry.first_offset, entry.last_offset))",
        "Duplicate(entry.first_offset, entry.first_offset - 1))",
        (SCENARIOS, unit("core"), unit("broker")),
    ),
    Mutant(
        "the sync is skipped", "rule 13, NATS 2.12.1", "broker/commit.py",
        "            await sync_files(self._disk, [s.file for _, _, unsynced in rounds for s in unsynced.segments])\n",
        "            await asyncio.sleep(0)\n",
        (sim("1-6", "--hours 0.004 --faults-every 1 --only 'restart all brokers'"),),
    ),
    Mutant(
        "a failed sync is shrugged off", "rule 13", "broker/commit.py",
        "        except SyncFailed as error:\n            self.failed(error)\n",
        "        except SyncFailed:\n            pass\n",
        (sim("1-6", "--hours 0.004 --faults-every 1.5 --only 'sync fails'"), unit("broker")),
    ),
    Mutant(
        "compaction takes offsets that rotted at their word", "rule 13", "log/compaction.py",
        "            if not in_order or not crc_matches(data, header, at):\n",
        "            if not crc_matches(data, header, at):\n",
        (unit("broker/test_compaction.py"),),
    ),
    Mutant(
        "recovery trusts whatever it finds", "rule 13", "log/recovery.py",
        "                or not crc_matches(chunk, header, at)\n",
        "",
        (unit("log/test_recovery.py"), sim("1-6", "--hours 0.004 --faults-every 1 --only 'power cut'")),
    ),
    Mutant(
        "recovery does not write again what it trusts", "rule 13", "log/recovery.py",
        "                file.write_at(position, bytes(chunk[:done]))\n",
        "",
        (unit("log/test_recovery.py"), sim("1-6", "--hours 0.004 --faults-every 1.5 --only 'sync fails'")),
    ),
    Mutant(
        "a marker ends whatever is open", "rule 9, KAFKA-17754", MACHINE,
        "        if producer is not None and 0 <= marker.serial <= producer.serial:",
        "        if producer is not None and 0 <= marker.serial < 0:",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "a conditional marker forgets its condition", "rule 9", MACHINE,
        "        if marker.first_offset >= 0 and (transaction is None or"
        " transaction.first_offset != marker.first_offset):",
        "        if marker.first_offset >= 0 and transaction is None:",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a marker of a replaced coordinator is taken", "rule 1", MACHINE,
        "        if marker.coordinator_epoch < known:",
        "        if marker.coordinator_epoch < -1:",
        (SCENARIOS,),
    ),
    Mutant(
        "a marker does not raise the epoch", "KAFKA-9144", MACHINE,
        "        record_count, serial = self._enter_epoch(marker.producer_id, marker.producer_epoch)",
        "        known = self.producers.get(marker.producer_id)\n        record_count, serial = self._enter_epoch("
        "\n            marker.producer_id, marker.producer_epoch if known is None else known.epoch)",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "a shard's fence does not fence", "rule 1", MACHINE,
        "        if shard_epoch != self.shard_epoch:",
        "        if shard_epoch < 0:",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "the first write of a transaction is not verified", "rule 3, KAFKA-9144", MACHINE,
        "        if transaction is None:\n            return not verified\n",
        "        if transaction is None:\n            return False\n",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a marker does not invalidate a verification", "rule 3", "core/partition/verification.py",
        "        queue.invalidated = True\n        if marker.serial < 0:",
        "        if marker.serial < 0:",
        (SCENARIOS, unit("broker"), unit("core")),
    ),
    Mutant(
        "an answer of a replaced shard counts", "rule 3", "core/partition/verification.py",
        "        if epoch < self._highest.get(shard, -1):\n            return False\n",
        "",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "batches overtake a parked one", "rule 3", "broker/replica.py",
        "            held = header.producer_id >= 0 and self.parked.holds(header.producer_id)",
        "            held = header.producer_id >= 0 and self.parked.holds(-7)",
        (unit("broker/test_replica.py"), sim()),
    ),
    Mutant(
        "expiry looks at the wall clock of each replica", "rule 14", MACHINE,
        "            self.producers.expired_below = max(self.producers.expired_below, control.below_offset)",
        "            self.producers.expired_below = self.log_end_offset",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a producer whose lease ended is taken for a new one", "rule 8", MACHINE,
        "        if self.producers.lease_has_ended(producer_id):\n            raise",
        "        if self.producers.lease_has_ended(-5):\n            raise",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a lease's fence lets the former generation write on", "rule 8", MACHINE,
        "            record_count = self._enter_epoch(control.producer_id, control.producer_epoch)[0]\n"
        "            self.producers.put_activity(",
        "            record_count = self._enter_epoch(control.producer_id, 0)[0]\n"
        "            self.producers.put_activity(",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "aborted records count as progress", "rule 8", MACHINE,
        "            if marker.commit:\n                record_count += transaction.record_count",
        "            if marker.commit or True:\n                record_count += transaction.record_count",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "the producers' snapshot forgets open transactions", "recovery", MACHINE,
        "            open_transactions=[replace(transaction) for transaction in self._open.values()],",
        "            open_transactions=[],",
        (sim("1-6", "--hours 0.004 --faults-every 1 --only 'power cut' --only kill"), unit("core/partition/test_model.py")),
    ),
    Mutant(
        "a fetch from the middle of a batch skips it", "fetch", "client/readings.py",
        "            if r.offset >= start\n",
        "            if r.offset >= start and header.base_offset >= start\n",
        (sim(), unit("client")),
    ),
    Mutant(
        "clients may write internal topics", "rule 17", "broker/kafka_api.py",
        "            elif replica.internal:\n                call.settle(number, _NO_INTERNAL_WRITES)\n",
        "            elif False:\n                call.settle(number, _NO_INTERNAL_WRITES)\n",
        (unit("broker/test_kafka_api.py"),),
    ),
)

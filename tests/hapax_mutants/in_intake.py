"""Bugs in the look at clients' records before a write is decided on."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import Mutant, unit

INTAKE: Final = unit("broker/test_intake.py")
FIRST: Final = unit("broker/test_first_batches.py")
INCOMING: Final = unit("codec/test_incoming.py")
ORDER: Final = "exactly-once: a producer's batches stay in order"
NAMED: Final = "rule 24"
KIP: Final = "KIP-467"

MUTANTS = (
    Mutant(
        "a batch that needs no look passes those that are looked at", ORDER, "broker/intake.py",
        "        return self._queue is not None or self.rules.concern(header, now_ms)\n",
        "        return self.rules.concern(header, now_ms)\n",
        (INTAKE,),
    ),
    Mutant(
        "a quick look passes those that take longer", ORDER, "broker/intake.py",
        "        if self._queue is None and _is_quick(waiting):\n",
        "        if _is_quick(waiting):\n",
        (INTAKE,),
    ),
    Mutant(
        "a looked-at write of an ended transaction enters the next", NAMED, "broker/replica.py",
        "        self.intake.appended(control)\n",
        "",
        (INTAKE,),
    ),
    Mutant(
        "a marker ends looked-at writes of the next transaction", NAMED, "broker/intake.py",
        "            and waiting.write.produce_version < FIRST_VERSION_THAT_ADDS]\n",
        "            ]\n",
        (INTAKE,),
    ),
    Mutant(
        "a superseded connection's write is looked at and stored", "rule 4", "broker/replica.py",
        "            if superseded is not None:\n                self.context.superseded()\n",
        "            if False:\n                self.context.superseded()\n",
        (INTAKE,),
    ),
    Mutant(
        "a retry with a timestamp that has become too old is refused", "exactly-once: a duplicate returns its offset", "broker/replica.py",
        "            if bad is not None and not isinstance(decision, Duplicate):\n",
        "            if bad is not None:\n",
        (INTAKE,),
    ),
    Mutant(
        "a leader that resigned appends what it was looking at", "rule 5", "broker/replica.py",
        "        self.intake.abandon(result)\n",
        "",
        (INTAKE,),
    ),
    Mutant(
        "a compressed batch gets another sequence", ORDER, "codec/incoming.py",
        "base_sequence=header.base_sequence,\n        base_offset",
        "base_sequence=-1,\n        base_offset",
        (INCOMING, INTAKE),
    ),
    Mutant(
        "a look that fails leaves the writes behind it waiting", "rule 25", "broker/sweep.py",
        "        replica.intake.resume()\n",
        "        pass\n",
        (INTAKE,),
    ),
    Mutant(
        "one bad record goes into a compacted topic", KIP, "codec/incoming.py",
        "    if not errors:\n        return data, None\n",
        "    if count <= 1:\n        return data, None\n",
        (INCOMING, INTAKE),
    ),
    Mutant(
        "a retry that is too old has another checksum than what is stored", "exactly-once: a duplicate returns its offset", "codec/incoming.py",
        " and (bad is None or bool(header.attributes & TRANSACTIONAL))\n",
        " and bad is None\n",
        (INCOMING, INTAKE),
    ),
    Mutant(
        "a write that cannot be decided on is never answered", "rule 25", "broker/intake.py",
        '                    waiting.write.call.drop("a write could not be decided on")\n',
        "",
        (INTAKE,),
    ),
    Mutant(
        "a client that is gone still has its writes looked at", "rule 18", "broker/intake.py",
        "            if waiting.write.call.gone:\n",
        "            if False:\n",
        (INTAKE,),
    ),
    Mutant(
        "another batch in the place of a recompressed one is answered as stored", NAMED, "broker/repeats.py",
        "    return same[0]\n",
        "    return True\n",
        (INTAKE,),
    ),
    Mutant(
        "a retry across a change of compression is refused", "a duplicate returns its original offset",
        "broker/repeats.py",
        "    if not isinstance(refusal, OtherBatch):\n",
        "    if True:\n",
        (INTAKE,),
    ),
    Mutant(
        "a retry is compared with a log that another leader has cut", "rule 5", "broker/repeats.py",
        "    if not partition.serving or (partition.log, segments.cuts) != (segments, cuts):\n        raise",
        "    if False:\n        raise",
        (INTAKE,),
    ),
    Mutant(
        "acks=0 writes are lost with their connection", "acks=0 is best effort, not none", "kafka/api/produce.py",
        "        return self.request.acks != 0 and self.ctx.closed\n",
        "        return self.ctx.closed\n",
        (INTAKE,),
    ),
    Mutant(
        "the second batch passes a first that came too early", ORDER, "broker/partitions.py",
        "            self.early_writes.hand_over(replica)\n",
        "",
        (FIRST,),
    ),
    Mutant(
        "the second batch passes a first for which too few were in sync", ORDER, "broker/kafka_api.py",
        "                    replica.machine.note_refused(header)\n",
        "                    pass\n",
        (FIRST,),
    ),
    Mutant(
        "the second batch passes a first for which too few are in sync by now", ORDER, "broker/replica.py",
        "        if self.too_few_in_sync and not local:\n            self.machine.note_refused(header)\n",
        "        if self.too_few_in_sync and not local:\n",
        (FIRST,),
    ),
    Mutant(
        "the second batch passes a first that was being looked at when the leadership ended", ORDER, "broker/intake.py",
        "            self._partition.machine.note_refused(waiting.header)\n",
        "",
        (FIRST,),
    ),
    Mutant(
        "the second batch passes a first that was being verified when the leadership ended", ORDER, "broker/parked_writes.py",
        "        for parked in self._verification.abandon():\n            self._partition.machine.note_refused(read_header(parked.batch))\n",
        "        for parked in self._verification.abandon():\n",
        (FIRST,),
    ),
    Mutant(
        "a note of an early write holds for ever", ORDER, "broker/early_writes.py",
        "                if now_ms - since <= KEPT_MS:\n",
        "                if True:\n",
        (FIRST,),
    ),
    Mutant(
        "a zombie's refused batch hides the first of today's producer", ORDER, "core/partition/machine.py",
        "        if (epoch, distance(sequence, header.base_sequence)) >= (header.producer_epoch, 0):\n",
        "        if epoch == header.producer_epoch and distance(sequence, header.base_sequence) >= 0:\n",
        (unit("core/partition/test_machine.py"),),
    ),
    Mutant(
        "a zombie's early write hides the first of today's producer", ORDER, "broker/early_writes.py",
        "            if follows and now_ms - since <= KEPT_MS:\n",
        "            if follows and first.producer_epoch == header.producer_epoch and now_ms - since <= KEPT_MS:\n",
        (FIRST,),
    ),
)

"""Bugs in fetch sessions: what a consumer is not told."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import SCENARIOS, Mutant, unit

KIP: Final = "KIP-227"
TOLD: Final = "KIP-227: no record is hidden"
CORE: Final = unit("core/test_fetch_sessions.py")
COPIES: Final = "KIP-392: a copy shows what is committed, with the aborted list"
READ_REPLICAS: Final = unit("broker/test_read_replicas.py")
BROKER: Final = unit("broker/test_session_fetches.py")

MUTANTS = (
    Mutant(
        "records that were sent count as read", TOLD, "core/fetch_sessions.py",
        "            if read.records:\n                self.pending.pop(partition)\n",
        "            if read.records:\n                partition.register(read.source)\n                self.pending.pop(partition)\n                continue\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "a session forgets partitions that the answer had no room for", TOLD, "core/fetch_sessions.py",
        "            elif read.drained:\n",
        "            else:\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "a session settles a partition and does not register with it", TOLD, "core/fetch_sessions.py",
        "                del self.pending[partition]\n                partition.register(read.source)\n",
        "                del self.pending[partition]\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "a fetch that waits takes a high watermark for told", TOLD, "core/fetch_sessions.py",
        "            if read.drained and partition.told == read.offsets:\n",
        "            if read.drained:\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "a fetch that waits hears only of unchanged partitions", TOLD, "core/fetch_sessions.py",
        "            assert read.source is not None\n            partition.register(read.source)\n            if read.drained and partition.told == read.offsets:\n",
        "            assert read.source is not None\n            if read.drained and partition.told == read.offsets:\n                partition.register(read.source)\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "a partition that the client names again counts as unchanged", TOLD, "core/fetch_sessions.py",
        "                partition.asked = asked\n            self.pending[partition] = None\n",
        "                partition.asked = asked\n                continue\n            self.pending[partition] = None\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "an error is told once", KIP, "core/fetch_sessions.py",
        "            if read.offsets is None or read.source is None:\n                continue\n",
        "            if read.offsets is None or read.source is None:\n                del self.pending[partition]\n                continue\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "a client that lost an answer goes on with the session", TOLD, "core/fetch_sessions.py",
        "        if epoch != session.epoch:\n",
        "        if epoch not in (session.epoch, session.epoch - 1):\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "an answer that never leaves counts as told", TOLD, "broker/fetch.py",
        "        self._session.waits(self._reads(results))\n",
        "        self._session.waits(self._reads(results))\n        self._session.answers(self._reads(results))\n",
        (BROKER,),
    ),
    Mutant(
        "a session's answer leaves the aborted list out", "KAFKA-5376", "broker/fetch.py",
        "                by_topic.setdefault(result.topic, []).append(result)\n",
        "                by_topic.setdefault(result.topic, []).append(result._replace(aborted=None))\n",
        (BROKER,),
    ),
    Mutant(
        "another isolation level finds the partitions unchanged", TOLD, "core/fetch_sessions.py",
        "            self.pending.update(dict.fromkeys(self.partitions.values()))\n",
        "            pass\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "a forgotten partition stays registered", "a session's memory is limited", "core/fetch_sessions.py",
        "                gone.unregister()\n",
        "                pass\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "an ended session registers again", "a session's memory is limited", "core/fetch_sessions.py",
        "        if self.source is not source and not self.session.ended:\n",
        "        if self.source is not source:\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "a session grows without limit", "a session's memory is limited", "core/fetch_sessions.py",
        "        if self.bytes > self._max_bytes and session.id:\n",
        "        if False:\n",
        (SCENARIOS, CORE, BROKER),
    ),
    Mutant(
        "the sweep does not look at fetch sessions", "rule 25", "broker/sweep.py",
        "        await self._check_sessions()\n",
        "",
        (BROKER,),
    ),
    Mutant(
        "retention is told to no session", KIP, "broker/log_maintenance.py",
        "            partition.readers.wake()\n",
        "",
        (unit("broker/test_session_fetches.py"),),
    ),
    Mutant(
        "deleted records are told to no session", KIP, "broker/log_start.py",
        "        self._partition.readers.wake()\n",
        "",
        (BROKER,),
    ),
    Mutant(
        "a copy shows what is not committed", COPIES, "broker/copying.py",
        "        moved = machine.advance_high_watermark(min(high_watermark, machine.log_end_offset))\n",
        "        moved = machine.advance_high_watermark(machine.log_end_offset)\n",
        (READ_REPLICAS,),
    ),
    Mutant(
        "a copy that lacks producers serves consumers", COPIES, "broker/read_replicas.py",
        " and replica.inheritance.is_complete\n",
        "\n",
        (READ_REPLICAS,),
    ),
    Mutant(
        "a copy whose log is cut serves consumers", COPIES, "broker/copying.py",
        "        self.busy = True\n        self.unheard()\n",
        "        self.busy = True\n",
        (READ_REPLICAS,),
    ),
    Mutant(
        "a copy that lost its leader keeps its readers", "KIP-392: no record is hidden", "broker/fetcher.py",
        "                copying.unheard()\n",
        "                pass\n",
        (READ_REPLICAS,),
    ),
    Mutant(
        "readers of a copy are not woken", "KIP-392: no record is hidden", "broker/copying.py",
        "        if moved and self.replica.readers:\n            self.replica.readers.wake()\n",
        "",
        (READ_REPLICAS,),
    ),
    Mutant(
        "a late copy tells its reader that the offset is out of range", "KIP-392: no record twice", "broker/fetch.py",
        "        if partition.offset > machine.log_end_offset:\n            raise Refusal(ErrorCode.OFFSET_NOT_AVAILABLE,",
        "        if partition.offset > machine.log_end_offset:\n            raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE,",
        (READ_REPLICAS,),
    ),
    Mutant(
        "a copy says that records which are not committed diverge", "KIP-392", "broker/fetch.py",
        "        diverging = self._diverging(replica, partition) if committed else None\n",
        "        diverging = self._diverging(replica, partition)\n",
        (READ_REPLICAS,),
    ),
    Mutant(
        "the leader names a replica that lacks the offset", "KIP-392", "broker/read_replicas.py",
        "best, most = -1, offset - 1\n",
        "best, most = -1, -2\n",
        (READ_REPLICAS,),
    ),
)

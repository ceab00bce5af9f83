"""Bugs in the native client's own parts: sending batches, allocating memory, fetching."""

from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import Mutant, unit

_SENDER: Final = unit("client/test_sender.py")
_FETCHING: Final = unit("client/test_fetching.py")
_AUTO_COMMIT: Final = unit("client/test_auto_commit.py")
_ACCUMULATOR: Final = unit("client/test_accumulator.py")

MUTANTS: Final = (
    Mutant(
        "a record without a report does not count in the offsets of the others", "a wrong report",
        "client/accumulator.py",
        "        batch.deliveries.append(delivery)\n",
        "        batch.deliveries += [delivery] if delivery is not None else []\n",
        (_SENDER,),
    ),
    Mutant(
        "a condition that fails hides a record that is lost", "a lost record", "client/engine.py",
        "        if self.failure is None or isinstance(self.failure, ConditionFailedError):",
        "        if self.failure is None:",
        (_SENDER,),
    ),
    Mutant(
        "a topic deleted while a connection opens costs others their outcome", "a hang", "client/sender.py",
        "        if gone:  # deleted since",
        "        if False:  # deleted since",
        (_SENDER,),
    ),
    Mutant(
        "acks=0 overtakes what waits for the connection", "order per producer", "client/sender.py",
        "            self._waiting.setdefault(node_id, deque()).extend(requests)\n"
        "            if node_id in self._carried:",
        "            if (open_peer := self._cluster.open_peer(node_id)) is not None:\n"
        "                for request in requests:\n"
        "                    self._submit(open_peer, request)\n"
        "                continue\n"
        "            self._waiting.setdefault(node_id, deque()).extend(requests)\n"
        "            if node_id in self._carried:",
        (_SENDER,),
    ),
    Mutant(
        "a stopped producer leaves deliveries open", "the producer hangs", "client/engine.py",
        '        self._settle_all("the producer is closed")\n',
        "",
        (_SENDER,),
    ),
    Mutant(
        "a waiter for memory that is cancelled when served wakes no other", "a hang", "client/accumulator.py",
        "                self._promised -= size\n            self._wake()\n            raise",
        "                self._promised -= size\n            raise",
        (_ACCUMULATOR,),
    ),
    Mutant(
        "memory is promised twice", "buffer.memory", "client/accumulator.py",
        "                self._promised += size\n                waiting",
        "                waiting",
        (_ACCUMULATOR,),
    ),
    Mutant(
        "a topic deleted while a connection opens fails all that is read", "a false error", "client/fetcher.py",
        "            partitions = [p for p in partitions if self._may_fetch(p)]\n",
        "",
        (_FETCHING,),
    ),
    Mutant(
        "what is known of a topic's id is taken for what is", "a name is taken for the thing it named",
        "client/raw_fetch.py",
        "    if topic is None or (wanted and str(topic.topic_id) != wanted):\n",
        "    if topic is None:\n",
        (_FETCHING,),
    ),
    Mutant(
        "a position outlives its topic", "a name is taken for the thing it named", "client/fetcher.py",
        "            if reading.position is not None and topic is not None and not reading.is_of(topic):",
        "            if reading.position is not None and topic is not None and not topic:",
        (_FETCHING,),
    ),
    Mutant(
        "a position is forgotten while records wait", "no record twice", "client/fetcher.py",
        "            if lost and reading.drained and partition not in self._held:",
        "            if lost and partition not in self._held:",
        (_FETCHING,),
    ),
    Mutant(
        "a partition that has given its only batch up wants no other", "a hang", "core/producer/partition_queue.py",
        "        if self.fresh or self.unresolved or self.gap:\n",
        "        if self.fresh or self.unresolved or self.gap or self.recovering:\n",
        (unit("core/producer/test_machine.py"),),
    ),
    Mutant(
        "a transaction takes offsets of partitions that its member gave up", "one owner", "client/coordination.py",
        "        if gone:\n            self._machine.coordinator_refused(",
        "        if False:\n            self._machine.coordinator_refused(",
        (unit("client/test_memberships_of_transactions.py"),),
    ),
    Mutant(
        "an automatic commit goes on from before a seek back", "at least once", "client/fetcher.py",
        "min(self._unprocessed.get(p, position), position)",
        "self._unprocessed.get(p, position)",
        (unit("client/test_auto_commit.py"),),
    ),
    Mutant(
        "an automatic commit counts what the program is processing", "at least once", "client/fetcher.py",
        "        return {p: min(self._unprocessed.get(p, position), position) for p, position in"
        " self.positions().items()}",
        "        return self.positions()",
        (_AUTO_COMMIT,),
    ),
    Mutant(
        "an iteration counts a record as processed when it hands it out", "at least once", "client/fetcher.py",
        "            self._unprocessed.setdefault(partition, record.offset)\n            left",
        "            left",
        (_AUTO_COMMIT,),
    ),
    Mutant(
        "a block that an error leaves has processed everything", "at least once", "client/consumer.py",
        "        if kind is None:\n            self._fetcher.note_processed()",
        "        self._fetcher.note_processed()",
        (_AUTO_COMMIT,),
    ),
    Mutant(
        "a coordinator that is restarted ends the call", "calls wait for who is restarted", "client/groups.py",
        "                    raise from_code(\n                        ErrorCode.COORDINATOR_NOT_AVAILABLE, what, f",
        "                    raise HapaxError(\n                        what, advice=f",
        (unit("client/test_admin.py"),),
    ),
)

"""Bugs that a third review of the log, the broker and the native client found."""

from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, unit

INHERITANCE = unit("broker/test_inheritance.py")
FETCHING = unit("client/test_fetching.py")
MADE_AGAIN = "rule 10: no topic is taken for the one that had its name"
COMPACTION = "log/compaction.py"
COMPACTION_DELETES = unit("broker/test_compaction_deletes.py")
BOMBS = "hostile bytes: decompression bombs"
DELETES = "rule 26: compaction keeps deletes"
COMPACTED = "rule 26: a copy of a compacted log is complete or empty"

MUTANTS = (
    Mutant(
        "a node that lags behind says that a deleted topic exists", MADE_AGAIN,
        "kafka/api/create_topics.py",
        "            pass  # whether it still exists",
        "            raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS)  # whether it still exists",
        (unit("kafka/api/test_delete_topics.py"),),
    ),
    Mutant(
        "a copy that asks for producers keeps what its leader has deleted and compacted", DELETES,
        "broker/copying.py",
        "            if from_start or handed.compacted or replica.log.was_compacted or",
        "            if from_start or replica.log.config.compact or",
        (INHERITANCE,),
    ),
    Mutant(
        "a copy goes on over what it has compacted away itself", COMPACTED,
        "broker/copying.py",
        "        if cut < max(committed, replica.log.covered) and replica.log.was_compacted:\n",
        "        if cut < committed and replica.log.was_compacted:\n",
        (INHERITANCE,),
    ),
    Mutant(
        "a copy of batches without all their records does not say that it was compacted", COMPACTED,
        "broker/copying.py",
        "                    segment_log.note_gaps()\n",
        "                    pass\n",
        (INHERITANCE,),
    ),
    Mutant(
        "a consumer's first offset is one of whichever topic has the name by then", MADE_AGAIN,
        "client/fetcher.py",
        "                    offset, None if topic is None else topic.topic_id, untried=way is Begin.COMMITTED)\n",
        "                    offset, None, untried=way is Begin.COMMITTED)\n",
        (FETCHING,),
    ),
    Mutant(
        "a group's offset in a topic made again is none where the client hears of the topic later", MADE_AGAIN,
        "client/fetcher.py",
        "                if reading.untried:\n",
        "                if False:\n",
        (FETCHING,),
    ),
    Mutant(
        "a former owner says that a group is gone", "rule 23: a confirmed read is a barrier",
        "coordinator/groups.py",
        "            await self.confirm()\n            raise\n",
        "            raise\n",
        (unit("coordinator/test_cut_off.py"),),
    ),
    Mutant(
        "a run that fails unexpectedly leaves its file open", "rule 13: what failed leaves nothing behind",
        COMPACTION,
        "        except BaseException:\n",
        "        except (OSError, Damaged, Refusal, asyncio.CancelledError):\n",
        (unit("broker/test_compaction.py"),),
    ),
    Mutant(
        "a run holds the keys of its first segment, however many", BOMBS, COMPACTION,
        "                        if len(self.latest) >= _MAX_KEYS:\n                            return segment\n",
        "",
        (COMPACTION_DELETES,),
    ),
    Mutant(
        "a run holds keys of any length", BOMBS, COMPACTION,
        "    return key if len(key) <= _LONG_KEY else",
        "    return key if True else",
        (COMPACTION_DELETES,),
    ),
    Mutant(
        "tombstones go that a run has not looked at", DELETES, COMPACTION,
        "        if header.base_offset >= self.noted_to:\n            return batch\n",
        "",
        (COMPACTION_DELETES,),
    ),
    Mutant(
        "a run begins with the segment in the midst of which the one before ended", BOMBS, COMPACTION,
        "                    if header.base_offset >= self.noted_to:\n",
        "                    if True:\n",
        (COMPACTION_DELETES,),
    ),
    Mutant(
        "a reader whose read ahead fails unexpectedly is never answered", "rule 25: what waits is answered",
        "broker/fetch.py",
        "            supervision.failed(\"prepare-for-reader\", error)\n            self._fail(\"a read failed\")\n",
        "            supervision.failed(\"prepare-for-reader\", error)\n",
        (unit("broker/test_fetch.py"),),
    ),
    Mutant(
        "a replica whose read ahead fails unexpectedly gets nothing of that partition any more",
        "rule 25: what waits is answered",
        "broker/followers.py",
        "            finally:  # else the follower",
        "            else:  # else the follower",
        (unit("broker/test_replication.py"),),
    ),
    Mutant(
        "a consumer commits by its topics' names", MADE_AGAIN, "client/groups.py",
        "    at_most = _BY_ID if all(name in ids for name in topics) else _BY_ID - 1\n",
        "    at_most = _BY_ID - 1\n",
        (FETCHING,),
    ),
    Mutant(
        "an owner whose fence is lost takes itself for replaced", "rule 1", "core/partition/machine.py",
        "            above = shard_epoch > self.shard_epoch\n",
        "            above = False\n",
        (SCENARIOS, unit("core/partition/test_machine.py")),
    ),
)

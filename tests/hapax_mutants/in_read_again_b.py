"""Bugs that a second review of the log, the folders and the native client found."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

MUTANTS = (
    Mutant(
        "a log that was a compacted one is cut at its gaps", "rule 13: what was acknowledged is kept, whatever the cleanup policy is now",
        "log/segment_log.py",
        "        return self.config.compact or self.has_gaps\n",
        "        return self.config.compact\n",
        (unit("log/test_recovery.py"), unit("broker/test_compaction.py")),
    ),
    Mutant(
        "a copy does not say that it has gaps", "rule 13: what was acknowledged is kept, whatever the cleanup policy is now",
        "log/segment_log.py",
        "            self._write_unsynced(HAS_GAPS, b\"\")\n",
        "",
        (unit("log/test_recovery.py"),),
    ),
    Mutant(
        "compaction does not say that it leaves gaps", "rule 13: what was acknowledged is kept, whatever the cleanup policy is now",
        "log/compaction.py",
        "            await self.log.folder.write_atomically(HAS_GAPS, b\"\")\n",
        "",
        (unit("broker/test_compaction.py"),),
    ),
    Mutant(
        "the consumer commits a position in a topic that is gone", "a topic made again is read from its beginning",
        "client/fetcher.py",
        "            if not r.made_again and (position := self._returned",
        "            if (position := self._returned",
        (unit("client/test_fetching.py"),),
    ),
)

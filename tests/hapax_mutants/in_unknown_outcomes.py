"""Bugs about outcomes that come too late, or never, and about calls that end early."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

_DECIDING = unit("client/test_deciding.py")
_FETCHING = unit("client/test_fetching.py")

MUTANTS = (
    Mutant(
        "a decision that comes after the commit's time-out is forgotten", "an unknown outcome can be learnt",
        "client/engine.py",
        "                self.outcome.set_result(self._committed)\n",
        "                self.outcome.set_result(self._committed)\n                self.outcome = None\n",
        (_DECIDING,),
    ),
    Mutant(
        "a commit takes an abort's outcome for its own", "an unknown outcome can be learnt", "client/producer.py",
        "        if engine.outcome is None or not engine.committing:\n",
        "        if engine.outcome is None:\n",
        (_DECIDING,),
    ),
    Mutant(
        "a lookup of positions counts on its partitions", "a partition that is given up fails no other",
        "client/fetcher.py",
        "        partitions = [each for each in partitions if self._lacks_position(each)]",
        "        partitions = list(partitions)",
        (_FETCHING,),
    ),
)

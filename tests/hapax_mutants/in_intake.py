"""Bugs in the look at clients' records before a write is decided on."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import Mutant, unit

INTAKE: Final = unit("broker/test_intake.py")
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
        "    if errors:\n        first = errors[0]\n",
        "    if count > 1:\n        first = errors[0]\n",
        (INCOMING, INTAKE),
    ),
)

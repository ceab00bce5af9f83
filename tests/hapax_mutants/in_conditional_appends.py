"""Bugs in conditional appends."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import SCENARIOS, Mutant, unit

MACHINE: Final = "core/partition/machine.py"
SCOPES: Final = "core/partition/scopes.py"
REPLICA: Final = "broker/replica.py"
WAYS: Final = unit("broker/test_conditional_appends.py")
TABLE: Final = unit("core/partition/test_scopes.py")
RULE: Final = "rule 21"

MUTANTS = (
    Mutant(
        "the condition comes before the duplicate check", RULE, MACHINE,
        "        producer_id = header.producer_id\n        if context.internal:\n",
        "        producer_id = header.producer_id\n        if context.condition is not None:\n"
        "            self.scopes.check(context.condition, self.log_end_offset)\n        if context.internal:\n",
        (SCENARIOS, WAYS),
    ),
    Mutant(
        "a position beyond the end of the log counts as read", RULE, SCOPES,
        "        if expected > log_end_offset:\n",
        "        if False:\n",
        (SCENARIOS,),
    ),
    Mutant(
        "records without a scope belong to none", RULE, SCOPES,
        "        if self._tail != log_end_offset:\n            return log_end_offset\n",
        "",
        (SCENARIOS, TABLE),
    ),
    Mutant(
        "a scope is known again once another one is written to", RULE, SCOPES,
        "        if self._tail != base_offset:\n            self._ends.clear()\n            self._floor = base_offset\n",
        "",
        (TABLE,),
    ),
    Mutant(
        "the scope that is forgotten was never written to", RULE, SCOPES,
        "                self._floor = max(self._floor, self._ends.pop(next(iter(self._ends))))\n",
        "                self._ends.pop(next(iter(self._ends)))\n",
        (TABLE,),
    ),
    Mutant(
        "a marker counts as a record of every scope", RULE, MACHINE,
        "        self.scopes.control_appended(header.base_offset, header.last_offset + 1)\n",
        "",
        (SCENARIOS,),
    ),
    Mutant(
        "scopes outlive a leadership", RULE, REPLICA,
        "        self.machine.scopes.forget()\n",
        "",
        (WAYS,),
    ),
    Mutant(
        "scopes outlive a truncation", RULE, MACHINE,
        "        self.scopes.forget()\n",
        "",
        (WAYS,),
    ),
    Mutant(
        "a parked write forgets its condition", RULE, "broker/parked_writes.py",
        "ParkedWrite(bytearray(batch), call, number, local, transactional_id, produce_version, condition)",
        "ParkedWrite(bytearray(batch), call, number, local, transactional_id, produce_version)",
        (WAYS,),
    ),
    Mutant(
        "a write that is looked at forgets its condition", RULE, REPLICA,
        "                header, self.context.clock.now_ms(), self._client_context.under(condition))\n",
        "                header, self.context.clock.now_ms(), self._client_context)\n",
        (WAYS,),
    ),
    Mutant(
        "a condition that is not understood is left out", RULE, "broker/kafka_api.py",
        "                for number in range(len(request.partitions)):\n                    call.settle(number, WriteResult(unreadable.code, reason=unreadable.reason))\n                return\n",
        "                pass\n",
        (WAYS,),
    ),
)

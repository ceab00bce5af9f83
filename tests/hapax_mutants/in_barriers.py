"""Bugs in reads on which others decide: answers of a leader or a coordinator that may have been replaced (rule 23)."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, sim, unit

MUTANTS = (
    Mutant(
        "a leader that was replaced says that an offset is out of range", "rule 23", "broker/fetch.py",
        "            if refusal.code is ErrorCode.OFFSET_OUT_OF_RANGE:\n                self._check_leads(replica)\n",
        "",
        (unit("broker/test_barrier.py"), sim("1006111", "--hours 0.01 --scene groups --faults-every 15")),
    ),
    Mutant(
        "a leader that was replaced says where logs diverge", "rule 23", "broker/fetch.py",
        "                if fetched.diverging is not None:\n                    self._check_leads(replica)\n",
        "",
        (unit("broker/test_barrier.py"),),
    ),
    Mutant(
        "a leader that was replaced says where an epoch ends", "rule 23", "broker/kafka_api.py",
        "        await replica.barrier.passed()  # a client takes what lies behind the end for lost\n",
        "",
        (unit("broker/test_barrier.py"),),
    ),
    Mutant(
        "a leader tells its end from memory", "rule 23", "broker/kafka_api.py",
        "                await replica.barrier.passed()  # who is told an end takes it that nothing committed is behind it\n",
        "",
        (unit("coordinator/test_cut_off.py"), unit("broker/test_barrier.py")),
    ),
    Mutant(
        "a leader that others could replace tells its end at once", "rule 23", "broker/barrier.py",
        "        return self.partition.serving and (replication is None or replication.confirmed() == ENDLESS)\n",
        "        return self.partition.serving\n",
        (unit("coordinator/test_cut_off.py"), unit("broker/test_barrier.py")),
    ),
    Mutant(
        "a leader says from memory what producers have", "rule 23", "broker/rpc_api.py",
        "                await replica.committed(machine.log_end_offset)\n                await replica.barrier.passed()\n",
        "                await replica.committed(machine.log_end_offset)\n",
        (unit("broker/test_barrier.py"),),
    ),
    Mutant(
        "a marker is stored where memory has nothing to end", "rule 23", "broker/rpc_api.py",
        "        if repeated:\n            await asyncio.gather(*(_confirm_repeated(*each) for each in repeated))\n",
        "",
        (unit("broker/test_barrier.py"),),
    ),
    Mutant(
        "a leadership that was won back confirms what was said before", "rule 23", "broker/rpc_api.py",
        "        if replica.leader_epoch != leader_epoch:\n",
        "        if False:\n",
        (unit("broker/test_barrier.py"),),
    ),
    Mutant(
        "a fetch that was on its way confirms a leader", "rule 23", "core/partition/barrier.py",
        "        known = number - REQUESTS_AT_ONCE if read is None else min(read, number - 1)\n",
        "        known = number - 1\n",
        (unit("core/partition/test_barrier.py"),),
    ),
    Mutant(
        "a question joins a round that has left", "rule 23", "core/partition/barrier.py",
        "        if self._left:\n            self.newest += 1\n",
        "        if self._left and self.newest % 2 == 0:\n            self.newest += 1\n",
        (unit("core/partition/test_barrier.py"),),
    ),
    Mutant(
        "one replica's word is enough to lead on", "rule 23", "core/partition/replication.py",
        "        return min((member.round for member in self._members), default=ENDLESS)\n",
        "        return max((member.round for member in self._members), default=ENDLESS)\n",
        (unit("core/partition/test_barrier.py"),),
    ),
    Mutant(
        "a coordinator describes a transaction from memory", "rule 23", "coordinator/transactions.py",
        "        await self.confirm()\n        return self.machine.describe(transactional_id)\n",
        "        return self.machine.describe(transactional_id)\n",
        (unit("coordinator/test_cut_off.py"),),
    ),
    Mutant(
        "a coordinator refuses from memory", "rule 23", "coordinator/transactions.py",
        "                    await self.confirm()  # a client acts on \"fenced\" or \"aborted\" too\n",
        "                    pass\n",
        (unit("coordinator/test_cut_off.py"),),
    ),
    Mutant(
        "a repeated marker confirms the ownership of the shard", "rule 23", "coordinator/log_writer.py",
        "                self._confirm_next += confirms  # nothing was appended: the leader answered from memory\n",
        "                _resolve(confirms)\n",
        (unit("coordinator/test_log_writer.py"),),
    ),
)

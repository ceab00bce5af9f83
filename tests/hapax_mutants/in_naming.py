"""Bugs in how a transaction is named, and in how a waiting write ends (rule 24)."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, unit

MUTANTS = (
    Mutant(
        "a parked write of an ended transaction enters the next", "rule 24", "core/partition/verification.py",
        "        if marker.serial < 0:  # it",
        "        if True:  # it",
        (SCENARIOS, unit("broker/test_parked_writes.py")),
    ),
    Mutant(
        "a parked write outlives its connection", "rules 4 and 24", "broker/parked_writes.py",
        "        superseded = self.gave_way(parked)\n",
        "        superseded = None\n",
        (unit("broker/test_parked_writes.py"),),
    ),
    Mutant(
        "a marker ends version-2 writes that wait for the next transaction", "rule 24", "core/partition/verification.py",
        "ended = [parked for parked in queue.writes if parked.produce_version < FIRST_VERSION_THAT_ADDS]",
        "ended = list(queue.writes)",
        (SCENARIOS, unit("broker/test_parked_writes.py")),
    ),
    Mutant(
        "an answer may speak of a decided transaction", "rule 24", "core/partition/verification.py",
        "        if answer.error == ErrorCode.NONE and 0 <= answer.serial <= self._decided(producer_id):\n",
        "        if False:\n",
        (SCENARIOS, unit("broker/test_parked_writes.py")),
    ),
    Mutant(
        "offsets that a marker has overtaken enter the next transaction", "rule 24", "coordinator/groups.py",
        "            if self.machine.last_decided(producer_id) > decided:\n",
        "            if False:\n",
        (unit("coordinator/test_groups.py"),),
    ),
    Mutant(
        "a new leader forgets which coordinators were replaced", "rule 3", "broker/parked_writes.py",
        "        for shard, epoch in machine.marker_epochs.items():\n            self._shard_epochs.admit(shard, epoch)\n",
        "",
        (unit("broker/test_parked_writes.py"),),
    ),
    Mutant(
        "acks=1 waits for ever once the last other replica goes", "rule 25", "broker/replica.py",
        "        self._local_waiters.settle(offset)  # whether or not others have a part by now\n        if replication is not None:\n            replication.synced(offset)\n",
        "        if replication is not None:\n            self._local_waiters.settle(offset)\n            replication.synced(offset)\n",
        (unit("broker/test_replication.py"),),
    ),
    Mutant(
        "a repeated write is answered at its original's time-out", "a client waits as long as it wants",
        "broker/waiters.py",
        "            self.repeated[id(call), number] = -1\n",
        "            pass\n",
        (unit("broker/test_replication.py"),),
    ),
    Mutant(
        "a client in a hurry waits for a patient one", "a client waits as long as it wants", "broker/waiters.py",
        "        if not any(longest >= call.timeout_ms for _, call, _, _ in self):\n",
        "        if not any(longest >= call.timeout_ms for end, call, _, _ in self if end <= marks[0][1]):\n",
        (unit("broker/test_replication.py"),),
    ),
    Mutant(
        "a repeated write waits for newer ones", "rule 25", "broker/waiters.py",
        "        if not self or self[-1][0] <= end:\n",
        "        if True:\n",
        (unit("broker/test_replication.py"),),
    ),
    Mutant(
        "acks=1 waits for a replica that comes meanwhile", "rule 5", "broker/replica.py",
        "        elif not local:\n            self.waiters.append",
        "        elif not local or self.replication is None:\n            self.waiters.append",
        (unit("broker/test_replication.py"),),
    ),
    Mutant(
        "self-healing aborts what the next transaction has written", "rules 9 and 24", "core/partition/machine.py",
        "        if producer is not None and 0 <= marker.last_offset != producer.last_offset:\n",
        "        if False:\n",
        (SCENARIOS, unit("broker/test_parked_writes.py")),
    ),
    Mutant(
        "a deposed coordinator answers for a transaction that is decided elsewhere", "rule 24",
        "core/transaction/partitions.py",
        "    return request.after_serial > newest_decided\n",
        "    return False\n",
        (unit("core/transaction/test_time.py"),),
    ),
    Mutant(
        "an abort that is repeated reaches the successor", "rule 24", "core/transaction/admin.py",
        "    if request.serial and not (transaction.is_open and transaction.serial == request.serial):\n",
        "    if False:\n",
        (unit("core/transaction/test_admin.py"),),
    ),
    Mutant(
        "a winner may write on while its records are counted", "rule 6", "core/partition/machine.py",
        "            return not (transaction.verified or verified)\n",
        "            return False\n",
        (unit("broker/test_parked_writes.py"), unit("coordinator/test_tokens.py")),
    ),
    Mutant(
        "a coordinator lets a winner write on while its records are counted", "rule 6", "core/transaction/partitions.py",
        "    if context.checking:\n",
        "    if False:\n",
        (unit("coordinator/test_tokens.py"),),
    ),
    Mutant(
        "an answer from before a seal counts", "rule 6", "broker/parked_writes.py",
        "        self._verification.sealed(producer_id)\n",
        "",
        (unit("broker/test_parked_writes.py"),),
    ),
    Mutant(
        "a pass counts after its transaction's marker", "rules 3 and 24", "core/partition/verification.py",
        "            and admission.serial > self._decided(header.producer_id)\n",
        "",
        (unit("broker/test_write_passes.py"),),
    ),
    Mutant(
        "a pass of a replaced coordinator counts", "rule 3", "core/partition/verification.py",
        "            and self._epochs.admit(admission.shard, admission.shard_epoch)\n",
        "",
        (unit("broker/test_write_passes.py"),),
    ),
    Mutant(
        "a pass unseals a winner whose records are being counted", "rule 6", "broker/parked_writes.py",
        "        return producer is None or producer.txn_first_offset < 0\n",
        "        return True\n",
        (unit("broker/test_write_passes.py"),),
    ),
    Mutant(
        "a pass counts long after its transaction", "rule 3: the partition forgets markers",
        "core/partition/verification.py",
        "            and abs(now_ms - admission.issued_ms) <= min(LONGEST_ADMISSION_MS, expiry_ms // 2)\n",
        "",
        (unit("broker/test_write_passes.py"),),
    ),
    Mutant(
        "a pass counts after the partition has forgotten its producer", "rule 3: a short producer.id.expiration.ms",
        "core/partition/verification.py",
        "            and abs(now_ms - admission.issued_ms) <= min(LONGEST_ADMISSION_MS, expiry_ms // 2)\n",
        "            and abs(now_ms - admission.issued_ms) <= LONGEST_ADMISSION_MS\n",
        (unit("broker/test_write_passes.py"),),
    ),
    Mutant(
        "clients make passes themselves", "rule 17", "wire/write_pass.py",
        "    if session is None or not hmac.compare_digest(\n"
        "        content[_CONTENT.size :], _mac(signed, transactional_id, session)\n"
        "    ):\n",
        "    if session is None:\n",
        (unit("wire/test_write_pass.py"), unit("broker/test_write_passes.py")),
    ),
    Mutant(
        "a pass is given for a partition that is not registered", "rule 3: no marker would come",
        "core/transaction/multiwriter.py",
        "        registered=request.partition is not None and request.partition in member.partitions,\n",
        "        registered=request.partition is not None,\n",
        (unit("core/transaction/test_multiwriter.py"),),
    ),
    Mutant(
        "a task without rows makes its driver the live one", "rule 6: a former driver ends the live one's transaction",
        "core/transaction/multiwriter.py",
        "    newest = bool(run) and run not in transaction.runs and not request.tentative\n",
        "    newest = bool(run) and run not in transaction.runs\n",
        (unit("core/transaction/test_token_identity.py"),),
    ),
    Mutant(
        "rows do not make a driver the live one if its task has joined before", "rule 6",
        "core/transaction/multiwriter.py",
        "        if newest:\n",
        "        if False:\n",
        (unit("core/transaction/test_token_identity.py"),),
    ),
    Mutant(
        "a new leader takes what is open for verified", "rules 6 and 24", "broker/parked_writes.py",
        "        machine.seal_all()\n",
        "",
        (unit("broker/test_parked_writes.py"),),
    ),
    Mutant(
        "a question that was held is answered about the next transaction", "rule 24", "core/transaction/partitions.py",
        "    if 0 <= request.serial < transaction.serial:\n",
        "    if False:\n",
        (unit("core/transaction/test_time.py"), unit("coordinator/test_transactions.py")),
    ),
    Mutant(
        "a question to a shard that is loading ends in an exception", "rule 24", "coordinator/rpc_api.py",
        "            shard.check_serving()  # the question names the transaction that is the id's now\n",
        "",
        (unit("coordinator/test_transactions.py"),),
    ),
    Mutant(
        "a question is not named when it comes", "rule 24", "coordinator/rpc_api.py",
        "                serial=shard.machine.serial_of(request.transactional_id),\n",
        "",
        (unit("coordinator/test_transactions.py"),),
    ),
)

"""Bugs in two-phase commit (KIP-939): each loses or doubles what another system decides, or leaves it undecided."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, unit

_TESTS = (SCENARIOS, unit("core/transaction/test_two_phase.py"))

MUTANTS = (
    Mutant(
        "a prepared transaction is aborted by its time-out", "KIP-939", "core/transaction/steps.py",
        "    return replace(begun, limit_ms=NO_LIMIT) if transaction.two_phase else begun\n",
        "    return begun\n",
        _TESTS,
    ),
    Mutant(
        "a transaction that is kept is aborted", "KIP-939", "core/transaction/single_writer.py",
        "    outcome = TABLE[transaction.state, Event.KEEP if request.keep_prepared else Event.INITIALIZE]\n",
        "    outcome = TABLE[transaction.state, Event.INITIALIZE]\n",
        _TESTS,
    ),
    Mutant(
        "a kept transaction keeps the limit that its holder gives up", "KIP-939", "core/transaction/two_phase.py",
        "        limit_ms=NO_LIMIT if two_phase else transaction.limit_ms,\n",
        "        limit_ms=transaction.limit_ms,\n",
        _TESTS,
    ),
    Mutant(
        "the next holder gives a prepared transaction a limit", "KIP-939", "core/transaction/two_phase.py",
        "        limit_ms=NO_LIMIT if two_phase else transaction.limit_ms,\n",
        "        limit_ms=NO_LIMIT if two_phase else request.timeout_ms,\n",
        _TESTS,
    ),
    Mutant(
        "a zombie ends the transaction that its successor has kept", "KIP-939", "core/transaction/record.py",
        "        if self.is_kept:\n            return ProducerIdentity(self.next_producer_id, self.next_producer_epoch)\n",
        "        if self.is_kept and not self.is_open:\n            return ProducerIdentity(self.next_producer_id, self.next_producer_epoch)\n",
        _TESTS,
    ),
    Mutant(
        "a holder adds records to what was prepared", "KIP-939", "core/transaction/partitions.py",
        "    if transaction.is_open and transaction.is_kept:\n",
        "    if False:\n",
        _TESTS,
    ),
    Mutant(
        "markers of a kept transaction carry its holder's epoch", "KIP-939", "core/transaction/steps.py",
        "            producer_epoch=ProducerEpoch(transaction.producer_epoch + 1),\n            last_producer_epoch=holder",
        "            producer_epoch=ProducerEpoch(holder.producer_epoch + 1),\n            last_producer_epoch=holder",
        _TESTS,
    ),
    Mutant(
        "the decision of a kept transaction leaves its holder's epoch as it is", "KIP-939", "core/transaction/steps.py",
        "            next_producer_epoch=FIRST_EPOCH if rotated else ProducerEpoch(holder.producer_epoch + 1),\n",
        "            next_producer_epoch=FIRST_EPOCH if rotated else holder.producer_epoch,\n",
        _TESTS,
    ),
    Mutant(
        "the epochs of a kept transaction's holders have no end", "KIP-939", "core/transaction/record.py",
        "        return self.identity.producer_epoch >= LAST_EPOCH\n",
        "        return self.producer_epoch >= LAST_EPOCH\n",
        _TESTS,
    ),
    Mutant(
        "a kept transaction's holder starts over at epoch 0 after the decision", "KIP-939", "core/transaction/steps.py",
        "    if done.is_kept:\n        return _passed_on(done)\n",
        "",
        _TESTS,
    ),
    Mutant(
        "the retry of a kept transaction's decision is not known", "KIP-939", "core/transaction/steps.py",
        "            previous_producer_id=holder.producer_id,\n",
        "            previous_producer_id=NO_PRODUCER_ID,\n",
        _TESTS,
    ),
    Mutant(
        "a timer that fired while a limit went holds the id for ever", "KIP-939", "core/transaction/machine.py",
        "                progress.overdue = False\n                if progress.timer_at",
        "                if progress.timer_at",
        _TESTS,
    ),
    Mutant(
        "a micro-batch aborts a prepared transaction", "KIP-939", "core/transaction/multiwriter.py",
        "    if transaction.has_no_limit:\n",
        "    if False:\n",
        _TESTS,
    ),
    Mutant(
        "two-phase commit ends with the first micro-batch", "KIP-939", "core/transaction/steps.py",
        "    return replace(begun, limit_ms=NO_LIMIT) if transaction.two_phase else begun\n",
        "    return replace(begun, limit_ms=NO_LIMIT) if transaction.two_phase and not transaction.idle_members else begun\n",
        _TESTS,
    ),
    Mutant(
        "an operator commits whichever transaction is open", "KIP-939", "core/transaction/two_phase.py",
        "    if transaction.serial != request.serial or not transaction.is_open:\n",
        "    if not transaction.is_open:\n",
        _TESTS,
    ),
    Mutant(
        "an operator commits what its producer is still writing", "KIP-939", "core/transaction/two_phase.py",
        "    if not transaction.has_no_limit:\n",
        "    if False:\n",
        _TESTS,
    ),
    Mutant(
        "two-phase commit asks for no permission", "KIP-939", "core/transaction/two_phase.py",
        "    if not context.limits.two_phase_commit:\n",
        "    if False:\n",
        _TESTS,
    ),
    Mutant(
        "an older release reads what is under two-phase commit", "KIP-939", "codec/transaction_log.py",
        "    if transaction.two_phase or transaction.is_kept or transaction.has_no_limit:\n",
        "    if False:\n",
        (unit("codec/test_transaction_log.py"),),
    ),
    Mutant(
        "the release before reads what is under two-phase commit", "KIP-939", "codec/transaction_log.py",
        "        return TWO_PHASE_VERSION\n",
        "        return WHOLE_VERSION\n",
        (unit("codec/test_transaction_log.py"),),
    ),
    Mutant(
        "InitProducerId forgets to keep", "KIP-939", "kafka/api/init_producer_id.py",
        "            keep_prepared=two_phase and request.keep_prepared_txn,\n",
        "",
        (unit("kafka/test_coordinator_apis.py"), unit("coordinator/test_two_phase.py")),
    ),
    Mutant(
        "a producer aborts what is prepared when its commit is refused", "KIP-939", "core/producer/machine.py",
        "        undecided = self.prepared is None  #",
        "        undecided = True  #",
        (SCENARIOS, unit("client/test_two_phase.py")),
    ),
    Mutant(
        "a block that raises aborts what it has prepared", "KIP-939", "client/producer.py",
        "            if self._machine.state is not State.FATAL_ERROR and self._machine.prepared is None:\n",
        "            if self._machine.state is not State.FATAL_ERROR:\n",
        (unit("client/test_two_phase.py"),),
    ),
    Mutant(
        "a producer goes on without limits that are not allowed any more", "KIP-939", "core/transaction/partitions.py",
        "            check_no_limit(context)\n",
        "            pass\n",
        (unit("core/transaction/test_two_phase.py"),),
    ),
)

"""Bugs in the transaction and group coordinators."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, explore, sim, unit

MUTANTS = (
    Mutant(
        "the epoch does not rise with the decision", "KAFKA-17754", "core/transaction_steps.py",
        "        producer_epoch=ProducerEpoch(transaction.producer_epoch + 1),\n        last_producer_epoch=last,",
        "        producer_epoch=ProducerEpoch(transaction.producer_epoch + (0 if by_itself else 1)),\n"
        "        last_producer_epoch=last,",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "a delayed EndTxn decides the next transaction", "KAFKA-17754", "core/transaction_fencing.py",
        "    if producer_id == identity.producer_id and producer_epoch == identity.producer_epoch:",
        "    if producer_id == identity.producer_id:",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "an end that races the last teardown succeeds", "ydb#52731", "core/transaction_states.py",
        "    Event.COMMIT_AGAIN: (_FENCED,  _FENCED,   _HOLD,          _INVALID,      _ANSWER,         _INVALID),",
        "    Event.COMMIT_AGAIN: (_FENCED,  _FENCED,   _ANSWER,        _ANSWER,       _ANSWER,         _ANSWER),",
        (SCENARIOS, unit("core/test_transaction_table.py")),
    ),
    Mutant(
        "an empty abort fences its own producer", "KAFKA-18464", "core/transaction_states.py",
        "    Event.ABORT_V2:     (_ABORT,   _P_ABORT,  _HOLD,          _HOLD,         _ABORT,          _ABORT),",
        "    Event.ABORT_V2:     (_FENCED,  _P_ABORT,  _HOLD,          _HOLD,         _FENCED,         _FENCED),",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a new transaction begins while markers are under way", "transactions", "core/transaction_states.py",
        "    Event.ADD:          (_OPEN,    _OPEN,     _HOLD,          _HOLD,         _OPEN,           _OPEN),",
        "    Event.ADD:          (_OPEN,    _OPEN,     _OPEN,          _OPEN,         _OPEN,           _OPEN),",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "initialising does not abort what is open", "fencing", "core/transaction_states.py",
        "    Event.INITIALIZE:   (_EMPTY,   _FENCE,    _HOLD,          _HOLD,         _EMPTY,          _EMPTY),",
        "    Event.INITIALIZE:   (_EMPTY,   _EMPTY,    _HOLD,          _HOLD,         _EMPTY,          _EMPTY),",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "initialising does not raise the epoch", "fencing", "core/transaction_producer.py",
        "        return _initialized(raise_epoch(transaction, by_itself=recovers is not None), request, context)",
        "        return _initialized(transaction, request, context)",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "completion does not wait for every marker", "rule 2", "core/transaction.py",
        "        if unmarked:\n            return MarkersProgress(None, only(markers_of(transaction), failed))",
        "        if failed:\n            return MarkersProgress(None, only(markers_of(transaction), failed))",
        (explore("two-partitions"), sim(), SCENARIOS),
    ),
    Mutant(
        "a refused marker counts as stored", "transactions", "core/transaction_markers.py",
        "_DONE = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID})",
        "_DONE = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NETWORK_EXCEPTION,"
        " ErrorCode.NOT_LEADER_OR_FOLLOWER})",
        (explore("two-partitions"), sim(), SCENARIOS),
    ),
    Mutant(
        "a deleted topic blocks its transactions for ever", "rule 10", "core/transaction_markers.py",
        "_DONE = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID})",
        "_DONE = frozenset({ErrorCode.NONE})",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a take-over forgets decided transactions", "transactions", "core/transaction.py",
        "            self._unmarked[transactional_id] = unmarked_by(markers)\n            yield markers\n",
        "            self._unmarked[transactional_id] = unmarked_by(markers)\n"
        "            if transactional_id in self._began:\n                yield markers\n",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "the answer leaves before the decision is stored", "decide, persist, replay", "coordinator/transactions.py",
        "                    await self.persist(answer.record)\n                elif",
        "                    self.persist(answer.record)\n                elif",
        (sim(), unit("coordinator")),
    ),
    Mutant(
        "two records of an id are decided at once", "one record at a time", "core/transaction.py",
        "        if transactional_id in self._pending or transactional_id in self._overdue:\n            return context.hold",
        "        if transactional_id in self._overdue:\n            return context.hold",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "transactions have no limit", "rule 14", "core/transaction_timeouts.py",
        "    if context.elapsed_ms < transaction.limit_ms:\n        return None\n",
        "    if context.elapsed_ms < 1000 * transaction.limit_ms:\n        return None\n",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "the limit begins anew at every take-over", "rule 14", "core/transaction.py",
        "transactional_id, Millis(now.monotonic - transaction.elapsed_ms)\n",
        "transactional_id, Millis(now.monotonic)\n",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "every owner of a shard bears the same epoch", "rule 1", "coordinator/shard.py",
        "    return ShardEpoch(assigned << INCARNATION_BITS | incarnation)",
        "    return ShardEpoch(0)",
        (unit("coordinator/test_transactions.py"), sim()),
    ),
    Mutant(
        "a shard that lost an append goes on as if nothing was", "decide, persist, replay",
        "coordinator/log_writer.py",
        '            self.give_up(f"append answered {ErrorCode(code).name} {reason}")\n            return\n',
        "            for unit in sent:\n                unit.refused(ErrorCode(code), reason)\n            self._sent = []\n",
        (unit("coordinator/test_log_writer.py"), sim()),
    ),
    Mutant(
        "offsets are shown before their transaction commits", "offsets in transactions", "core/group.py",
        "        opened.offsets[key] = _Stored(record.value, log_offset)\n",
        "        opened.offsets[key] = _Stored(record.value, log_offset)\n"
        "        self._groups[record.group].committed[record.partition] = opened.offsets[key]\n",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "an aborted transaction commits its offsets", "offsets in transactions", "core/group.py",
        "                if marker.commit and stored.log_offset > group.superseded_at(partition):",
        "                if stored.log_offset > group.superseded_at(partition):",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "pending offsets stay pending", "redpanda#6423: UNSTABLE_OFFSET_COMMIT for ever", "core/group.py",
        "                group.settle(partition)\n                self._drop_if_empty(name, group)\n",
        "                self._drop_if_empty(name, group)\n",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a consumer reads an offset that is about to change", "offsets in transactions", "core/group.py",
        "            if require_stable and partition in group.pending:",
        "            if False and partition in group.pending:",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "offsets markers go past their group shard", "rule 2", "coordinator/markers.py",
        "        offsets = partition.topic == OFFSETS_TOPIC\n",
        "        offsets = False\n",
        (unit("coordinator/test_offsets.py"), sim()),
    ),
    Mutant(
        "live offsets differ from those of the log", "redpanda#31483", "coordinator/groups.py",
        "            transactional = header.is_transactional\n            self._replay(",
        "            transactional = False\n            self._replay(",
        (unit("coordinator/test_offsets.py"), sim()),
    ),
    Mutant(
        "a late offsets commit joins the decided transaction", "rule 3", "core/group.py",
        "        return decided is not None and 0 <= serial <= decided.serial",
        "        return False",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "an older connection still speaks", "rule 4", "core/connection_fencing.py",
        "            if producer_epoch == known[1] and connection < known[2]:",
        "            if producer_epoch == known[1] and connection < 0:",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "connections from before the load are believed", "rule 4", "core/connection_fencing.py",
        "        if 0 <= connection <= self._newest_at_load:",
        "        if 0 <= connection < 0:",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "losers are committed with the winners", "rule 6", "core/transaction_markers.py",
        "        lost = tuple(partition for partition in member.partitions if partition not in member.won)\n"
        "        for outcome, partitions in ((True, member.won), (False, lost)):",
        "        lost = tuple(partition for partition in member.partitions if partition not in member.won)\n"
        "        for outcome, partitions in ((True, member.won), (commit, lost)):",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "missing records of a winner are not missed", "rule 6", "core/transaction_multiwriter.py",
        "    if missing:\n        raise _missing_records(missing)\n",
        "",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "joining after the decision", "rule 6", "core/transaction_partitions.py",
        "    if member is None or member.producer_epoch != request.producer_epoch or not transaction.is_open:",
        "    if member is None or member.producer_epoch != request.producer_epoch:",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "members' epochs are not raised", "rule 6", "core/transaction_steps.py",
        "        ProducerIdentity(member.producer_id, ProducerEpoch(member.producer_epoch + 1))\n        for member",
        "        ProducerIdentity(member.producer_id, member.producer_epoch)\n        for member",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a replayed token commits again", "rule 7", "core/transaction_tokens.py",
        "    return newest if newest is not None and token.value <= newest.value else None",
        "    return newest if newest is not None and token.value < newest.value else None",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "an abort stores its token", "rule 7", "core/transaction_multiwriter.py",
        "    record = decide(transaction, context, commit=False)\n    return Decision(record, Ended(EndOutcome.ABORTED, _NOBODY",
        "    record = decide(transaction, context, commit=False,\n"
        "                    token=committed_now(transaction, request, context))\n"
        "    return Decision(record, Ended(EndOutcome.ABORTED, _NOBODY",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a replay with another number of records passes", "rule 7", "core/transaction_tokens.py",
        "    if request.token.value < newest.value or request.record_count == newest.record_count:",
        "    if request.token.value <= newest.value:",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a token without history is welcome", "rule 7", "core/transaction_tokens.py",
        "    if token.value > 0 and not request.allow_unknown_history:",
        "    if token.value < 0 and not request.allow_unknown_history:",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "answers on which others decide are not confirmed", "rule 12", "coordinator/transactions.py",
        "                elif answer.confirm:\n                    await self.confirm()\n",
        "",
        (unit("coordinator/test_tokens.py"), sim()),
    ),
    Mutant(
        "self-healing ends a living transaction", "rule 9", "core/transaction_markers.py",
        "        if not past and _includes(transaction, request.producer_id, request.partition):",
        "        if not past and _includes(transaction, -9, request.partition):",
        (SCENARIOS, unit("core")),
    ),
)

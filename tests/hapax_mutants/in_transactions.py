"""Bugs in the transaction and group coordinators."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, explore, sim, unit

HISTORIES = (unit("core/transaction/test_token_histories.py"), unit("core/transaction/test_token_identity.py"))

MUTANTS = (
    Mutant(
        "the epoch does not rise with the decision", "KAFKA-17754", "core/transaction/steps.py",
        "        producer_epoch=ProducerEpoch(transaction.producer_epoch + 1),\n        last_producer_epoch=last,",
        "        producer_epoch=ProducerEpoch(transaction.producer_epoch + (0 if by_itself else 1)),\n"
        "        last_producer_epoch=last,",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "a delayed EndTxn decides the next transaction", "KAFKA-17754", "core/transaction/fencing.py",
        "    if producer_id == identity.producer_id and producer_epoch == identity.producer_epoch:",
        "    if producer_id == identity.producer_id:",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "an end that races the last teardown succeeds", "ydb#52731", "core/transaction/states.py",
        "    Event.COMMIT_AGAIN: (_FENCED,  _FENCED,   _HOLD,          _INVALID,      _ANSWER,         _INVALID),",
        "    Event.COMMIT_AGAIN: (_FENCED,  _FENCED,   _ANSWER,        _ANSWER,       _ANSWER,         _ANSWER),",
        (SCENARIOS, unit("core/transaction/test_table.py")),
    ),
    Mutant(
        "an empty abort fences its own producer", "KAFKA-18464", "core/transaction/states.py",
        "    Event.ABORT_V2:     (_ABORT,   _P_ABORT,  _HOLD,          _HOLD,         _ABORT,          _ABORT),",
        "    Event.ABORT_V2:     (_FENCED,  _P_ABORT,  _HOLD,          _HOLD,         _FENCED,         _FENCED),",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a new transaction begins while markers are under way", "transactions", "core/transaction/states.py",
        "    Event.ADD:          (_OPEN,    _OPEN,     _HOLD,          _HOLD,         _OPEN,           _OPEN),",
        "    Event.ADD:          (_OPEN,    _OPEN,     _OPEN,          _OPEN,         _OPEN,           _OPEN),",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "initialising does not abort what is open", "fencing", "core/transaction/states.py",
        "    Event.INITIALIZE:   (_EMPTY,   _FENCE,    _HOLD,          _HOLD,         _EMPTY,          _EMPTY),",
        "    Event.INITIALIZE:   (_EMPTY,   _EMPTY,    _HOLD,          _HOLD,         _EMPTY,          _EMPTY),",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "initialising does not raise the epoch", "fencing", "core/transaction/single_writer.py",
        "        return _initialized(raise_epoch(transaction, by_itself=recovers is not None), request, context)",
        "        return _initialized(transaction, request, context)",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "completion does not wait for every marker", "rule 2", "core/transaction/machine.py",
        "        if unmarked:\n            return MarkersProgress(None, only(",
        "        if failed:\n            return MarkersProgress(None, only(",
        (explore("two-partitions"), sim(), SCENARIOS),
    ),
    Mutant(
        "a refused marker counts as stored", "transactions", "core/transaction/markers.py",
        "_DONE = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID})",
        "_DONE = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NETWORK_EXCEPTION,"
        " ErrorCode.NOT_LEADER_OR_FOLLOWER})",
        (explore("two-partitions"), sim(), SCENARIOS),
    ),
    Mutant(
        "a deleted topic blocks its transactions for ever", "rule 10", "core/transaction/markers.py",
        "_DONE = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID})",
        "_DONE = frozenset({ErrorCode.NONE})",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a take-over forgets decided transactions", "transactions", "core/transaction/machine.py",
        "            progress.unmarked = unmarked_by(markers)\n            yield markers\n",
        "            progress.unmarked = unmarked_by(markers)\n"
        "            if progress.began is not None:\n                yield markers\n",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "the answer leaves before the decision is stored", "decide, persist, replay", "coordinator/transactions.py",
        "                        await self.persist(answer.record, request.caller)\n                    elif",
        "                        self.persist(answer.record, request.caller)\n                    elif",
        (sim(), unit("coordinator")),
    ),
    Mutant(
        "two records of an id are decided at once", "one record at a time", "core/transaction/machine.py",
        "        if self._in_progress.get(transactional_id, _AT_REST).holds_calls:\n            return context.hold",
        "        if self._in_progress.get(transactional_id, _AT_REST).overdue:\n            return context.hold",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "transactions have no limit", "rule 14", "core/transaction/timeouts.py",
        "    if context.elapsed_ms < transaction.limit_ms:\n        return None\n",
        "    if context.elapsed_ms < 1000 * transaction.limit_ms:\n        return None\n",
        (SCENARIOS, sim()),
    ),
    Mutant(
        "the time limit restarts at every take-over", "rule 14", "core/transaction/machine.py",
        "progress.began = Millis(now.monotonic - transaction.elapsed_ms)\n",
        "progress.began = Millis(now.monotonic)\n",
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
        "offsets are shown before their transaction commits", "offsets in transactions", "core/group/offsets.py",
        "        opened.offsets[key] = _Stored(record.value, log_offset)\n",
        "        opened.offsets[key] = _Stored(record.value, log_offset)\n"
        "        self._groups[record.group].committed[record.partition] = opened.offsets[key]\n",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "an aborted transaction commits its offsets", "offsets in transactions", "core/group/offsets.py",
        "                if marker.commit and stored.log_offset > group.superseded_at(partition):",
        "                if stored.log_offset > group.superseded_at(partition):",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "pending offsets stay pending", "redpanda#6423: UNSTABLE_OFFSET_COMMIT for ever", "core/group/offsets.py",
        "                group.settle(partition)\n                self._drop_if_empty(name, group)\n",
        "                self._drop_if_empty(name, group)\n",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a consumer reads an offset that is about to change", "offsets in transactions", "core/group/offsets.py",
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
        "a late offsets commit joins the decided transaction", "rule 3", "core/group/offsets.py",
        "        return decided is not None and 0 <= serial <= decided.serial",
        "        return False",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "an older connection still speaks", "rule 4", "core/transaction/connection_fencing.py",
        "            if producer_epoch == known[1] and connection < known[2]:",
        "            if producer_epoch == known[1] and connection < 0:",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "connections from before the load are believed", "rule 4", "core/transaction/connection_fencing.py",
        "        if 0 <= connection <= self._newest_at_load:",
        "        if 0 <= connection < 0:",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a later leadership believes connections from before it", "rule 4", "broker/partitions.py",
        "first = replica.leader_epoch < 0 and record.leader_epoch == 0 and log_end == 0",
        "first = True",
        (unit("broker/test_partitions.py"),),
    ),
    Mutant(
        "a topic that is made again believes connections from before its former one's end", "rule 4",
        "broker/partitions.py",
        "self._newest_at_end if first else",
        "-1 if first else",
        (unit("broker/test_partitions.py"),),
    ),
    Mutant(
        "losers are committed with the winners", "rule 6", "core/transaction/markers.py",
        "in ((True, member.won), (False, member.partitions - member.won)):",
        "in ((True, member.won), (commit, member.partitions - member.won)):",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "missing records of a winner are not missed", "rule 6", "core/transaction/multiwriter.py",
        "    if request.missing:\n        raise _missing_records(request.missing)\n",
        "",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "joining after the decision", "rule 6", "core/transaction/partitions.py",
        "    if member is None or member.producer_epoch != request.producer_epoch or not transaction.is_open:",
        "    if member is None or member.producer_epoch != request.producer_epoch:",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "members' epochs are not raised", "rule 6", "core/transaction/steps.py",
        "        ProducerIdentity(member.producer_id, ProducerEpoch(member.producer_epoch + 1))\n        for member",
        "        ProducerIdentity(member.producer_id, member.producer_epoch)\n        for member",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "a replayed token commits again", "rule 7", "core/transaction/tokens.py",
        "    if value > newest.value:",
        "    if value >= newest.value:",
        (sim(), SCENARIOS),
    ),
    Mutant(
        "an abort stores its token", "rule 7", "core/transaction/multiwriter.py",
        "        record = decide(transaction, context, commit=False)\n"
        "        return Decision(record, Ended(EndOutcome.ABORTED, _NOBODY",
        "        record = decide(transaction, context, commit=False,\n"
        "                        token=committed_now(transaction, token, request, context))\n"
        "        return Decision(record, Ended(EndOutcome.ABORTED, _NOBODY",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a batch write's id is kept for a year", "rule 7", "core/transaction/timeouts.py",
        "        keep = limits.single_use_keep_ms",
        "        keep = limits.token_id_expiration_ms",
        (unit("core/transaction/test_time.py"),),
    ),
    Mutant(
        "a batch write that is asked for again finds nothing", "rule 7", "core/transaction/steps.py",
        "    since = newest.committed_at_ms - limits.single_use_keep_ms",
        "    since = newest.committed_at_ms",
        (unit("core/transaction/test_multiwriter.py"),),
    ),
    Mutant(
        "a replay with another number of records passes", "rule 7", "core/transaction/tokens.py",
        "    if request.record_count != newest.record_count and not request.allow_other_count:",
        "    if request.record_count < 0 and not request.allow_other_count:",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a token without history is welcome", "rule 7", "core/transaction/tokens.py",
        "    if (token.value > 0 or request.work",
        "    if (token.value < 0 or request.work",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a batch older than the newest is taken for committed", "rule 7", "core/transaction/tokens.py",
        "    if value < newest.value:\n        raise TokenConflict(",
        "    if value < 0:\n        raise TokenConflict(",
        HISTORIES,
    ),
    Mutant(
        "a scope takes anybody's commits for its own", "rule 7", "core/transaction/tokens.py",
        "    if newest.owner and newest.owner != work.owner:",
        "    if newest.owner and not work.owner:",
        HISTORIES,
    ),
    Mutant(
        "the newest commit is confirmed for other work", "rule 7", "core/transaction/tokens.py",
        "    if not request.work.allow_other_work and not _is_same(newest, request.work):",
        "    if not request.work.owner and not _is_same(newest, request.work):",
        HISTORIES,
    ),
    Mutant(
        "commits between two batches may be missing", "rule 7", "core/transaction/tokens.py",
        "    if newest.base + work.follows != newest.value:",
        "    if newest.base + work.follows < newest.value:",
        HISTORIES,
    ),
    Mutant(
        "who goes on from a commit may leave out others of its own", "rule 7", "core/transaction/tokens.py",
        "        if work.follows is None or request.allow_unknown_history:\n            return onward",
        "        return onward",
        (unit("core/transaction/test_token_identity.py"),),
    ),
    Mutant(
        "a batch follows whatever bears the number before", "rule 7", "core/transaction/tokens.py",
        "    if _agree(newest, work.followed) is False:",
        "    if False:",
        HISTORIES,
    ),
    Mutant(
        "an older copy leaves out what was marked as done by hand", "rule 7", "core/transaction/tokens.py",
        "            _check_past(newest, token, work)\n",
        "            pass\n",
        (unit("core/transaction/test_token_identity.py"),),
    ),
    Mutant(
        "the commits before the newest are forgotten", "rule 7", "core/transaction/tokens.py",
        "    return (newest.past + added)[",
        "    return added[",
        (unit("core/transaction/test_token_identity.py"),),
    ),
    Mutant(
        "a former driver's abort ends the live one's transaction", "rule 7", "core/transaction/multiwriter.py",
        "        and request.serial in (NO_TRANSACTION, transaction.serial)\n        and _is_live(transaction, request)\n",
        "        and request.serial in (NO_TRANSACTION, transaction.serial)\n",
        (unit("core/transaction/test_token_identity.py"),),
    ),
    Mutant(
        "a former driver's empty batch drops what the live one writes", "rule 7", "core/transaction/multiwriter.py",
        "    if not request.winners and not _is_live(transaction, request):",
        "    if request.winners and not _is_live(transaction, request):",
        (unit("core/transaction/test_token_identity.py"),),
    ),
    Mutant(
        "answers on which others decide are not confirmed", "rule 12", "coordinator/transactions.py",
        "                    elif answer.confirm:\n                        await self.confirm()\n",
        "",
        (unit("coordinator/test_tokens.py"), sim()),
    ),
    Mutant(
        "self-healing ends a living transaction", "rule 9", "core/transaction/markers.py",
        "        if not past and _includes(transaction, request.producer_id, request.partition):",
        "        if not past and _includes(transaction, -9, request.partition):",
        (SCENARIOS, unit("core")),
    ),
    Mutant(
        "a take-over forgets what members have registered", "deltas", "core/transaction/machine.py",
        "            if transaction is not None and belongs(record, transaction):",
        "            if transaction is not None and belongs(record, transaction) and self._in_progress:",
        (explore("members"), sim(), unit("core/transaction/test_deltas.py")),
    ),
    Mutant(
        "a decision leaves out what members are writing", "deltas", "core/transaction/machine.py",
        "        return self._current(transactional_id) if deltas is None else deltas.transaction",
        "        return self._current(transactional_id)",
        (explore("members"), unit("core/transaction/test_deltas.py")),
    ),
    Mutant(
        "a member's registration is confirmed before it is stored", "deltas", "core/transaction/partitions.py",
        "    if context.is_under_way(member.producer_id):",
        "    if False:",
        (unit("core/transaction/test_deltas.py"),),
    ),
    Mutant(
        "what the log refused of a member is kept", "deltas", "core/transaction/deltas.py",
        "        self.transaction = durable\n",
        "",
        (unit("core/transaction/test_deltas.py"),),
    ),
    Mutant(
        "expired ids leave their members' records behind", "deltas", "codec/transaction_log.py",
        "    return (encode_key(record.transactional_id), None), *deltas",
        "    return ((encode_key(record.transactional_id), None),)",
        (unit("core/transaction/test_deltas.py"),),
    ),
    Mutant(
        "a delta says only what is new", "deltas", "core/transaction/partitions.py",
        "        member=replace(member, partitions=member.partitions | wanted),",
        "        member=replace(member, partitions=wanted),",
        (explore("members"), unit("core/transaction/test_deltas.py"), SCENARIOS),
    ),
    Mutant(
        "an older release reads an open multi-writer transaction", "deltas", "codec/transaction_log.py",
        "    if transaction.is_multi_writer or any(token.base",
        "    if any(token.base",
        (unit("codec/test_transaction_log.py"),),
    ),
    Mutant(
        "an older release reads tokens that their owner does not count from 0", "rule 7", "codec/transaction_log.py",
        " or any(token.base for token in transaction.tokens)",
        "",
        (unit("codec/test_transaction_log.py"),),
    ),
    Mutant(
        "a delta stands beside a record that an older release reads", "deltas", "codec/transaction_log.py",
        "        takes_deltas=version >= WHOLE_VERSION or not opened,",
        "        takes_deltas=True,",
        (unit("core/transaction/test_deltas.py"),),
    ),
    Mutant(
        "the timer of a renewal that the log refused stays", "deltas", "core/transaction/machine.py",
        "            return list(self._effects_due(self.transactions[record.transactional_id], now))",
        "            return []",
        (unit("core/transaction/test_deltas.py"),),
    ),
    Mutant(
        "members' keys have no bound", "deltas", "core/transaction/multiwriter.py",
        "    if size > LONGEST_MEMBER_KEY_BYTES:",
        "    if False:",
        (unit("core/transaction/test_deltas.py"),),
    ),
)

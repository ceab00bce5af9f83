"""Bugs in groups of the classic protocol."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, unit

CLASSIC = "core/group/classic.py"
ROUNDS = "core/group/rounds.py"
ROSTER = "core/group/roster.py"
PROPERTIES = unit("core/group/test_classic_properties.py")

MUTANTS = (
    Mutant(
        "members of a classic group take any memory", "bounded memory", "core/group/classic.py",
        " or not self._has_memory(request, member):",
        ":",
        (unit("core/group/test_classic.py"),),
    ),
    Mutant(
        "ids that were handed out take any memory", "bounded memory", "core/group/roster.py",
        "        self[member_id] = deadline\n        self.bytes += MEMBER_BYTES + len(member_id)",
        "        self[member_id] = deadline",
        (unit("core/group/test_classic.py"),),
    ),
    Mutant(
        "classic: an assignment that was not stored is handed out", "decide, persist, replay", CLASSIC,
        "            self._refuse_syncs(code, now, outcome)\n            self._begin_round(now, outcome)\n",
        "            return self.stored(now)\n",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: an assignment is handed out before its record is stored", "decide, persist, replay", CLASSIC,
        "            self._write(value, Assigned(), outcome)\n",
        "            given = dict(request.assignments)\n"
        "            for each in self._roster:\n"
        "                if each.syncing is not None:\n"
        "                    each.assignment = given.get(each.member_id, b\"\")\n"
        "                    outcome.answers.append((each.syncing, self._assignment(each)))\n"
        "                    each.syncing = None\n"
        "            self._write(value, Assigned(), outcome)\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "classic: a transaction of a former generation commits positions", "KIP-447", CLASSIC,
        "        if generation != self._generation:\n            raise Refusal(ErrorCode.ILLEGAL_GENERATION, f\"the group",
        "        if generation != self._generation and not transactional:\n            raise Refusal(ErrorCode.ILLEGAL_GENERATION, f\"the group",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: a static member is replaced before its record is stored", "KIP-345", CLASSIC,
        "        if keeps and not self._was_to_give_up(former):\n",
        "        if keeps and not self._was_to_give_up(former):\n"
        "            roster.replace(former, member)\n            former = member\n",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: the process before a static member's restart is not fenced", "KIP-345", ROUNDS,
        "            if static is not member:\n                return ErrorCode.FENCED_INSTANCE_ID\n",
        "",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: a leader that starts again assigns in a stable group", "KIP-814", CLASSIC,
        "skip_assignment=leads)",
        "skip_assignment=False)",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: who has not synchronized is waited for without end", "a leader that dies between JoinGroup and SyncGroup", ROUNDS,
        "        roster.waiting = 0\n        self._deadlines.set(self._deadline(ASSIGNMENTS), timeout_at)\n",
        "        roster.waiting = 0\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "classic: a session ends although its member waits in a call", "KIP-62", ROUNDS,
        "        if member is None or (not member.new and (member.joining is not None or member.syncing is not None)):\n",
        "        if member is None:\n",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: an answer to a call that waited does not renew the session", "KIP-62", CLASSIC,
        "                    member.syncing = None\n                    self._renew(member, now)\n",
        "                    member.syncing = None\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "classic: a round waits for the deadline although the awaited member has left", "KIP-62", CLASSIC,
        "        if len(self._roster) < members:\n            self._begin_or_end_round(now, outcome)\n",
        "        if len(self._roster) < members:\n            if self._state is not ClassicState.PREPARING:\n"
        "                self._begin_or_end_round(now, outcome)\n",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: a round does not wait for ids that were handed out", "KIP-394", ROUNDS,
        "(self._initial or self._pending or self._roster.waiting < members)",
        "(self._initial or self._roster.waiting < members)",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: static members that are away do not keep their place", "KIP-345", ROUNDS,
        "            if member.joining is None and member.instance_id is None:\n",
        "            if member.joining is None:\n",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: a plain offset commit is taken between a round and its assignment", "a member that does not own its partitions yet", CLASSIC,
        "        if self._state is ClassicState.COMPLETING:\n            raise Refusal(ErrorCode.REBALANCE_IN_PROGRESS)\n",
        "",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: a member of a former generation beats on", "fencing by generation", CLASSIC,
        "            if request.generation != self._generation:\n                code = ErrorCode.ILLEGAL_GENERATION\n",
        "            if request.generation > self._generation:\n                code = ErrorCode.ILLEGAL_GENERATION\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "classic: of several records of a group the first one's subscriptions count", "found by the properties of the classic protocol", ROSTER,
        "            if member is None or not _describes(stored, member, value.protocol):\n",
        "            if member is None:\n",
        (unit("core/group/test_classic.py"), PROPERTIES),
    ),
    Mutant(
        "classic: sessions do not run after a failover", "rule 14", CLASSIC,
        "        for member in self._roster:\n            self._renew(member, now)\n        if len(self._roster) > self._limits.max_size or",
        "        if len(self._roster) > self._limits.max_size or",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: a group that could not write that it is empty forgets it", "rule 25", CLASSIC,
        "            self._deadlines.set(self._deadline(EMPTIED), Millis(now.monotonic + _WRITE_AGAIN_MS))\n",
        "",
        (SCENARIOS,),
    ),
    Mutant(
        "classic: a call that another takes the place of is never answered", "rule 25", ROUNDS,
        "            refuse_join(member.joining, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id, outcome)\n",
        "            pass\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "classic: what a static member was to give up is forgotten when it starts again", "partitions without an owner", CLASSIC,
        "        if keeps and not self._was_to_give_up(former):\n",
        "        if keeps:\n",
        (unit("core/group/test_classic.py"),),
    ),
    Mutant(
        "classic: a transaction of a member that was removed commits positions", "KIP-447", CLASSIC,
        "        if code is not ErrorCode.NONE:\n            raise Refusal(code, f\"{member_id!r} is not a member of the group\")\n        assert",
        "        if code is not ErrorCode.NONE and transactional:\n            return\n        assert",
        (SCENARIOS,),
    ),
)

"""Bugs in the machine of a consumer group (KIP-848, KIP-1251)."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import SCENARIOS, Mutant, sim, unit

PROPERTIES = unit("core/group/test_consumer_properties.py")
ASSIGNORS = unit("core/group/test_assignors.py")

MUTANTS = (
    Mutant(
        "offsets of a deleted topic outlive it in a transaction", "a name is taken for the thing it named",
        "core/group/offsets.py",
        "                if stored.log_offset > self._groups[name].superseded_at(partition):",
        "                if False:",
        (SCENARIOS,),
    ),
    Mutant(
        "a deleted topic takes the offsets of its successor along", "a name is taken for the thing it named",
        "core/group/offsets.py",
        "found[key] = found.get(key, True) and stored",
        "found[key] = found.get(key, False) or stored",
        (SCENARIOS,),
    ),
    Mutant(
        "an offset that is committed again while others expire is removed", "at least once", "coordinator/groups.py",
        "                tombstones = decide({(record.group, record.partition): None for record in part})\n",
        "                tombstones = part\n",
        (unit("coordinator/test_offsets.py"),),
    ),
    Mutant(
        "offsets of a member that joins while they are deleted on request go as well", "at least once",
        "coordinator/groups.py",
        "            decided = decide([each.partition for each in part])\n",
        "            decided = part\n",
        (unit("coordinator/test_offsets.py"),),
    ),
    Mutant(
        "a group is gone before its last offsets are", "a removed group leaves nothing", "core/group/memberships.py",
        "        if slot.removing:\n            return self._remove_next(slot)\n",
        "        slot.removing.clear()\n",
        (unit("core/group/test_memberships.py"),),
    ),
    Mutant(
        "a deletion removes a part of a commit that is under way", "a commit is one", "coordinator/groups.py",
        "        if group in self._busy:\n            raise Refusal(",
        "        if False:\n            raise Refusal(",
        (unit("coordinator/test_offsets.py"),),
    ),
    Mutant(
        "a commit is stored between two appends of its group's deletion", "a commit is one",
        "core/group/machine.py",
        "        self.memberships.check_stays(request.group_id)\n",
        "",
        (unit("core/group/test_memberships.py"), unit("coordinator/test_offsets.py")),
    ),
    Mutant(
        "a late commit over an older connection sets the position back", "at least once",
        "core/group/machine.py",
        "        return request.generation >= 0 and 0 <= request.connection and self._connections.is_older(",
        "        return False and self._connections.is_older(",
        (SCENARIOS, sim("1-6", "--scene late --hours 0.02 --faults-every 1")),
    ),
    Mutant(
        "a connection from before the load may set a position back", "at least once",
        "core/group/newest_connections.py",
        "        self._newest = dict.fromkeys(members, self._newest_at_load + 1)",
        "        self._newest = dict.fromkeys(members, 0)",
        (SCENARIOS, unit("coordinator/test_late_commits.py")),
    ),
    Mutant(
        "a new owner of a group's shard does not ask which members it has found", "at least once",
        "coordinator/groups.py",
        "        self.machine.loaded()\n",
        "",
        (unit("coordinator/test_late_commits.py"),),
    ),
    Mutant(
        "a late list over an older connection confirms a revocation", "one owner", "core/group/newest_connections.py",
        "        return connection < self._newest",
        "        return connection < 0 * self._newest",
        (SCENARIOS, unit("client/test_membership_properties.py")),
    ),
    Mutant(
        "a late subscription over an older connection takes the place of the present one", "a member hears of all it reads",
        "core/group/newest_connections.py",
        " or request.subscribed_names is not None\n",
        "\n",
        (SCENARIOS,),
    ),
    Mutant(
        "a late request to join over an older connection ends a pause", "a static member returns",
        "core/group/consumer.py",
        "        self._check_member(member_id)\n        self._connections.note(member_id, request.connection)\n",
        "        self._check_member(member_id)\n",
        (SCENARIOS,),
    ),
    Mutant(
        "a late JoinGroup without a generation confirms a revocation", "one owner", "core/group/mixed.py",
        "        if self._connections.is_older(request.member_id, request.connection):",
        "        if False:",
        (SCENARIOS,),
    ),
    Mutant(
        "a late JoinGroup from before the upgrade confirms a revocation", "one owner", "core/group/memberships.py",
        "                fresh.heard(member.member_id, member.connection)\n",
        "                pass\n",
        (SCENARIOS,),
    ),
    Mutant(
        "a new coordinator expires members that beat as they were told", "a member that beats keeps its partitions",
        "core/group/consumer.py",
        "            self._renew(member_id, value, now, least_ms)\n",
        "            self._renew(member_id, value, now)\n",
        (unit("core/group/test_consumer.py"),),
    ),
    Mutant(
        "the connections of refused members are remembered", "bounded memory", "core/group/consumer.py",
        "        member_id = self._admit(draft, request, owned)\n",
        "        member_id = self._admit(draft, request, owned)\n        self._connections.note(member_id, request.connection)\n",
        (unit("core/group/test_consumer.py"),),
    ),
    Mutant(
        "members of the consumer protocol take any memory", "bounded memory", "core/group/consumer.py",
        "        self._check_memory(state, value, former)\n",
        "",
        (unit("core/group/test_consumer.py"),),
    ),
    Mutant(
        "a connection from before the load may confirm a revocation", "one owner", "core/group/newest_connections.py",
        "self._newest_at_load + 1)",
        "-1)",
        (SCENARIOS,),
    ),
    Mutant(
        "a heartbeat that lists nothing confirms a revocation", "KIP-848", "core/group/reconciliation.py",
        "        if owned is None or not owned.isdisjoint(member.pending_revocation):\n",
        "        if owned is not None and not owned.isdisjoint(member.pending_revocation):\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "a partition is free as soon as its member was told to give it up", "KIP-848", "core/group/consumer_state.py",
        "        for holding in (current.assigned, current.pending_revocation):\n            holders.update",
        "        for holding in (current.assigned,):\n            holders.update",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "a member's own pending revocation stands in its way", "KIP-848", "core/group/consumer.py",
        "lambda each: holders.get(each, member_id) == member_id)",
        "lambda each: each not in holders)",
        (SCENARIOS,),
    ),
    Mutant(
        "the former epoch is good whatever the member owns", "KIP-848", "core/group/consumer.py",
        "owned is not None \\\n                and owned <= current.assigned.keys():",
        "True:",
        (SCENARIOS,),
    ),
    Mutant(
        "a rebalance timer that is late removes a member that has made progress", "KIP-848", "core/group/consumer.py",
        "        if moved_to is not None and moved_to > now.monotonic:\n",
        "        if False:\n",
        (SCENARIOS,),
    ),
    Mutant(
        "a static member's successor starts without its partitions", "KIP-848", "core/group/consumer.py",
        "        taken = Current(JOIN, 0, STABLE, current.assigned)\n",
        "        taken = Current(JOIN, 0, STABLE)\n",
        (SCENARIOS,),
    ),
    Mutant(
        "an old commit is good for a partition that came later", "KIP-1251", "core/group/consumer.py",
        "            if assigned_at is None or epoch < assigned_at:\n",
        "            if assigned_at is None:\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "a member sets back the position of another", "KIP-1251", "core/group/consumer.py",
        "                if state.holders.get(partition, member_id) != member_id:\n",
        "                if False:\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "a topic that is created again looks the same", "KIP-848", "core/group/consumer_metadata.py",
        "    text = b\"%b %d %b\" % (facts.topic_id, facts.partitions, facts.name.encode(errors=\"replace\"))\n",
        "    text = b\"%d %b\" % (facts.partitions, facts.name.encode(errors=\"replace\"))\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "topics count as compared though the write was refused", "decide, persist, replay", "core/group/consumer.py",
        "        if draft.records:\n            return self._write(UnderWay(draft.records, call, answer, compared=topics.version, regexes=regexes))\n        self._compared = topics.version\n",
        "        self._compared = topics.version\n        if draft.records:\n            return self._write(UnderWay(draft.records, call, answer, compared=topics.version, regexes=regexes))\n",
        (SCENARIOS,),
    ),
    Mutant(
        "a new coordinator waits for ever for members that died with the old one", "KIP-848", "core/group/consumer.py",
        "        for member_id, value in state.members.items():\n            self._renew(member_id, value, now, least_ms)\n            self._set_rebalance_timer(member_id, now)\n",
        "",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "a session that ends while the log is away never ends", "rule 25", "core/group/consumer.py",
        "        if retry is not None and self._deadlines.get(retry) is None:  # a session may have been renewed since\n",
        "        if False:\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "the answer for an expression that is no longer used is kept", "KIP-848", "core/group/consumer.py",
        "        if not state.uses(regex) or (former",
        "        if (former",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "a changed expression changes no assignment", "KIP-848", "core/group/consumer.py",
        "        draft.add(GroupEpochRecord(self.group_id, GroupEpochValue(state.epoch + 1, state.metadata_hash)))\n",
        "",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "a member keeps partitions of a topic that it has unsubscribed from", "KIP-848", "core/group/consumer.py",
        "        return names_changed or regex_changed, raises\n",
        "        return False, raises\n",
        (SCENARIOS, PROPERTIES),
    ),
    Mutant(
        "the assignor runs at every change", "KIP-848", "core/group/consumer.py",
        "        return not (state.target_timestamp and 0 <= since < self.limits.consumer_assignment_interval_ms)\n",
        "        return True\n",
        (SCENARIOS,),
    ),
    Mutant(
        "uniform gives the larger share to more members than there are partitions", "KIP-848", "core/group/assignors.py",
        "        if len(mine) > share:\n            larger -= 1\n",
        "",
        (ASSIGNORS, PROPERTIES),
    ),
    Mutant(
        "uniform moves partitions that could stay", "KIP-848", "core/group/assignors.py",
        "        limit = share + 1 if larger else share\n",
        "        limit = share\n",
        (ASSIGNORS,),
    ),
    Mutant(
        "a transaction commits the position of a partition that its member has given up", "KIP-447, KIP-848",
        "core/group/consumer.py",
        "            if epoch == current.epoch and not transactional:\n",
        "            if epoch == current.epoch:\n",
        (SCENARIOS,),
    ),
    Mutant(
        "a load forgets what a compacted log says of a group before it names a member", "no partition has two owners", "core/group/memberships.py",
        "        if slot.group is None:\n            self._drop_if_vacant(slot)\n",
        "        if True:\n            self._drop_if_vacant(slot)\n",
        (unit("core/group/test_memberships.py"),),
    ),
    Mutant(
        "offsets expire while a member's expression is not resolved", "a topic that is read keeps its offsets", "core/group/consumer.py",
        "        if self._names is None and all(not regex or regex in state.regexes for _, regex in state.subscriptions):\n",
        "        if self._names is None:\n",
        (unit("core/group/test_consumer.py"),),
    ),
)

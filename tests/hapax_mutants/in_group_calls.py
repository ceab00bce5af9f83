"""Bugs of the calls about consumer groups, and of their records."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

MUTANTS = (
    Mutant(
        "a member joins under a name that no record can hold", "what is decided can be written", "kafka/group_calls.py",
        "    if any(name is not None and _too_long(name) for name in names):\n",
        "    if False:\n",
        (unit("kafka/test_group_apis.py"),),
    ),
    Mutant(
        "members that wait for a round use up the memory of requests", "the last member of a round can be read", "kafka/api/join_group.py",
        "            ctx.release_memory()  # a round may last for minutes, and the group keeps the metadata even longer\n",
        "",
        (unit("kafka/test_server.py"),),
    ),
    Mutant(
        "a request of tiny elements holds the loop", "rule 18: the loop never blocks", "wire/hardening.py",
        "        if most is not None:\n",
        "        if False:\n",
        (unit("kafka/test_group_apis.py"),),
    ),
    Mutant(
        "nothing owned is read as unchanged", "KIP-848: a member that owns nothing has revoked everything", "kafka/api/consumer_group_heartbeat.py",
        "            None if owned is None else tuple(\n",
        "            None if not owned else tuple(\n",
        (unit("kafka/test_group_apis.py"),),
    ),
    Mutant(
        "a member's heartbeat fails while its shard loads", "a failover alone makes no member leave", "kafka/api/heartbeat.py",
        "    if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:\n",
        "    if False:\n",
        (unit("kafka/test_group_apis.py"),),
    ),
    Mutant(
        "a partition without an assignment epoch may be committed at any epoch", "KIP-1251: only its owner commits", "codec/group_records.py",
        "        epochs = [member_epoch] * len(indexes) if told == _NULL_ARRAY else _read_epochs(told)\n",
        "        epochs = [0] * len(indexes) if told == _NULL_ARRAY else _read_epochs(told)\n",
        (unit("codec/test_group_records.py"),),
    ),
    Mutant(
        "a partition that is being revoked is forgotten at a failover", "no partition has two owners", "codec/group_records.py",
        "        _placed(value.assigned), _placed(value.pending_revocation), NO_TAGS,\n",
        "        _placed(value.assigned), _placed(()), NO_TAGS,\n",
        (unit("codec/test_group_records.py"),),
    ),
    Mutant(
        "a static member's instance is forgotten at a failover", "KIP-345: it returns to its partitions", "codec/group_records.py",
        "        string(member.member_id), nullable_string(member.instance_id), string(member.client_id),\n",
        "        string(member.member_id), nullable_string(None), string(member.client_id),\n",
        (unit("codec/test_group_records.py"),),
    ),
)

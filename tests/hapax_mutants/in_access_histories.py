"""Bugs of rights over time: what waited, what is not known yet, and whose name a write bears."""

# ruff: noqa: E501 (it quotes code that is as long as it is)
from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

_PARKED = (unit("broker/test_parked_writes.py"),)
_PUBLIC = (unit("runtime/test_public_access.py"),)
_WIRE = (unit("runtime/test_tls_connection.py"),)
_SESSIONS = (unit("broker/test_session_fetches.py"),)

MUTANTS = (
    Mutant(
        "a write enters another's open transaction under an id of its own", "KIP-98: rights are on transactional ids",
        "broker/parked_writes.py",
        "        if self.transactional_ids.get(header.producer_id, transactional_id) != transactional_id:\n",
        "        if False:\n",
        _PARKED,
    ),
    Mutant(
        "a write without a transactional id enters an open transaction", "KIP-98: rights are on transactional ids",
        "broker/replica.py",
        "            if header.attributes & TRANSACTIONAL:\n                self.parked.check_name(header, transactional_id)\n            now_ms",
        "            now_ms",
        _PARKED,
    ),
    Mutant(
        "the answer to one name's question verifies another's write", "rule 24", "core/partition/verification.py",
        "        first.transactional_id == other.transactional_id or not",
        "        True or not",
        _PARKED,
    ),
    Mutant(
        "a write outside of transactions names the one that it repeats", "rule 24", "broker/parked_writes.py",
        "        if not header.attributes & TRANSACTIONAL:  # a duplicate",
        "        if False:  # a duplicate",
        _PARKED,
    ),
    Mutant(
        "a fetch that waited is answered although its right has ended", "rule 24", "broker/fetch.py",
        "        if unreadable is not None and (hidden",
        "        if False and (hidden",
        _SESSIONS,
    ),
    Mutant(
        "a topic that a session names too early is read without a right", "docs/security.md", "broker/fetch.py",
        "            if None not in verdicts:",
        "            if True:",
        _SESSIONS,
    ),
    Mutant(
        "an internal topic that no binding names is open to everybody", "docs/security.md", "core/access/index.py",
        "policy.allow_without_bindings and not named and not literal_only else",
        "policy.allow_without_bindings and not named else",
        (unit("core/access/test_decisions.py"),),
    ),
    Mutant(
        "a piece of a file is read twice", "abuse cases: the wire", "runtime/tls_connection.py",
        "        if self._cold is None:  # else what is queued",
        "        if True:  # else what is queued",
        _WIRE,
    ),
    Mutant(
        "a range that a thread reads at the last word is never released", "abuse cases: the wire", "runtime/tls_connection.py",
        "        if self._lost or self._fd < 0:",
        "        if self._lost:",
        _WIRE,
    ),
    Mutant(
        "offsets are deleted without a right to their topics", "docs/security.md", "runtime/public_access.py",
        "            yield ((READ_TOPIC, name),)\n\n\ndef _shown_group",
        "            yield ((DELETE_GROUP, request.group_id),)\n\n\ndef _shown_group",
        _PUBLIC,
    ),
    Mutant(
        "a group's description names hidden topics", "docs/security.md", "runtime/public_access.py",
        "        _keep(listed, may_describe)\n",
        "        pass\n",
        _PUBLIC,
    ),
)

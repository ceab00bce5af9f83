"""Bugs in what operators and their programs rely on: the command, the REST API."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

MUTANTS = (
    Mutant(
        "the command commits what it has read and not shown", "the command", "cli/consume.py",
        'Consumer({**options, "enable.auto.commit": False})', "Consumer(options)",
        (unit("cli/test_consume.py"),),
    ),
    Mutant(
        "the command reads a partition that does not exist as an empty one", "the command", "cli/administration.py",
        "        if index not in there:\n", "        if False:\n",
        (unit("cli/test_consume.py"),),
    ),
    Mutant(
        "a byte that a client sends stands for its reading", "the REST API", "admin/server.py",
        "        if not self._idle():\n            self._head_came()\n",
        "        if not self._idle():\n            self._head_came()\n            self._cancel_reading_deadline()\n",
        (unit("admin/test_server.py"),),
    ),
    Mutant(
        "a client that has read a part of an answer has all time for the rest", "the REST API", "admin/server.py",
        "        super().resume_writing()\n", "        super().resume_writing()\n        self._cancel_deadline()\n",
        (unit("admin/test_server.py"),),
    ),
    Mutant(
        "a cursor holds a name of any length", "the REST API", "admin/paging.py",
        "    if not isinstance(part, str) or len(part) <= _LONGEST_PART:\n", "    if True:\n",
        (unit("admin/test_paging.py"),),
    ),
    Mutant(
        "names that begin alike for long are told once for all", "the REST API", "admin/paging.py",
        '    return part[:_LONGEST_PART] + hashlib.sha256(part.encode("utf-8", "backslashreplace")).hexdigest()\n',
        "    return part[:_LONGEST_PART]\n",
        (unit("admin/test_paging.py"),),
    ),
    Mutant(
        "what fails in the gate is answered in plain text", "the REST API", "admin/gate.py",
        '            await answer.problem(Problem(500, "The service failed. Its log has the cause."))\n',
        "            raise\n",
        (unit("admin/test_repeated.py"),),
    ),
    Mutant(
        "a repeated abort by partition reaches the producer's next transaction", "the REST API", "client/admin.py",
        "            if meant not in (None, producer.transaction_start_offset):\n", "            if False:\n",
        (unit("client/test_admin.py"),),
    ),
    Mutant(
        "a partition that vanished after a clean stop is no fault", "the command", "cli/verify/folders.py",
        "    for name in sorted(sizes.keys() - set(names)):\n", "    for name in ():\n",
        (unit("cli/test_verify_missing.py"),),
    ),
    Mutant(
        "a client of the REST service stays with nodes that are gone", "the REST API", "admin/context.py",
        " and not any(each in self._began_with for each in addresses)\n", " and False\n",
        (unit("admin/test_clients.py"),),
    ),
    Mutant(
        "a broker is said to be drained where nothing moves any more", "the command", "cli/moves.py",
        "            elif drained is not None and drained in each.replicas:\n", "            elif False:\n",
        (unit("cli/test_moves.py"),),
    ),
    Mutant(
        "a move that was cancelled is said to have been made", "the command", "cli/moves.py",
        "            if name in targets and set(each.replicas) != set(targets[name]):\n", "            if False:\n",
        (unit("cli/test_moves.py"),),
    ),
    Mutant(
        "a word that is no isolation level passes for one", "the command", "cli/administration.py",
        '    if isolation_level not in ("read_committed", "read_uncommitted"):\n', "    if False:\n",
        (unit("cli/test_failures.py"),),
    ),
)

"""What people and programs that run a cluster rely on: the command, the REST API."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

MUTANTS = (
    Mutant(
        "the command commits what it has read and not shown", "the command", "cli/consume.py",
        'Consumer({**options, "enable.auto.commit": False})', "Consumer(options)",
        (unit("cli/test_consume.py"),),
    ),
    Mutant(
        "the command reads a partition that does not exist as an empty one", "the command", "cli/consume.py",
        "        if missing:\n", "        if False:\n",
        (unit("cli/test_consume.py"),),
    ),
)

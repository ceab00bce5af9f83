"""Bugs by which the audit log hides what happened, or tells what did not."""


from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

LOG = unit("runtime/test_audit.py")
CHANGES = unit("controller/test_audit.py")
DECISIONS = unit("kafka/test_audit.py")

MUTANTS = (
    Mutant(
        "the audit log tells a change that was refused", "audit", "controller/fenced.py",
        "        told.stored(key for key, change in changes.items() if id(change) not in refused)\n",
        "        told.stored(changes)\n",
        (CHANGES,),
    ),
    Mutant(
        "the audit log does not tell a change without an answer", "audit", "controller/fenced.py",
        "            told.stored(changes, \"unknown\")\n",
        "            pass\n",
        (CHANGES,),
    ),
    Mutant(
        "a client chooses its name in the audit log", "audit", "controller/rpc_api.py",
        "        return ascribed({PUBLIC + name: handler for name, handler in self._calls().items()})\n",
        "        return ascribed({PUBLIC + name: handler for name, handler in self._calls().items()}, asker_in)\n",
        (CHANGES,),
    ),
    Mutant(
        "a refusal is not in the audit log", "audit", "runtime/access.py",
        "        self._audit.record(\n            \"refused\",",
        "        self._audit.record and (lambda *_, **__: None)(\n            \"refused\",",
        (DECISIONS,),
    ),
    Mutant(
        "a failed login is not in the audit log", "audit", "kafka/sasl_session.py",
        "        self._server.audit.record(\n            \"login_failed\",",
        "        (lambda *_, **__: None)(\n            \"login_failed\",",
        (DECISIONS,),
    ),
    Mutant(
        "a flood fills the audit log", "audit", "runtime/audit.py",
        "            if window.count > self._most:\n                window.since",
        "            if False:\n                window.since",
        (LOG,),
    ),
    Mutant(
        "what the audit log leaves out is not told", "audit", "runtime/audit.py",
        "                self._write(\"left_out\", source.principal,",
        "                (lambda *_: None)(\"left_out\", source.principal,",
        (LOG,),
    ),
    Mutant(
        "audit lines in the queue are lost at the stop", "audit", "runtime/audit_writer.py",
        "        self._thread.join(timeout_s)\n",
        "",
        (LOG,),
    ),
    Mutant(
        "an audit line that a full disk cut short stays", "audit", "runtime/audit_writer.py",
        "            os.ftruncate(self._file, self._size)  # the lines are written again, whole\n",
        "            pass\n",
        (LOG,),
    ),
    Mutant(
        "a rotation of the audit log removes what it should keep", "audit", "runtime/audit_writer.py",
        "            for number in range(self._backups, 0, -1):\n",
        "            for number in range(1, self._backups + 1):\n",
        (LOG,),
    ),
)

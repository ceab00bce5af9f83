"""Bugs by which the audit log hides what happened, or tells what did not."""


from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

LOG = unit("runtime/test_audit.py")
CHANGES = unit("controller/test_audit.py")
DECISIONS = unit("kafka/test_audit.py")
SERVICES = unit("runtime/test_service_tls.py")
PUBLIC = unit("runtime/test_public_logins.py")
LEASES = unit("pid/test_repeated_calls.py")

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
    Mutant(
        "failed logins of many addresses hide who is refused", "audit", "runtime/audit.py",
        "            if self._sources[event, named] >= _MOST_SOURCES:\n",
        "            if len(self._windows) >= _MOST_SOURCES:\n",
        (LOG,),
    ),
    Mutant(
        "an anonymous flood hides other addresses' refusals", "audit", "runtime/audit.py",
        "        named = bool(principal) and principal != ANONYMOUS\n",
        "        named = bool(principal)\n",
        (LOG,),
    ),
    Mutant(
        "refusals displace changes in the queue of the audit log", "audit", "runtime/audit_writer.py",
        "        if len(self._lines) >= (MOST_BOUNDED if limited else MOST_QUEUED):\n",
        "        if len(self._lines) >= MOST_BOUNDED:\n",
        (LOG,),
    ),
    Mutant(
        "a line that cannot be encoded ends the audit log", "audit", "runtime/audit_writer.py",
        "    except Exception as error:  # whatever it is: the lines after this one are written\n",
        "    except OSError as error:\n",
        (LOG,),
    ),
    Mutant(
        "a line that standard output took in part is torn", "audit", "runtime/audit_writer.py",
        "        view = memoryview(data)\n        while self._begun < len(data):\n",
        "        view, self._begun = memoryview(data), 0\n        while self._begun < len(data):\n",
        (LOG,),
    ),
    Mutant(
        "a line that comes with the end of the process is lost", "audit", "runtime/audit_writer.py",
        "            if ending:\n",
        "            if self._closing.is_set():\n",
        (LOG,),
    ),
    Mutant(
        "another role's work is tried and the audit log is silent", "audit", "runtime/rpc_frames.py",
        "            self._server.audit.record(\n                \"refused\",",
        "            (lambda *_, **__: None)(\n                \"refused\",",
        (SERVICES,),
    ),
    Mutant(
        "a failed handshake is not in the audit log", "audit", "runtime/tls_connection.py",
        "            self._network.audit.record(\n",
        "            (lambda *_, **__: None)(\n",
        (SERVICES,),
    ),
    Mutant(
        "a certificate that gives no principal is not in the audit log", "audit", "runtime/rpc_server.py",
        "            self._audit.record(\n                \"login_failed\",",
        "            (lambda *_, **__: None)(\n                \"login_failed\",",
        (PUBLIC,),
    ),
    Mutant(
        "records that are refused to be deleted are told as deleted", "audit", "kafka/api/delete_records.py",
        "            if refusal.code == ErrorCode.REQUEST_TIMED_OUT:",
        "            if True:",
        (DECISIONS,),
    ),
    Mutant(
        "a lease is taken over and the audit log is silent", "audit", "pid/service.py",
        "        self._audit.record(\n",
        "        (lambda *_, **__: None)(\n",
        (LEASES,),
    ),
)

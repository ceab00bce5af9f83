"""Bugs that let plaintext out, or somebody in."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

_WIRE = (unit("runtime/test_tls_connection.py"),)
_CERTIFICATES = (unit("runtime/test_tls.py"),)
_PRINCIPALS = (unit("kafka/test_security.py"),)

MUTANTS = (
    Mutant(
        "a certificate that was refused for a wrong clock is never looked at again", "chaos: certificates and clocks",
        "runtime/tls.py",
        "                return False\n            # Also what was refused before",
        "                return False\n            if fresh == self._refused:\n                return False\n"
        "            # Also what was refused before",
        _CERTIFICATES,
    ),
    Mutant(
        "bytes of a connection under TLS go to its socket as they are", "abuse cases: the wire",
        "runtime/tls_connection.py",
        "        queue = self._queue\n        parts: list",
        "        return super()._send_bytes()\n        queue = self._queue\n        parts: list",
        _WIRE,
    ),
    Mutant(
        "ranges of files leave a connection under TLS by sendfile", "abuse cases: the wire",
        "runtime/tls_connection.py",
        "            self._write(file)\n            return\n",
        "            self._write(file)\n            return\n        return super()._send_file(file)\n",
        _WIRE,
    ),
    Mutant(
        "a range of a file is released while a thread reads it", "abuse cases: the wire", "runtime/tls_connection.py",
        "        if self._cold is not None:  # the thread's", "        if False:  # the thread's",
        _WIRE,
    ),
    Mutant(
        "a connection says goodbye on a descriptor that is another's", "abuse cases: the wire",
        "runtime/tls_connection.py",
        "        self._fd = -1  # the loop", "        # the loop",
        _WIRE,
    ),
    Mutant(
        "half handshakes of one address are kept without a limit", "abuse case 4", "runtime/tls_connection.py",
        "        if len(address) > self._limits.max_handshakes_per_address:\n", "        if False:\n",
        _WIRE,
    ),
    Mutant(
        "half a handshake may last for ever", "abuse case 3", "runtime/tls_connection.py",
        "self._limits.handshake_timeout_ms / 1000, self._late)", "3600, self._late)",
        _WIRE,
    ),
    Mutant(
        "a client without a certificate is admitted where one is required", "abuse case 5", "runtime/tls.py",
        '"required": ssl.CERT_REQUIRED,', '"required": ssl.CERT_OPTIONAL,',
        _WIRE,
    ),
    Mutant(
        "a client believes a server of any name", "the wire", "runtime/tls.py",
        "        context.check_hostname = options.verify_host\n", "        context.check_hostname = False\n",
        _WIRE,
    ),
    Mutant(
        "an expired certificate replaces a valid one", "abuse case 34", "runtime/tls.py",
        "(fault := _outside_validity(certificates, now or datetime.now(UTC)))", '(fault := "")',
        _CERTIFICATES,
    ),
    Mutant(
        "a certificate of another name replaces the present one", "abuse case 34", "runtime/tls.py",
        "            self._check_unchanged_names(certificates)\n", "",
        _CERTIFICATES,
    ),
    Mutant(
        "a certificate that no rule maps makes its client anonymous", "abuse case 6", "kafka/security.py",
        "name = self.rules.name_of(subject)\n",
        "name = self.rules.name_of(subject)\n        if name is None:\n            return ANONYMOUS\n",
        _PRINCIPALS,
    ),
    Mutant(
        "a rule matches a part of a name", "abuse case 7", "core/access/principal_rules.py",
        "self.pattern.fullmatch(name)", "self.pattern.match(name)",
        (unit("core/access/test_principal_rules.py"),),
    ),
    Mutant(
        "a value passes for an attribute of its own", "abuse case 7", "codec/distinguished_names.py",
        """frozenset(',=+<>#;"\\\\')""", """frozenset('+<>#;"\\\\')""",
        (unit("codec/test_distinguished_names.py"),),
    ),
    Mutant(
        "a node tells its clients its private key", "abuse cases: secrets", "kafka/api/describe_configs.py",
        "    return name in SECRETS or _SENSITIVE", "    return _SENSITIVE",
        (unit("kafka/test_configs.py"),),
    ),
)

"""Bugs of logins: that let somebody in, or tell which users exist."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

_SCRAM = (unit("core/sasl/test_scram.py"),)
_BEARER = (unit("core/sasl/test_oauthbearer.py"),)
_TOKENS = (unit("codec/test_json_web_tokens.py"),)
_KEYS = (unit("runtime/test_key_sets.py"),)
_IMAGE = (unit("runtime/test_scram_image.py"),)
_LOGINS = (unit("kafka/test_sasl.py"),)
_PASSWORDS = (unit("kafka/test_sasl_passwords.py"),)
_CHECKS = (unit("runtime/test_password_checks.py"),)
_CREDENTIALS = (unit("kafka/test_scram_credentials.py"),)
_LISTENERS = (unit("kafka/test_security.py"),)

MUTANTS = (
    Mutant(
        "a login takes a part of the nonce", "CVE-2024-56128", "core/sasl/scram.py",
        'if not hmac.compare_digest(found["nonce"], nonce):', 'if not nonce.startswith(found["nonce"]):',
        _SCRAM,
    ),
    Mutant(
        "a login need not repeat the header that it began with", "RFC 5802", "core/sasl/scram.py",
        'if found["header"] != header:', "if False:",
        _SCRAM,
    ),
    Mutant(
        "a login by SCRAM gets the rights of another", "abuse case 15", "core/sasl/scram.py",
        'if found["authzid"] is not None and found["authzid"] != found["name"]:', "if False:",
        _SCRAM,
    ),
    Mutant(
        "a login of an unknown user fails at once", "abuse case 13", "core/sasl/scram.py",
        "        credential = self._find(name)\n",
        "        credential = self._find(name)\n        if credential.decoy:\n"
        "            return Failure(\"unknown\")\n",
        _SCRAM,
    ),
    Mutant(
        "a login with the keys of a decoy succeeds", "abuse case 13", "core/sasl/scram.py",
        "if not fits or credential.decoy:", "if not fits:",
        _SCRAM,
    ),
    Mutant(
        "a recorded login succeeds after the end of its exchange", "abuse case 14", "core/sasl/scram.py",
        "        if self._ended:\n", "        if False:\n",
        _SCRAM,
    ),
    Mutant(
        "a login by PLAIN gets the rights of another", "abuse case 15", "core/sasl/plain.py",
        "if authzid and authzid != given:", "if False:",
        _SCRAM,
    ),
    Mutant(
        "a login with the password of a decoy succeeds", "abuse case 13", "core/sasl/exchange.py",
        "if fits and not self.credential.decoy:", "if fits:",
        _SCRAM,
    ),
    Mutant(
        "a login of an unknown user takes no time", "abuse case 13", "core/sasl/exchange.py",
        "        fits = False\n",
        "        fits = False\n        if self.credential.decoy:\n            return Failure(\"unknown\")\n",
        _SCRAM,
    ),
    Mutant(
        "a login gives names in two spellings to two users", "RFC 4013", "core/sasl/exchange.py",
        "    if prepared(name) != name:", "    if prepared(name) is None:",
        _SCRAM,
    ),
    Mutant(
        "a login by a token gets the rights of another", "abuse case 15", "core/sasl/oauthbearer.py",
        "if self._authzid is not None and self._authzid != outcome.name:", "if False:",
        _BEARER,
    ),
    Mutant(
        "a login goes on after its token was refused", "RFC 7628", "core/sasl/oauthbearer.py",
        "        if self._refused_for:\n", "        if False:\n",
        _BEARER,
    ),
    Mutant(
        "a login by a token whose algorithm is not its key's", "abuse case 16", "codec/json_web_tokens.py",
        "if algorithm not in key.algorithms:", "if False:",
        _TOKENS,
    ),
    Mutant(
        "a login by a token that demands what is not known", "abuse case 16", "codec/json_web_tokens.py",
        'for demanding in ("crit", "b64"):', "for demanding in ():",
        _TOKENS,
    ),
    Mutant(
        "a login by a token of another issuer", "abuse case 16", "codec/json_web_tokens.py",
        'if claims.get("iss") != rules.issuer:', "if False:",
        _TOKENS,
    ),
    Mutant(
        "a login by a token without an audience", "abuse case 16", "codec/json_web_tokens.py",
        "if not any(isinstance", "if given and not any(isinstance",
        _TOKENS,
    ),
    Mutant(
        "a login by a token that has ended", "abuse case 16", "codec/json_web_tokens.py",
        "if now_s >= expires + rules.skew_s:", "if False:",
        _TOKENS,
    ),
    Mutant(
        "a login by a token that is not valid yet", "abuse case 16", "codec/json_web_tokens.py",
        'for claim in ("nbf", "iat"):', 'for claim in ("iat",):',
        _TOKENS,
    ),
    Mutant(
        "a login by a weak key", "abuse case 16", "codec/json_web_tokens.py",
        "_RSA if key.key_size >= _LEAST_RSA_BITS else frozenset()", "_RSA",
        _TOKENS,
    ),
    Mutant(
        "a login fetches the keys for each unknown key", "abuse case 17", "runtime/key_sets.py",
        "if self._reading is not None or self._clock() - self._read_at >= pause:", "if True:",
        _KEYS,
    ),
    Mutant(
        "a login finds no keys once a read has failed", "abuse case 18", "runtime/key_sets.py",
        '            self.reads["failed"] += 1\n',
        '            self.reads["failed"] += 1\n            self.keys = {}\n',
        _KEYS,
    ),
    Mutant(
        "a login believes keys from where the URL points to", "CVE-2025-27817", "runtime/key_sets.py",
        "build_opener(_NoRedirect, ", "build_opener(",
        _KEYS,
    ),
    Mutant(
        "a login's keys are fetched with a secret in clear", "docs/security.md", "runtime/key_sets.py",
        'if token_location and parts.scheme == "https":', "if token_location:",
        _KEYS,
    ),
    Mutant(
        "a login's URL of keys need not be allowed", "CVE-2025-27817", "runtime/sasl_settings.py",
        'if not url.startswith("file:") and url not in', 'if False and url not in',
        _KEYS,
    ),
    Mutant(
        "a login sends a password in clear", "docs/security.md", "runtime/sasl_settings.py",
        "if each in SHOWS_SECRETS and not tls and not", "if each in SHOWS_SECRETS and tls and not",
        (*_KEYS, *_LISTENERS),
    ),
    Mutant(
        "a login of an unknown user looks different on each node", "abuse case 13", "runtime/scram_image.py",
        "self.secret or self._instead(), name,", "self._instead(), name,",
        _IMAGE,
    ),
    Mutant(
        "a login of an unknown user has iterations that no user has", "abuse case 13", "runtime/scram_image.py",
        "            shapes or [default_shape(", "            [default_shape(",
        _IMAGE,
    ),
    Mutant(
        "a login goes on after its password was changed", "abuse case 27", "runtime/scram_image.py",
        "if former is not None and (added is None or added.credential != former.credential):",
        "if former is not None and added is None:",
        _IMAGE,
    ),
    Mutant(
        "a login goes on after its user was removed", "abuse case 27", "kafka/sasl.py",
        "            session.revoked()\n", "            pass\n",
        _LOGINS,
    ),
    Mutant(
        "a login with a password that was changed meanwhile succeeds", "abuse case 27", "kafka/sasl.py",
        "        if not self._scram.is_current(name, credential):\n            return False\n", "",
        _LOGINS,
    ),
    Mutant(
        "connections of one address that do not log in are kept without a limit", "abuse case 4", "runtime/lobby.py",
        "if len(own) > self._most_per_address:", "if False:",
        _LOGINS,
    ),
    Mutant(
        "a request passes before the login", "abuse case 8", "kafka/sasl_session.py",
        "            admitted = key == _HANDSHAKE or (", "            admitted = key != 36 or (",
        _LOGINS,
    ),
    Mutant(
        "a request passes amid the login", "abuse case 8", "kafka/sasl_session.py",
        "            admitted = key in (_AUTHENTICATE, _HANDSHAKE, _API_VERSIONS)\n", "            admitted = True\n",
        _LOGINS,
    ),
    Mutant(
        "frames before the login are as long as later ones", "abuse case 9", "kafka/sasl_session.py",
        "        connection.limit_frames(sasl.max_frame_bytes)\n", "",
        _LOGINS,
    ),
    Mutant(
        "a connection's limit of frames is passed over", "abuse case 9", "runtime/connection.py",
        "if not 0 <= size <= self._max_frame:", "if not 0 <= size <= self._limits.max_frame_bytes:",
        (unit("runtime/test_network.py"),),
    ),
    Mutant(
        "a login may take for ever", "abuse case 3", "kafka/sasl_session.py",
        "call_later(sasl.login_timeout_ms / 1000, self._late)", "call_later(3600, self._late)",
        _LOGINS,
    ),
    Mutant(
        "a login again gives the connection to another user", "abuse case 10", "kafka/sasl_session.py",
        "if again and principal != self.principal:", "if False:",
        _LOGINS,
    ),
    Mutant(
        "a login again may be by another mechanism", "abuse case 11", "kafka/sasl_session.py",
        "if self._stage is _Stage.IN and mechanism != self._mechanism:", "if False:",
        _LOGINS,
    ),
    Mutant(
        "a login outlives its token", "abuse case 12", "kafka/sasl_session.py",
        "        if success.expires_ms is not None:\n", "        if False:\n",
        _LOGINS,
    ),
    Mutant(
        "a login has no end", "abuse case 12", "kafka/sasl_session.py",
        "self.ends = self._open_until = now + lifetime_ms / 1000", "self.ends = self._open_until = _FOREVER",
        _LOGINS,
    ),
    Mutant(
        "a parked write has no answer when its login ends", "abuse case 12", "kafka/sasl_session.py",
        'self._leave("the session has ended, and the client has not logged in again", 0.0)',
        'self.refuse("login", "the session has ended")',
        _LOGINS,
    ),
    Mutant(
        "a failed login is told why", "abuse case 13", "kafka/sasl_session.py",
        '            f"{self._mechanism}")', '            f"{self._mechanism}: {found.reason}")',
        _LOGINS,
    ),
    Mutant(
        "a failed login closes before its answer is read", "KIP-152", "kafka/sasl_session.py",
        'self._leave("the login failed", FAILURE_CLOSES_AFTER_S)', 'self._leave("the login failed", 0.0)',
        _LOGINS,
    ),
    Mutant(
        "requests are read while a login is checked", "abuse case 8", "kafka/sasl_session.py",
        "        self.working = True\n        self.connection.pause_reading()\n", "        self.working = True\n",
        _LOGINS,
    ),
    Mutant(
        "a login stops the node with one message", "abuse case 9", "core/sasl/scram.py",
        r'rb"(?P<extensions>,.*)?)"', r'rb"(?P<extensions>(?:,[A-Za-z]=[^,\0]+|,[a-z]+=[^,\0]+)*))"',
        _SCRAM,
    ),
    Mutant(
        "a login of an unknown user gets a salt that no user has", "abuse case 13", "core/sasl/scram_keys.py",
        "    least = base ** (length - 1)\n", "    least = 0\n",
        _SCRAM,
    ),
    Mutant(
        "a login of an unknown user gets a shape by the order of the users", "abuse case 13", "runtime/scram_image.py",
        "insort(self._shown[of], shape)", "self._shown[of].append(shape)",
        _IMAGE,
    ),
    Mutant(
        "a login gives the rights of clients without a name", "docs/security.md", "core/sasl/exchange.py",
        "    if name == _NAMELESS:\n", "    if False:\n",
        (*_SCRAM, *_TOKENS),
    ),
    Mutant(
        "a login's password gets into logs", "docs/security.md", "core/sasl/exchange.py",
        'return f"PasswordCheck({self.name!r})"', 'return f"PasswordCheck({self.name!r}, {self.password!r})"',
        _SCRAM,
    ),
    Mutant(
        "a login whose client has left is a session", "docs/security.md", "kafka/sasl_session.py",
        "            self._check.cancel()\n", "            pass\n",
        _PASSWORDS,
    ),
    Mutant(
        "a login that is given up leaves its thread to another", "docs/security.md", "runtime/password_checks.py",
        "        thread.add_done_callback(lambda _: self._next())\n        return await asyncio.shield(thread)\n",
        "        try:\n            return await thread\n        finally:\n            self._next()\n",
        _CHECKS,
    ),
    Mutant(
        "frames of a login again are as long as others", "abuse case 9", "kafka/sasl_session.py",
        "        self.connection.limit_frames(self._sasl.max_frame_bytes)\n", "",
        _LOGINS,
    ),
    Mutant(
        "a login's issuer gets a token that the log shows", "docs/security.md", "runtime/key_sets.py",
        'if not re.fullmatch(rb"[!-~]+", token):', "if not token:",
        _KEYS,
    ),
    Mutant(
        "a login takes a part of the keys for all", "docs/security.md", "runtime/key_sets.py",
        "    if sockets.late:\n", "    if False:\n",
        _KEYS,
    ),
    Mutant(
        "a certificate is a login", "docs/security.md", "kafka/security.py",
        "if self.sasl is not None or self.rules is None or", "if self.rules is None or",
        _LISTENERS,
    ),
    Mutant(
        "a salted password is taken without TLS", "abuse case 19", "kafka/api/alter_user_scram_credentials.py",
        "    if not safe:\n", "    if False:\n",
        _CREDENTIALS,
    ),
    Mutant(
        "a salted password is stored", "docs/security.md", "kafka/api/alter_user_scram_credentials.py",
        "    stored_key, server_key = keys_of(mechanism, bytes(asked.salted_password))\n",
        "    stored_key = server_key = bytes(asked.salted_password)\n",
        _CREDENTIALS,
    ),
    Mutant(
        "a fetch that waits gets records after its login's end", "abuse case 12", "broker/fetch.py",
        "if self._ctx.login_ends <= asyncio.get_running_loop().time():", "if False:",
        (unit("broker/test_fetch.py"),),
    ),
)

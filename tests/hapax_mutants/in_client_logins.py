"""Bugs of the client's logins: that trust a wrong server, show a secret, lose requests or ask for ever."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

_EXCHANGES = (unit("core/sasl/test_client.py"),)
_CONNECTION = (unit("wire/test_login.py"),)
_LOGIN = (unit("client/test_login.py"),)
_REFUSALS = (unit("client/test_refused_logins.py"),)
_USERS = (unit("client/test_users.py"),)
_JAAS = (unit("client/test_jaas.py"),)
_PROVIDER = (unit("client/test_token_endpoint.py"),)
_SCRAM = "core/sasl/client.py"

MUTANTS = (
    Mutant(
        "a client's login trusts a server that does not know the password", "RFC 5802", _SCRAM,
        "if not hmac.compare_digest(signature, self._expected):", "if found is None:",
        _EXCHANGES,
    ),
    Mutant(
        "a client's login trusts a server that says nothing of the password", "RFC 5802", _SCRAM,
        "if not hmac.compare_digest(signature, self._expected):",
        "if signature and not hmac.compare_digest(signature, self._expected):",
        _EXCHANGES,
    ),
    Mutant(
        "a client's login takes the nonce of another exchange", "RFC 5802", _SCRAM,
        "if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):", "if len(nonce) < 2:",
        _EXCHANGES,
    ),
    Mutant(
        "a client's login takes its own nonce for the server's", "RFC 5802", _SCRAM,
        " or len(nonce) == len(self._nonce):", ":",
        _EXCHANGES,
    ),
    Mutant(
        "a client's login shows a proof that is cheap to guess from", "RFC 7677", _SCRAM,
        "        if iterations < LEAST_ITERATIONS:\n", "        if iterations < 1:\n",
        _EXCHANGES,
    ),
    Mutant(
        "a client's login computes as long as a server likes", "docs/client.md", _SCRAM,
        "        if iterations > MOST_ITERATIONS:\n", "        if False:\n",
        _EXCHANGES,
    ),
    Mutant(
        "a client's login believes a server that accepts a token that it has refused", "RFC 7628", _SCRAM,
        "        if self._refused or self._ended:\n", "        if self._ended:\n",
        _EXCHANGES,
    ),
    Mutant(
        "a client's login does not acknowledge that a token is refused", "RFC 7628", _SCRAM,
        '_REFUSED: Final = b"\\x01"', '_REFUSED: Final = b""',
        _EXCHANGES,
    ),
    Mutant(
        "a client's login lets a token change its message", "RFC 6750", _SCRAM,
        "    if _TOKEN.fullmatch(token) is None:\n", "    if _TOKEN.match(token) is None:\n",
        _EXCHANGES,
    ),
    Mutant(
        "a client's login lets a name change its message", "RFC 4616", _SCRAM,
        '        if "\\0" in text:\n', "        if False:\n",
        _EXCHANGES,
    ),
    Mutant(
        "keys of a client's login are shown", "docs/client.md", _SCRAM,
        '        return "ClientKeys"', '        return f"ClientKeys({self.client_key!r})"',
        _EXCHANGES,
    ),
    Mutant(
        "a client's login ends with the server's word alone", "RFC 5802", "wire/login.py",
        "        if isinstance(step, Accepted):\n",
        '        if isinstance(step, Accepted) or not answer.auth_bytes:\n',
        _CONNECTION,
    ),
    Mutant(
        "a client's login repeats a secret that the server repeats", "docs/client.md", "wire/login.py",
        'said = _tidy(login.shown(answer.error_message or ""))', 'said = _tidy(answer.error_message or "")',
        _CONNECTION,
    ),
    Mutant(
        "a client's login takes any failure for a refusal", "docs/client.md", "wire/peer.py",
        "if error.code in LOGIN_REFUSALS else", "if error.code else",
        _CONNECTION,
    ),
    Mutant(
        "a client's login is renewed amid other requests", "KIP-368", "wire/peer.py",
        "return self._renew_at == _AT_ONCE or self._loop.time() >= self._ends_at",
        "return self._loop.time() >= self._ends_at and self._renew_at > _AT_ONCE",
        _CONNECTION,
    ),
    Mutant(
        "a client's login is never renewed", "KIP-368", "wire/peer.py",
        "return self._login is not None and self._loop.time() >= self._renew_at", "return False",
        _CONNECTION,
    ),
    Mutant(
        "a client's connection ends because a credential cannot be had for a moment", "KIP-368", "wire/peer.py",
        "                if self._loop.time() >= self._ends_at:\n                    raise\n",
        "                raise\n",
        _CONNECTION,
    ),
    Mutant(
        "a client's requests wait while a credential is fetched", "KIP-368", "wire/peer.py",
        "return self._renew_at == _AT_ONCE or self._loop.time() >= self._ends_at", "return True",
        _CONNECTION,
    ),
    Mutant(
        "a client's session seems to last longer than it does", "KIP-368", "wire/peer.py",
        "        self._ends_at = self._said_at + lifetime_ms",
        "        self._ends_at = self._logged_in_at + lifetime_ms",
        _CONNECTION,
    ),
    Mutant(
        "requests that wait for a client's login are lost when it fails", "KIP-368", "wire/peer.py",
        "            _set_error(each.answer, error)\n", "            pass\n",
        _CONNECTION,
    ),
    Mutant(
        "a client's login is not waited for as long as what is in flight", "KIP-368", "wire/peer.py",
        "until - now + self._login_timeout", "self._login_timeout",
        _CONNECTION,
    ),
    Mutant(
        "records that wait for a client's login are not counted", "docs/client.md", "wire/peer.py",
        "return self._connection.unsent_bytes() + held", "return self._connection.unsent_bytes()",
        _CONNECTION,
    ),
    Mutant(
        "a client's login sends a password in clear", "docs/client.md", "client/login.py",
        "if protocol == SASL_PLAINTEXT and mechanism in SHOWS_SECRETS and not", "if False and not",
        _LOGIN,
    ),
    Mutant(
        "a client's login uses a token that was refused", "docs/client.md", "client/login.py",
        "        super().refused(refusal, address)\n        if is_of_credential(refusal.code):\n",
        "        super().refused(refusal, address)\n        if False:\n",
        _LOGIN,
    ),
    Mutant(
        "a client's login uses a token to its last moment", "docs/client.md", "client/login.py",
        "_KEPT_SHARE: Final = 0.8", "_KEPT_SHARE: Final = 1.0",
        _LOGIN,
    ),
    Mutant(
        "a client's login shows what a program's function raised", "docs/client.md", "client/login.py",
        "its provider raised {type(error).__name__}", "its provider raised {error}",
        _LOGIN,
    ),
    Mutant(
        "a token of a client's login is shown", "docs/client.md", "client/credentials.py",
        'f"OAuthToken(expires_ms={self.expires_ms})"', 'f"OAuthToken({self.token!r})"',
        _LOGIN,
    ),
    Mutant(
        "a wrong setting of a client's login shows the secret", "docs/client.md", "client/settings.py",
        'shown = "" if setting.secret else', 'shown = "" if False else',
        _LOGIN,
    ),
    Mutant(
        "a client's login is refused again and again", "docs/client.md", "client/login.py",
        "            if known is not None and now < known.until:\n                raise",
        "            if False:\n                raise",
        (*_LOGIN, *_REFUSALS),
    ),
    Mutant(
        "records that a client's login keeps from being sent are tried for ever", "docs/client.md", "client/sender.py",
        "                    self._outcomes.refused(batch, error.code, reason)\n",
        "                    self._outcomes.unsent(batch, reason)\n",
        _REFUSALS,
    ),
    Mutant(
        "a reader is not told that a client's login is refused", "docs/client.md", "client/fetcher.py",
        "                self._failures[partition] = error\n                self._later(partition)\n"
        "            return\n        except PeerUnsupported",
        "                self._later(partition)\n            return\n        except PeerUnsupported",
        _REFUSALS,
    ),
    Mutant(
        "a client's new password is sent in clear", "docs/security.md", "client/users.py",
        'if options["security.protocol"] not in _ENCRYPTED and not', "if False and not",
        _USERS,
    ),
    Mutant(
        "a client's new password is shown", "docs/client.md", "client/users.py",
        'f"ScramUpsertion({self.user!r}, ', 'f"ScramUpsertion({self.user!r}, {self.password}, ',
        _USERS,
    ),
    Mutant(
        "a client's new passwords are salted alike", "RFC 5802", "client/users.py",
        "salt = change.salt or self._salt()", 'salt = change.salt or b"salt" * 6',
        _USERS,
    ),
    Mutant(
        "a client's removal of a user fails although it is done", "docs/client.md", "client/users.py",
        "                in_doubt = True\n", "                pass\n",
        _USERS,
    ),
    Mutant(
        "a message about the line of a client's login repeats it", "docs/client.md", "client/jaas.py",
        'f"its option {unknown[0]} is not supported;', 'f"its option {unknown[0]} of {text} is not supported;',
        _JAAS,
    ),
    Mutant(
        "a client's login ignores options of its line", "docs/client.md", "client/jaas.py",
        "    if unknown:\n", "    if False:\n",
        _JAAS,
    ),
    Mutant(
        "requests wait for ever where a client's sessions are short", "KIP-368", "wire/peer.py",
        "        if self._release is None:\n            self._flush()",
        "        if self._release is None:\n            self._send_held()",
        _CONNECTION,
    ),
    Mutant(
        "a client's login ends because another token cannot be had for a moment", "docs/client.md", "client/login.py",
        "            if kept is None or now >= kept.ends_at:\n", "            if True:\n",
        _LOGIN,
    ),
    Mutant(
        "a client's login uses a token that has ended", "docs/client.md", "client/login.py",
        "asks_at=min(now + _ASKED_AGAIN_MS, kept.ends_at)", "asks_at=now + _ASKED_AGAIN_MS",
        _LOGIN,
    ),
    Mutant(
        "a client's login is refused because clocks differ", "docs/client.md", "client/login.py",
        "        if not isinstance(exchange, _Kept):\n", "        if True:\n",
        _LOGIN,
    ),
    Mutant(
        "a client's login takes a thread for each call of a function that hangs", "docs/client.md",
        "client/credentials.py", "        if blocked is None or blocked.done():\n", "        if True:\n",
        _LOGIN,
    ),
    Mutant(
        "a client's login uses the keys of a former password", "docs/client.md", "client/login.py",
        "            if exchange.password == self._newest:\n", "            if True:\n",
        _LOGIN,
    ),
    Mutant(
        "a node that is set up otherwise keeps a client from all others", "docs/client.md", "client/login.py",
        "key = _ALL_SERVERS if is_of_credential(refusal.code) else address", "key = _ALL_SERVERS",
        _LOGIN,
    ),
    Mutant(
        "a refused client's login is repeated for ever", "docs/client.md", "client/cluster.py",
        "if again or login is None", "if login is None",
        _REFUSALS,
    ),
    Mutant(
        "a client's secret goes to an OpenID provider in clear", "KIP-768", "client/token_endpoint.py",
        "    if not secure and not _is_this_machine(host):\n", "    if False:\n",
        _PROVIDER,
    ),
    Mutant(
        "a client's secret goes to whom no authority knows", "KIP-768", "client/token_endpoint.py",
        "    context.minimum_version = ssl.TLSVersion.TLSv1_2\n",
        "    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n",
        _PROVIDER,
    ),
    Mutant(
        "an OpenID provider's answer shows a client's secret", "docs/client.md", "client/token_endpoint.py",
        '_reason(content).replace(secret, "***")', "_reason(content)",
        _PROVIDER,
    ),
    Mutant(
        "a client asks an OpenID provider for ever that refuses it", "KIP-768", "client/token_endpoint.py",
        "if 300 <= status < 500 and status not in _MAY_PASS:", "if False:",
        _PROVIDER,
    ),
    Mutant(
        "a client ends because an OpenID provider is busy", "KIP-768", "client/token_endpoint.py",
        "if 300 <= status < 500 and status not in _MAY_PASS:", "if 300 <= status < 500:",
        _PROVIDER,
    ),
    Mutant(
        "a user who changes the own password is shut out half-way", "docs/security.md", "client/users.py",
        "key=lambda each: (user == own_name and each is own, each)", "key=lambda each: each",
        _USERS,
    ),
    Mutant(
        "a password that is set again amid a login ends a client", "docs/security.md", "kafka/sasl_session.py",
        '                self.refuse("login", "the credential was removed or replaced during the login")\n', "",
        (unit("kafka/test_sasl.py"),),
    ),
    Mutant(
        "a commit's doubt is forgotten when the login is refused", "docs/client.md", "client/coordination.py",
        "            in_doubt, sent = in_doubt or sent, False\n", "            in_doubt = sent = False\n",
        (unit("client/test_deciding.py"),),
    ),
    Mutant(
        "a client sends requests in the last moment of its session", "KIP-368", "wire/peer.py",
        "_USED_SHARE: Final = 0.95", "_USED_SHARE: Final = 1.0",
        _CONNECTION,
    ),
    Mutant(
        "what waited for a throttle is sent under a login that has ended", "KIP-368", "wire/peer.py",
        "        self._release = None\n        self._send_held()\n",
        "        self._release = None\n        held, self._held = self._held, deque()\n"
        "        for each in held:\n            self._transmit(*each)\n",
        _CONNECTION,
    ),
)

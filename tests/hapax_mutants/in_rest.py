"""Bugs of the logins and permissions of the REST API, and of the logins of public gRPC."""

from __future__ import annotations

from hapax_mutants.mutant import Mutant, unit

_NEEDS = "admin/test_needs.py"
_CALLERS = "admin/test_callers.py"
_FRONT = (unit("runtime/test_tls_front.py"),)
_PUBLIC = (unit("runtime/test_public_logins.py"),)


def _needs(test: str) -> tuple[str, ...]:
    return (unit(f"{_NEEDS}::{test}"),)


def _callers(test: str) -> tuple[str, ...]:
    return (unit(f"{_CALLERS}::{test}"),)


MUTANTS = (
    Mutant(
        "a request that is refused leaves its idempotency key", "issue of unauthenticated keys", "admin/needs.py",
        "        need.judge(caller, values, route)\n        key = values",
        '        if values.get("idempotency_key") is None:\n            need.judge(caller, values, route)\n'
        "        key = values",
        _needs("test_a_route_needs_each_of_its_rights_and_no_more"),
    ),
    Mutant(
        "a right that is revoked while the cluster is asked still counts", "abuse case 27", "admin/needs.py",
        '        if request.method == "GET":\n', "        if False:\n",
        _needs("test_a_right_that_is_revoked_while_the_cluster_is_asked_does_not_count"),
    ),
    Mutant(
        "an idempotency key is everybody's", "keys belong to principals", "admin/needs.py",
        "        caller.principal, key, request.method,", '        "everybody", key, request.method,',
        _needs("test_keys_belong_to_a_principal"),
    ),
    Mutant(
        "REST lists hidden topics", "abuse case 20", "admin/topics.py",
        "            and caller.may(DESCRIBE_TOPIC, each.name))\n", "            )\n",
        _needs("test_lists_leave_out_what_is_hidden"),
    ),
    Mutant(
        "a group's lag counts hidden topics", "abuse case 20", "admin/groups.py",
        "        found = {each: one for each, one in every.items() if caller.may(DESCRIBE_TOPIC, each.topic)}\n",
        "        found = every\n",
        _needs("test_descriptions_leave_out_hidden_topics"),
    ),
    Mutant(
        "a reader's token reads records", "abuse case 35", "admin/callers.py",
        "in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)\n",
        "in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.READ)\n",
        _needs("test_a_token_of_a_reader_reads_metadata_and_changes_nothing"),
    ),
    Mutant(
        "the role of a reader's token outweighs a denial", "abuse case 26", "admin/callers.py",
        " and found.rule is None and", " and",
        _needs("test_an_acl_denies_a_reader"),
    ),
    Mutant(
        "a wrong password is ignored where a certificate goes with it", "one identity for each request",
        "admin/callers.py",
        "        if authorization is not None:\n            return await",
        '        if authorization is not None and not scope["state"].get("certificate"):\n            return await',
        _callers("test_a_wrong_header_is_refused_whatever_certificate_goes_with_it"),
    ),
    Mutant(
        "who has a certificate that no rule maps is anonymous", "abuse case 6", "admin/callers.py",
        '            raise self._unauthorized("The certificate gives no principal.")\n', "            return caller\n",
        _callers("test_a_certificate_that_no_rule_maps_gives_nothing"),
    ),
    Mutant(
        "the body of an unknown caller is read", "order of checks", "admin/gate.py",
        "                caller = await self._caller(scope)\n",
        "                await self._body(scope, receive)\n                caller = await self._caller(scope)\n",
        _callers("test_who_is_not_known_is_told_so_alike_and_leaves_nothing"),
    ),
    Mutant(
        "a password that was changed opens the REST API for a minute", "abuse case 27",
        "runtime/authorization_header.py",
        " or not self._scram.is_current(name, credential):", ":",
        _callers("test_a_password_that_was_changed_counts_no_more_from_the_next_request_on"),
    ),
    Mutant(
        "a password that is changed while it is checked opens the REST API", "abuse case 27",
        "runtime/authorization_header.py",
        "            if not self._scram.is_current(outcome.name, outcome.credential):\n", "            if False:\n",
        _callers("test_a_password_that_is_changed_while_it_is_checked_opens_nothing"),
    ),
    Mutant(
        "an unknown user is refused without a computation", "abuse case 13", "runtime/authorization_header.py",
        "        known = self._right.find(check.name, check.password)\n",
        "        if check.credential.decoy:\n            return Failure(\"unknown\")\n"
        "        known = self._right.find(check.name, check.password)\n",
        _callers("test_an_unknown_user_is_answered_as_a_wrong_password_is"),
    ),
    Mutant(
        "incomplete handshakes of the REST API are not counted", "abuse case 4", "runtime/tls_front.py",
        "        self._listener.lobby.enter(self)\n", "",
        _FRONT,
    ),
    Mutant(
        "who fails a handshake with the REST API is not told why", "abuse case 5", "runtime/tls_front.py",
        "            self.pass_on()\n            self.closing = True\n", "            self.closing = True\n",
        _FRONT,
    ),
    Mutant(
        "a client of public gRPC that shows nothing is anonymous", "logins of public calls", "runtime/rpc_server.py",
        "                if self._logins is not None and peer.principal == ANONYMOUS:\n", "                if False:\n",
        _PUBLIC,
    ),
    Mutant(
        "a wrong login of public gRPC is taken for none", "logins of public calls", "runtime/rpc_server.py",
        '            raise RpcError("UNAUTHENTICATED", "the credentials are not valid")\n',
        "            return ANONYMOUS\n",
        _PUBLIC,
    ),
    Mutant(
        "the client shows its password to a listener without TLS", "passwords go over TLS alone",
        "runtime/rpc_public.py",
        "        self._login = login if address.startswith(TLS) else None\n        self._shows_login = False\n",
        "        self._login = login\n        self._shows_login = True\n",
        _PUBLIC,
    ),
    Mutant(
        "logins of one address that wait are not bounded", "an attacker without a login keeps others out",
        "runtime/authorization_header.py",
        "        if self._of[source] >= most:\n", "        if total >= MOST_WAITING:\n",
        (unit("runtime/test_authorization_header.py"),),
    ),
    Mutant(
        "addresses of IPv6 are not networks where gRPC spells them", "an attacker without a login keeps others out",
        "runtime/addresses.py",
        'peer.rpartition(":")[0].strip("[]"))\n\n\ndef network_of', 'peer.rpartition(":")[0])\n\n\ndef network_of',
        (unit("runtime/test_tls_connection.py::test_an_ipv6_network_counts_as_one_address"),),
    ),
    Mutant(
        "a wrong login of public gRPC is not audited", "the audit log has all logins that fail",
        "runtime/rpc_server.py",
        "            logins.audit.record(\n", "            (lambda *_, **__: None)(\n",
        _PUBLIC,
    ),
    Mutant(
        "a kept token that gRPC refuses is shown until it is old", "expiry amid calls", "client/login.py",
        "            self._kept = None  # the server's clock may be ahead, or the issuer may have changed its keys\n",
        "            return False\n",
        _PUBLIC,
    ),
    Mutant(
        "a name with a colon logs in to gRPC as another user", "HTTP's Basic ends a name at its colon",
        "client/login.py", '        if ":" in self._name:\n', "        if False:\n",
        _PUBLIC,
    ),
    Mutant(
        "one caller fills the metadata store with idempotency keys", "a full store stops the cluster",
        "admin/idempotency.py", "        if self._now(who) >= MOST_STORED:\n", "        if False:\n",
        (unit("admin/test_idempotency.py::test_one_caller_does_not_fill_the_store"),),
    ),
    Mutant(
        "the last token of the file cannot be revoked", "a stolen credential", "admin/tokens.py",
        "    if not found and not may_be_empty:\n", "    if not found:\n",
        (unit("admin/test_tokens.py"),),
    ),
    Mutant(
        "a request with two logins has that of the first", "one identity for each request", "admin/gate.py",
        "        if len(shown) > 1:\n", "        if False:\n",
        _callers("test_two_headers_are_no_login"),
    ),
    Mutant(
        "a page of another site makes changes with its reader's certificate", "cross-site requests", "admin/gate.py",
        "    if foreign:\n", "    if False:\n",
        _callers("test_a_page_of_another_site_changes_nothing"),
    ),
    Mutant(
        "a lease is taken over by the id of the call that took it", "abuse case 24", "runtime/public_access.py",
        '        lease = name_of(request.name, getattr(request, "call_id", b"")) if call.names_lease else ""\n',
        '        lease = request.name if call.names_lease else ""\n',
        (unit("runtime/test_public_access.py"),),
    ),
    Mutant(
        "who may do nothing takes leases of nothing", "a tenant's login", "runtime/public_access.py",
        "        if call.request is lease_pb2.LeasePidRequest and not needed and not rights.may_any(WRITE_TOPIC):\n",
        "        if False:\n",
        (unit("runtime/test_public_access.py"),),
    ),
    Mutant(
        "who may read nothing has all brokers asked", "a tenant's login", "admin/producers.py",
        "        if caller.may_any(READ_TOPIC):\n", "        if True:\n",
        _needs("test_who_may_read_nothing_costs_the_cluster_nothing"),
    ),
    Mutant(
        "a token of an administrator reads nothing where no ACL names it", "roles of tokens", "admin/callers.py",
        "    def may_any(self, action: Action) -> bool:\n        return True\n",
        "    def may_any(self, action: Action) -> bool:\n        return super().may_any(action)\n",
        _needs("test_who_may_read_nothing_costs_the_cluster_nothing"),
    ),
)

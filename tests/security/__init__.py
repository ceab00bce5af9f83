"""`make security-test`: everything about security, in one run. Most of these tests stand where the code that they are
about has its tests, and also run in `make test`; those in this folder that take long run here only."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
WHOLE: Final = os.environ.get("SECURITY") == "all"
"""Whether `make security-test` runs."""
long = pytest.mark.skipif(not WHOLE, reason="takes long: only in make security-test")

SUITE: Final = (
    "tests/security",
    "tests/unit/core/access",
    "tests/unit/core/sasl",
    "tests/unit/core/quota",
    "tests/unit/admin/test_callers.py",
    "tests/unit/admin/test_needs.py",
    "tests/unit/client/test_jaas.py",
    "tests/unit/client/test_login.py",
    "tests/unit/client/test_refused_logins.py",
    "tests/unit/client/test_security_settings.py",
    "tests/unit/client/test_token_endpoint.py",
    "tests/unit/client/test_users.py",
    "tests/unit/codec/test_distinguished_names.py",
    "tests/unit/codec/test_json_web_tokens.py",
    "tests/unit/codec/test_store_rights.py",
    "tests/unit/controller/test_audit.py",
    "tests/unit/controller/test_owners.py",
    "tests/unit/kafka/test_acls.py",
    "tests/unit/kafka/test_audit.py",
    "tests/unit/kafka/test_fuzz.py",
    "tests/unit/kafka/test_needs.py",
    "tests/unit/kafka/test_quota_histories.py",
    "tests/unit/kafka/test_quotas.py",
    "tests/unit/kafka/test_quotas_and_logins.py",
    "tests/unit/kafka/test_quotas_of_time.py",
    "tests/unit/kafka/test_sasl.py",
    "tests/unit/kafka/test_sasl_passwords.py",
    "tests/unit/kafka/test_scram_credentials.py",
    "tests/unit/kafka/test_security.py",
    "tests/unit/local/test_secure_files.py",
    "tests/unit/operator/test_access_file.py",
    "tests/unit/operator/test_namespace_policy.py",
    "tests/unit/operator/test_outside_policy.py",
    "tests/unit/operator/test_plan_user.py",
    "tests/unit/operator/test_plan_user_model.py",
    "tests/unit/operator/test_plan_certificates.py",
    "tests/unit/runtime/test_audit.py",
    "tests/unit/runtime/test_authorization_header.py",
    "tests/unit/runtime/test_key_sets.py",
    "tests/unit/runtime/test_password_checks.py",
    "tests/unit/runtime/test_public_access.py",
    "tests/unit/runtime/test_public_logins.py",
    "tests/unit/runtime/test_scram_image.py",
    "tests/unit/runtime/test_service_tls.py",
    "tests/unit/runtime/test_tls.py",
    "tests/unit/runtime/test_tls_connection.py",
    "tests/unit/runtime/test_etcd_login.py",
    "tests/unit/runtime/test_tls_front.py",
    "tests/unit/wire/test_login.py",
    "tests/integration/admin/test_secure.py",
    "tests/integration/admin/test_topics.py",
    "tests/integration/test_access.py",
    "tests/integration/test_audit.py",
    "tests/integration/test_bad_input.py",
    "tests/integration/test_etcd_login.py",
    "tests/integration/test_handshakes.py",
    "tests/integration/test_quotas.py",
    "tests/integration/test_secure_cluster.py",
    "tests/copying/test_secure_copy.py",
    "tests/clients/other/test_access_tools.py",
    "tests/clients/other/test_quota_tools.py",
    "tests/clients/test_abuse_by_tenants.py",
    "tests/clients/test_access_by_certificate.py",
    "tests/clients/test_load_logins.py",
    "tests/clients/test_native_logins.py",
    "tests/clients/test_native_logins_on_kafka.py",
    "tests/clients/test_quotas_of_logins.py",
    "tests/clients/test_sasl_abuse.py",
    "tests/clients/test_sasl_clients.py",
    "tests/clients/test_tls_clients.py",
    "tests/tidy/test_abuse_cases.py",
    "tests/kubernetes/test_flows.py",
    "tests/kubernetes/test_secure_chart.py",
)
"""Files and folders of tests."""

PAGE: Final = ROOT / "docs" / "abuse-cases.md"
NUMBER_OF_CASES: Final = 35
_ROW: Final = re.compile(r"\| (?P<number>\d+) \| (?P<case>[^|]+) \| (?P<answer>[^|]+) \| (?P<tests>[^|]+) \|")


class Case(NamedTuple):
    number: int
    case: str
    answer: str
    tests: tuple[tuple[str, str], ...]
    """File below tests/ and name of the function."""


def cases() -> list[Case]:
    """The table of the page."""
    found = []
    for line in PAGE.read_text().splitlines():
        row = _ROW.fullmatch(line)
        if row is not None:
            tests = [each.strip(" `") for each in row["tests"].split("<br>")]
            found.append(Case(
                int(row["number"]), row["case"], row["answer"],
                tuple((file, name) for file, _, name in (each.partition("::") for each in tests))))
    return found

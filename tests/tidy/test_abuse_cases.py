"""Each case of docs/abuse-cases.md has a test, which exists and which `make security-test` runs; and that verb runs
every file whose name says that it is about security."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from security import NUMBER_OF_CASES, ROOT, SUITE, Case, cases

ABOUT_SECURITY = re.compile(
    r"test_(.*_)?(access|acls?|abuse\w*|audit|authoriser|jaas|json_web_tokens|key_sets|log(in|ins)|password\w*|principal\w*"
    r"|quotas?|sasl|scram|secure|security|tls|token_endpoint)(_.*)?\.py")
ABOUT_ELSE = (
    "tests/unit/supply/test_audit.py",  # of dependencies: make audit-deps
    "tests/integration/test_spark_logins.py",  # a real Spark: two minutes
    "tests/integration/test_spark_secure_cluster.py",  # another
    "tests/kubernetes_nodes/test_secure_install.py",  # pods: make kube-test
)


@cache
def functions(path: str) -> frozenset[str]:
    return frozenset(
        node.name for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_run(path: str) -> bool:
    return any(path == each or path.startswith(each + "/") for each in SUITE)


def test_the_table_has_every_case_once() -> None:
    assert [each.number for each in cases()] == list(range(1, NUMBER_OF_CASES + 1))


@pytest.mark.parametrize("case", cases(), ids=lambda case: str(case.number))
def test_a_case_has_tests_that_exist(case: Case) -> None:
    assert case.tests
    for file, name in case.tests:
        path = f"tests/{file}"
        assert (ROOT / path).is_file(), path
        assert name.startswith("test_") and name in functions(path), (path, name)
        assert is_run(path), f"make security-test does not run {path}"


def test_what_the_verb_runs_exists() -> None:
    assert [each for each in SUITE if not (ROOT / each).exists()] == []


def test_the_verb_runs_all_that_is_about_security() -> None:
    found = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))
             if ABOUT_SECURITY.fullmatch(path.name)]
    assert [each for each in found if not is_run(each) and each not in ABOUT_ELSE] == []

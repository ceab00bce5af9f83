"""Holds what a reviewer would otherwise have to look for. It only ever tightens."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST_MODULE = 700
GENERATED = "services/hapax/rpc/gen/"
SOURCE = (".py", ".pyi", ".proto", ".sh", ".toml", ".md", ".txt", ".mk", ".go", ".html", ".yaml", ".yml", "")


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return [name for name in listed if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def files() -> list[str]:
    return tracked()


def text_files(names: list[str], *suffixes: str) -> Iterator[tuple[str, str]]:
    for name in names:
        if Path(name).suffix in (suffixes or SOURCE) and not name.startswith(GENERATED):
            try:
                yield name, (ROOT / name).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def offences(names: list[str], pattern: str, *suffixes: str, but: tuple[str, ...] = ()) -> list[str]:
    regex = re.compile(pattern)
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in text_files(names, *suffixes)
        if name not in ("tests/tidy/test_repository.py", *but)
        for number, line in enumerate(text.splitlines(), 1)
        if regex.search(line)
    ]


def test_no_path_of_a_machine(files: list[str]) -> None:
    assert offences(files, r"(?<![\w.])/(home|root|Users|work|opt/wheels)/|/tmp/boot") == []


def test_no_address_of_a_registry(files: list[str]) -> None:
    hosts = r"pypi\.org|pythonhosted|proxy\.golang|sum\.golang|repo1?\.maven|maven\.org|registry\.npmjs|deb\.debian"
    assert offences(files, hosts) == []


def test_the_lock_names_versions_and_hashes_only(files: list[str]) -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert "--index-url" not in text
    requirements = re.findall(r"^[A-Za-z0-9_.-]+(?:\[[^\]]*\])?==\S+", text, re.MULTILINE)
    assert len(requirements) > 50
    assert text.count("--hash=sha256:") >= len(requirements)


def test_nothing_is_left_for_later(files: list[str]) -> None:
    assert offences(files, r"\b(TODO|FIXME|XXX|HACK)\b", ".py", ".proto", ".sh", ".md", ".go") == []


def test_tasks_are_started_by_supervision_alone(files: list[str]) -> None:
    """What the failure of a task means is said where it starts."""
    product = [name for name in files if name.startswith(("services/", "operator/", "spark/", "load/"))]
    pattern = r"\b(create_task|ensure_future|TaskGroup)\("
    assert offences(product, pattern, ".py", but=("services/hapax/runtime/supervision.py",)) == []


def test_modules_stay_short(files: list[str]) -> None:
    long = {
        name: lines
        for name, text in text_files(files, ".py")
        if (lines := text.count("\n")) > LONGEST_MODULE
    }
    assert long == {}


def test_the_operator_folder_does_not_shadow_the_standard_library(files: list[str]) -> None:
    assert "operator/__init__.py" not in files


def test_no_exception_is_swallowed(files: list[str]) -> None:
    handler = re.compile(r"except\s*(Exception|BaseException)?\s*(as \w+)?:\s*(#[^\n]*)?\n\s+(pass|continue)\b")
    swallowed = [
        f"{name}: {found.group(0).strip()!r}"
        for name, text in text_files(files, ".py")
        if name.startswith(("services/", "spark/", "operator/"))
        for found in handler.finditer(text)
    ]
    assert swallowed == []


def test_tests_wait_for_events_instead_of_sleeping(files: list[str]) -> None:
    tests = [name for name in files if re.search(r"(^|/)test_\w+\.py$", name)]
    assert offences(tests, r"\btime\.sleep\((?!0\))", ".py") == []


def test_every_function_inside_a_test_is_used(files: list[str]) -> None:
    """A scenario that is defined and not run would pass whatever the code does."""
    unused = []
    for name, text in text_files([name for name in files if name.startswith("tests/")], ".py"):
        for outer in ast.walk(ast.parse(text)):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                used = {node.id for node in ast.walk(outer) if isinstance(node, ast.Name)}
                unused += [
                    f"{name}:{inner.lineno}: {inner.name}" for inner in outer.body
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
                    and inner.name not in used and not inner.decorator_list]
    assert unused == []


def test_links_of_the_pages_resolve(files: list[str]) -> None:
    broken = []
    for name, text in text_files(files, ".md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, anchor = target.partition("#")
            page = (ROOT / name).parent / path if path else ROOT / name
            if not page.exists() or (anchor and page.suffix == ".md" and anchor not in _anchors(page.read_text())):
                broken.append(f"{name}: {target}")
    assert broken == []


def _anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_verb_is_in_help() -> None:
    text = (ROOT / "Makefile").read_text()
    verbs = set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))
    documented = set(re.findall(r"^([a-z][a-z-]*):.*## \S", text, re.MULTILINE))
    assert verbs == documented
    promised = {"setup", "demo", "test", "test-one", "lint", "bench", "proto", "scenarios-update", "sim", "clean"}
    assert promised <= verbs


def test_verbs_named_in_the_pages_exist(files: list[str]) -> None:
    verbs = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        verb for _, text in text_files(files, ".md") for verb in re.findall(r"`make ([a-z][a-z-]*)", text)
    }
    assert named <= verbs


def test_every_setting_is_read_somewhere(files: list[str]) -> None:
    """A setting that is accepted and does nothing is a promise that nobody keeps."""
    from hapax.runtime.settings import SETTING_NAMES

    own = "services/hapax/runtime/settings.py"
    elsewhere = "".join(text for name, text in text_files(files, ".py") if name.startswith("services/") and name != own)
    # Those that the table's own properties read (`retention_ms`, `kafka_address`, ...).
    views = (ROOT / own).read_text()
    unread = [
        name
        for name in SETTING_NAMES
        if not re.search(rf"\.{name.replace('.', '_')}\b", elsewhere)
        and not re.search(rf"self\.{name.replace('.', '_')}\b", views)
    ]
    assert unread == []


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text()))
    assert listed == {path.name for path in folder.glob("*.md")} - {"README.md"}

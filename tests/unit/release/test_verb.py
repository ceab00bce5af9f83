"""`make release VERSION=`: what it refuses and what it commits. tests/integration/test_release.py tries its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from packaging.version import Version
from scripts.release.__main__ import check, committed, main
from scripts.release.changelog import notes
from scripts.release.parts import export
from scripts.release.versions import Refused

from unit.release.repository import Repository

NEW = Version("0.1.0")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """States 0.1.0.dev0 and has one entry under 'Unreleased'."""
    made = Repository(tmp_path / "repository")
    made.write("pyproject.toml", '[project]\nname = "hapaxlog"\nversion = "0.1.0.dev0"\n')
    made.write("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- A verb.\n")
    made.commit("One entry")
    return made


def refused(
    repository: Repository, version: str, why: str, *words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = repository.git("rev-parse", "HEAD"), repository.git("status", "--porcelain")
    assert main([version, "--images", "none", *words], repository.folder) == 1
    assert why in capsys.readouterr().err
    assert (repository.git("rev-parse", "HEAD"), repository.git("status", "--porcelain")) == before
    assert not (repository.folder / "build").exists()


@pytest.mark.parametrize("name", ["CHANGELOG.md", "something-new"])
def test_a_tree_that_no_commit_names(repository: Repository, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    repository.write(name, "changed")
    before = repository.git("rev-parse", "HEAD")
    assert main(["0.1.0", "--images", "none"], repository.folder) == 1
    said = capsys.readouterr().err
    assert "the tree is not clean, so no commit would name what is built" in said and name in said
    assert repository.git("rev-parse", "HEAD") == before


def test_a_version_that_is_released(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    repository.git("tag", "v0.1.0", "HEAD~1")
    refused(repository, "0.1.0", "0.1.0 is released: there is a tag v0.1.0", capsys=capsys)


def test_a_version_that_is_released_elsewhere(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A clone has the tags of its last fetch, or none."""
    shared = tmp_path / "shared"
    repository.git("clone", "--quiet", "--bare", ".", str(shared))
    repository.git("remote", "add", "origin", str(shared))
    check(repository.folder, NEW, again=False)
    repository.git("tag", "v0.1.0")
    repository.git("tag", "not-a-version")
    repository.git("push", "--quiet", "origin", "v0.1.0", "not-a-version")
    repository.git("tag", "--delete", "v0.1.0", "not-a-version")
    why = "origin has the tags v0.1.0, which are not here: git fetch --tags origin"
    refused(repository, "0.1.0", why, capsys=capsys)
    repository.git("fetch", "--quiet", "--tags", "origin")
    refused(repository, "0.1.0", "0.1.0 is released: there is a tag v0.1.0", capsys=capsys)


def test_a_remote_that_does_not_answer_is_not_taken_for_one_without_releases(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.git("remote", "add", "origin", str(tmp_path / "gone"))
    refused(repository, "0.1.0", "the tags of origin cannot be read, so 0.1.0 may be released already", capsys=capsys)
    check(repository.folder, NEW, again=False, offline=True)


@pytest.mark.parametrize(("version", "why"), [
    ("0.1.0rc1", "0.1.0rc1 is not newer than 0.1.0, which this commit contains"),
    ("0.0.9", "0.0.9 is not newer than 0.1.0, which this commit contains"),
    ("0.1", "has 2 numbers"), ("soon", "is no version")])  # fmt: skip
def test_a_version_that_is_not_newer_or_none(
    repository: Repository, version: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.git("tag", "v0.1.0")
    refused(repository, version, why, capsys=capsys)


def test_a_version_below_the_one_that_the_tree_states(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(repository, "0.0.9", "0.0.9 is not newer than 0.1.0.dev0, which pyproject.toml states", capsys=capsys)


def test_an_earlier_release_can_be_corrected_after_a_later_one(repository: Repository) -> None:
    repository.git("tag", "v0.1.0")
    repository.git("checkout", "--quiet", "-b", "later")
    repository.write("more", "")
    repository.commit("More")
    repository.git("tag", "v0.2.0")
    repository.git("checkout", "--quiet", "main")
    check(repository.folder, Version("0.1.1"), again=False)
    with pytest.raises(Refused, match=r"a tag v0\.2\.0"):
        check(repository.folder, Version("0.2.0"), again=False)


@pytest.mark.parametrize(("text", "why"), [
    ("# Changelog\n", "nothing under 'Unreleased'"),
    ("# Changelog\n\n## Unreleased\n\n## 0.0.1 - 2026-01-01\n\n- Old.\n", "nothing under 'Unreleased'"),
    ("# Changelog\n\n## Unreleased\n\n- A.\n\n## 0.1.0 - 2026-01-01\n\n- B.\n", "has entries under 'Unreleased'")])
def test_a_changelog_that_does_not_say_what_changed(
    repository: Repository, text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write("CHANGELOG.md", text)
    repository.commit("Changelog")
    with pytest.raises(Refused, match=why):
        committed(repository.folder, NEW)
    assert repository.git("status", "--porcelain") == ""


def test_a_commit_on_no_branch_would_be_lost(repository: Repository) -> None:
    repository.git("checkout", "--quiet", "--detach")
    with pytest.raises(Refused, match="no branch is checked out"):
        committed(repository.folder, NEW)


@pytest.mark.parametrize("why", ["no identity", "a hook", "a chart with two versions"])
def test_a_commit_that_fails_leaves_the_tree_as_it_was(
    repository: Repository, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next run refuses a tree that is not clean."""
    if why == "no identity":
        for name in ("user.name", "user.email"):
            repository.git("config", "--unset", name)
        repository.git("config", "user.useConfigOnly", "true")
        monkeypatch.setenv("HOME", str(repository.folder.parent))
        monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        for name in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL", "EMAIL"):
            monkeypatch.delenv(name, raising=False)
    elif why == "a hook":
        hook = repository.folder / ".git" / "hooks" / "pre-commit"
        hook.write_text("#!/bin/sh\nexit 1\n")
        hook.chmod(0o755)
    else:
        chart = repository.read("charts/hapax/Chart.yaml")
        repository.write("charts/hapax/Chart.yaml", chart + "version: 0.1.0\n")
        repository.commit("A mistake")
    before = repository.git("rev-parse", "HEAD")
    with pytest.raises(Refused):
        committed(repository.folder, NEW)
    assert (repository.git("rev-parse", "HEAD"), repository.git("status", "--porcelain")) == (before, "")


@pytest.mark.parametrize("former", [("0.1.0rc1",), ("0.1.0a1", "0.1.0rc1")])
def test_a_candidate_that_is_good_becomes_the_release(repository: Repository, former: tuple[str, ...]) -> None:
    """Nothing has changed since, so nothing is under 'Unreleased'."""
    for number, each in enumerate(former):
        if number:
            changelog = repository.read("CHANGELOG.md")
            repository.write("CHANGELOG.md", changelog.replace("Unreleased\n", f"Unreleased\n\n- In {each}.\n", 1))
            repository.commit("More")
        committed(repository.folder, Version(each))
        repository.git("tag", f"v{each}")
    check(repository.folder, NEW, again=False)
    committed(repository.folder, NEW)
    text = notes(repository.read("CHANGELOG.md"), NEW)
    assert f"As {former[-1]}" in text
    with pytest.raises(Refused, match="nothing under 'Unreleased'"):
        committed(repository.folder, Version("0.2.0"))


def test_one_commit_states_the_version_everywhere_and_a_second_run_adds_none(repository: Repository) -> None:
    former = repository.git("rev-parse", "HEAD")
    commit = committed(repository.folder, NEW)
    assert commit.sha == repository.git("rev-parse", "HEAD")
    assert repository.git("log", "--format=%s", f"{former}..HEAD") == "Release 0.1.0"
    assert repository.git("status", "--porcelain") == ""
    assert commit.epoch == int(repository.git("show", "-s", "--format=%ct", "HEAD"))
    assert 'version = "0.1.0"\n' in repository.read("pyproject.toml")
    assert "\nversion: 0.1.0\nappVersion: 0.1.0\n" in repository.read("charts/hapax/Chart.yaml")
    assert "## Unreleased\n\n## 0.1.0 - 20" in repository.read("CHANGELOG.md")
    check(repository.folder, NEW, again=False)
    assert committed(repository.folder, NEW) == commit


def test_a_candidate_comes_before_its_release(repository: Repository) -> None:
    committed(repository.folder, Version("0.1.0rc1"))
    assert "\nversion: 0.1.0-rc.1\nappVersion: 0.1.0-rc.1\n" in repository.read("charts/hapax/Chart.yaml")
    repository.git("tag", "v0.1.0rc1")
    changelog = repository.read("CHANGELOG.md")
    repository.write("CHANGELOG.md", changelog.replace("Unreleased\n", "Unreleased\n\n- Fixed.\n"))
    repository.commit("Fix")
    check(repository.folder, NEW, again=False)
    committed(repository.folder, NEW)
    assert "\nversion: 0.1.0\n" in repository.read("charts/hapax/Chart.yaml")


def test_a_tagged_version_is_built_again_only_from_its_commit(repository: Repository) -> None:
    with pytest.raises(Refused, match=r"there is no tag v0\.1\.0"):
        check(repository.folder, NEW, again=True)
    committed(repository.folder, NEW)
    repository.git("tag", "-a", "-m", "Hapax 0.1.0", "v0.1.0")
    with pytest.raises(Refused, match="is released"):
        check(repository.folder, NEW, again=False)
    check(repository.folder, NEW, again=True)
    repository.write("more", "")
    repository.commit("More")
    with pytest.raises(Refused, match="is another commit"):
        check(repository.folder, NEW, again=True)


@pytest.mark.parametrize(("key", "value"), [("tar.umask", "0077"), ("core.autocrlf", "true"), ("core.eol", "crlf")])
def test_an_export_does_not_depend_on_the_settings_of_git(
    repository: Repository, key: str, value: str, tmp_path: Path
) -> None:
    repository.write(".gitattributes", "*.md text\n")
    repository.commit("Attributes")

    def exported(folder: str) -> dict[str, tuple[int, float, bytes]]:
        (tmp_path / folder).mkdir()
        tree = export(repository.folder, "HEAD", tmp_path / folder)
        return {str(each.relative_to(tree)): (each.stat().st_mode, each.stat().st_mtime, each.read_bytes())
                for each in tree.rglob("*") if each.is_file()}

    plain = exported("plain")
    former = os.umask(0o077)
    try:
        repository.git("config", key, value)
        assert exported("set") == plain
    finally:
        os.umask(former)


def test_images_that_do_not_exist(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    refused(repository, "0.1.0", "no image is called hapax-sparks", "--images", "hapax-sparks", capsys=capsys)

"""What a release consists of, without images: it installs and works in an empty environment, and a second build of the
same commit gives the same bytes. `make release-test` tries all of it, at length.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from scripts.release.__main__ import main
from scripts.release.parts import export, python_packages

from hapax.local.etcd import find_etcd
from hapax.local.folder import LocalClusterError
from hapax_kube.binaries import find
from hapax_release.newcomer import Environment, Newcomer, try_cluster
from unit.release.repository import DAY, ROOT, WHOLE, Repository

PACKAGES = {"services/hapax": "hapax", "spark/hapax_spark": "hapax_spark", "operator/hapax_operator": "hapax_operator",
            "load/hapax_load": "hapax_load", "proto": "hapax/rpc/proto"}  # fmt: skip
"""Folder -> its place in the wheel."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    made = Repository(tmp_path_factory.mktemp("release") / "repository", WHOLE)
    changelog = made.read("CHANGELOG.md")
    made.write("CHANGELOG.md", changelog.replace("## Unreleased\n", "## Unreleased\n\n- The entry of a test.\n"))
    made.commit("An entry")
    return made


@pytest.fixture(scope="module")
def packages(repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of the version that this tree states."""
    folder = tmp_path_factory.mktemp("packages")
    python_packages(export(repository.folder, "HEAD", tmp_path_factory.mktemp("tree")), folder, DAY)
    return folder


@pytest.fixture(scope="module")
def wheel(packages: Path) -> Path:
    (found,) = packages.glob("*.whl")
    return found


def test_the_wheel_is_every_file_of_the_packages_and_no_other(wheel: Path, repository: Repository) -> None:
    wanted = {
        f"{place}/{name.removeprefix(folder + '/')}"
        for folder, place in PACKAGES.items() for name in repository.git("ls-files", folder).splitlines()}  # fmt: skip
    with zipfile.ZipFile(wheel) as content:
        assert {each for each in content.namelist() if ".dist-info/" not in each} == wanted


def test_its_metadata_have_the_bounds_and_extras_of_the_project(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as content:
        (name,) = (each for each in content.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(content.read(name).decode())
    told = {(each.name.lower(), str(each.specifier), str(each.marker or "")) for each in map(
        Requirement, metadata.get_all("Requires-Dist") or ())}  # fmt: skip
    wanted = {(each.name.lower(), str(each.specifier), "") for each in map(Requirement, project["dependencies"])}
    for extra, lines in project["optional-dependencies"].items():
        for each in map(Requirement, lines):  # an extra that has another has its packages
            own = each.name == "hapaxlog"
            parts = [line for name in each.extras for line in project["optional-dependencies"][name]] if own else []
            wanted |= {(part.name.lower(), str(part.specifier), f'extra == "{extra}"') for part in map(
                Requirement, parts if own else [str(each)])}  # fmt: skip
    assert told == wanted
    assert set(metadata.get_all("Provides-Extra") or ()) == set(project["optional-dependencies"])
    assert (metadata["Version"], metadata["License-Expression"]) == (project["version"], "Apache-2.0")


def test_the_sdist_has_what_the_wheel_is_made_of_and_no_more(packages: Path, repository: Repository) -> None:
    """That it builds the same wheel, byte for byte, is a condition of `python_packages`."""
    (sdist,) = packages.glob("*.tar.gz")
    top = {".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"}
    with tarfile.open(sdist) as content:
        names = {each.name.partition("/")[2] for each in content}
        assert {each.mtime for each in content} == {DAY}
    assert names == {"PKG-INFO", *top, *repository.git("ls-files", *PACKAGES).splitlines()}


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    try:
        find_etcd(sound_only=True)
    except LocalClusterError as error:
        pytest.skip(str(error))
    yield Environment(Newcomer(tmp_path, hasty=True), "environment")
    shutil.rmtree(tmp_path / "home")  # a hundred megabytes, which pytest would keep


def test_in_an_empty_environment_it_runs_a_cluster_and_transactions(environment: Environment, wheel: Path) -> None:
    environment.install(wheel)
    try_cluster(environment, wheel.name.split("-")[1])


@pytest.mark.timeout(300)  # two whole builds: ten seconds of computing, minutes beside other work
def test_two_builds_of_a_commit_are_the_same_bytes_and_a_third_of_its_tag(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    binaries = find()
    if binaries is None and shutil.which("helm") is None:
        pytest.skip("there is no helm: `make kube-binaries` builds one where there is a Go toolchain")
    version = "9.0.0rc1"
    words = [version, "--images", "none", "--out"]
    assert main([*words, str(tmp_path / "one")], repository.folder) == 0, capsys.readouterr().err
    first = tmp_path / "one" / version
    assert {each.name for each in first.iterdir()} == {
        "hapaxlog-9.0.0rc1-py3-none-any.whl", "hapaxlog-9.0.0rc1.tar.gz", "hapax-9.0.0-rc.1.tgz", "RELEASE-NOTES.md",
        "SHA256SUMS", "sbom-wheel-9.0.0rc1.cdx.json"}
    sums = dict(line.split("  ")[::-1] for line in (first / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in first.iterdir()
        if each.name != "SHA256SUMS"}  # fmt: skip
    assert (first / "RELEASE-NOTES.md").read_text().startswith("# Hapax 9.0.0rc1\n\n- The entry of a test.\n")
    with tarfile.open(first / "hapax-9.0.0-rc.1.tgz") as chart:
        stated = chart.extractfile("hapax/Chart.yaml").read().decode()  # type: ignore[union-attr]
    assert "\nversion: 9.0.0-rc.1\n" in stated and "\nappVersion: 9.0.0-rc.1\n" in stated

    # A clone elsewhere, whose files have other times and modes, on another day.
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    repository.git("tag", "v9.0.0rc1")
    clone = tmp_path / "a" / "clone"
    repository.git("clone", "--quiet", str(repository.folder), str(clone))
    (clone / "services" / "hapax" / "leftover.pyc").write_text("ignored")
    assert main([*words, str(tmp_path / "two"), "--again"], clone) == 0, capsys.readouterr().err
    assert (tmp_path / "two" / version / "SHA256SUMS").read_text() == (first / "SHA256SUMS").read_text()

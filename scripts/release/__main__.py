"""Makes a release from the present commit: `make release VERSION=1.2.0`. Publishes nothing.

    python -m scripts.release VERSION [--images NAME,...|none] [--again] [--offline] [--out FOLDER]

Where the tree states an earlier version, it first commits "Release VERSION": the version in pyproject.toml and in the
chart, and the changelog's 'Unreleased' under the version's name. Then it builds everything from that commit into
build/release/VERSION. `--again`: build a version whose tag names the present commit, to compare it with what was
published. `--offline`: go by the tags that are here, without those of the remotes. Exit code 1: refused; one line says
why.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from packaging.version import Version
from scripts.release.changelog import cut, notes
from scripts.release.parts import Commit, build, export, run, say
from scripts.release.versions import Refused, of_tags, released, semver, tag

ROOT: Final = Path(__file__).resolve().parents[2]
IMAGES: Final = ("hapax", "hapax-load", "hapax-spark", "hapax-spark-s3")
CHART: Final = "charts/hapax/Chart.yaml"


def main(words: list[str] | None = None, repository: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version")
    parser.add_argument("--images", default=",".join(IMAGES), help="default: %(default)s; none: no images")
    parser.add_argument("--again", action="store_true", help="build a version that is tagged here once more")
    parser.add_argument("--offline", action="store_true", help="go by the tags that are here alone")
    parser.add_argument("--out", type=Path, default=repository / "build" / "release")
    asked = parser.parse_args(words)
    images = [] if asked.images == "none" else re.split("[ ,]+", asked.images)
    try:
        if unknown := set(images) - set(IMAGES):
            raise Refused(f"no image is called {', '.join(sorted(unknown))}; there are {', '.join(IMAGES)}")
        version = released(asked.version)
        check(repository, version, again=asked.again, offline=asked.offline)
        if images and os.geteuid() != 0:
            raise Refused("images need root (mmdebstrap); IMAGES=none makes the release without them")
        helm = find_helm(repository)
        commit = committed(repository, version)
        folder = made(repository, version, commit, helm, images, asked.out)
    except Refused as error:
        say(str(error))
        return 1
    for each in sorted(folder.iterdir()):
        print(each)
    if not asked.again:
        say(f"nothing is published. Try it: make release-test VERSION={version}. Then: git tag -a {tag(version)} "
            f"{commit.sha[:12]}, and docs/releasing.md")
    return 0


def check(repository: Path, version: Version, *, again: bool, offline: bool = False) -> None:
    """Raises Refused unless this commit may become this version."""
    if dirty := run(["git", "status", "--porcelain"], repository).splitlines():
        raise Refused(f"the tree is not clean, so no commit would name what is built: {', '.join(dirty[:5])}")
    tags = of_tags(run(["git", "tag"], repository).split())
    if again:
        if version not in tags:
            raise Refused(f"there is no tag {tag(version)}")
        if _sha(repository, f"{tag(version)}^{{commit}}") != _sha(repository, "HEAD"):
            raise Refused(f"{tag(version)} is another commit: git checkout {tag(version)}")
        if _stated(repository) != version:
            raise Refused(f"{tag(version)} states the version {_stated(repository)}")
        return
    if not offline:
        check_remotes(repository, version)
    if version in tags:
        raise Refused(f"{version} is released: there is a tag {tag(version)}")
    # A branch for corrections of an earlier release does not have the later ones' tags.
    former = of_tags(run(["git", "tag", "--merged", "HEAD"], repository).split())
    if former and version < max(former):
        raise Refused(f"{version} is not newer than {max(former)}, which this commit contains")
    if version < _stated(repository):
        raise Refused(f"{version} is not newer than {_stated(repository)}, which pyproject.toml states")


def check_remotes(repository: Path, version: Version) -> None:
    """Raises Refused unless this clone has all tags of versions that its remotes have: a clone knows those of its last
    fetch."""
    here = set(run(["git", "tag"], repository).split())
    for remote in run(["git", "remote"], repository).split():
        try:
            told = run(["git", "ls-remote", "--tags", "--refs", remote], repository, {"GIT_TERMINAL_PROMPT": "0"})
        except Refused as error:
            raise Refused(
                f"the tags of {remote} cannot be read, so {version} may be released already (--offline goes by the tags"
                f" that are here): {error}") from None
        names = {line.split("refs/tags/", 1)[1] for line in told.splitlines()} - here
        if missing := sorted(name for name in names if of_tags([name])):
            raise Refused(
                f"{remote} has the tags {', '.join(missing)}, which are not here: git fetch --tags {remote}")


def committed(repository: Path, version: Version) -> Commit:
    """The commit that states this version; made where pyproject.toml states an earlier one. Raises Refused."""
    changelog = repository / "CHANGELOG.md"
    if _stated(repository) != version:
        if not run(["git", "branch", "--show-current"], repository).strip():
            raise Refused("no branch is checked out: the commit that states the version would be lost")
        text = cut(changelog.read_text(), version, datetime.now(UTC).date())
        notes(text, version)  # refuses before anything has changed
        names = ["CHANGELOG.md", "pyproject.toml", CHART]
        try:
            changelog.write_text(text)
            state(repository, version)
            run(["git", "commit", "--quiet", "--message", f"Release {version}", "--", *names], repository)
        except Refused:  # such as by a hook, or because git has no name of an author: the next run needs a clean tree
            run(["git", "checkout", "--quiet", "HEAD", "--", *names], repository)
            raise
        say(f"committed 'Release {version}'")
    notes(changelog.read_text(), version)
    return Commit(_sha(repository, "HEAD"), int(run(["git", "show", "-s", "--format=%ct", "HEAD"], repository)))


def state(repository: Path, version: Version) -> None:
    """Writes the version into pyproject.toml, and as SemVer has it into the chart."""
    _replace(repository / "pyproject.toml", r'^version = ".*"$', f'version = "{version}"')
    _replace(repository / CHART, r"^version: .*$", f"version: {semver(version)}")
    _replace(repository / CHART, r"^appVersion: .*$", f"appVersion: {semver(version)}")


def made(
    repository: Path, version: Version, commit: Commit, helm: Path, images: list[str], out: Path
) -> Path:
    """OUT/VERSION, whole: a build that fails leaves what was there before. Raises Refused."""
    target = out.resolve() / str(version)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as name:
        tree = export(repository, commit.sha, Path(name))
        fresh = Path(name) / "release"
        fresh.mkdir()
        build(tree, fresh, version, commit, helm, images)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    return target


def find_helm(repository: Path) -> Path:
    """One from the PATH, or the tests' own, which is built where it is missing. Raises Refused."""
    if found := shutil.which("helm"):
        return Path(found)
    return Path(run([repository / "scripts" / "kubernetes" / "build.sh"], repository).strip()) / "helm"


def _stated(repository: Path) -> Version:
    return Version(tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"])


def _replace(path: Path, line: str, by: str) -> None:
    text, count = re.subn(line, by, path.read_text(), flags=re.MULTILINE)
    if count != 1:
        raise Refused(f"{path.name} has {count} lines like {line}")
    path.write_text(text)


def _sha(repository: Path, name: str) -> str:
    return run(["git", "rev-parse", name], repository).strip()


if __name__ == "__main__":
    sys.exit(main())

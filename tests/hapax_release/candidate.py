"""A release candidate of the present commit, made twice: in two clones, with other paths and caches."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

from packaging.version import Version
from scripts.release.parts import SUMS

from hapax_kube.binaries import cache
from hapax_release.newcomer import ROOT, Failed, run

_OWN = ("own-", "load-own-", "hapax-", "hapax-load-", "hapax-spark-")
"""What the second build makes once more. The other layers are Debian's packages and Python's, the same for both."""


def make_twice(folder: Path, images: str) -> Path:
    """The folder of the release, in the first clone. Raises Failed where the two differ."""
    first, second = folder / "first", folder / "second" / "clone"
    one = _make(ROOT, first, images, {})
    two = _make(first, second, images, {"XDG_CACHE_HOME": str(_bases(folder / "cache"))})
    sums = [set((each / SUMS).read_text().splitlines()) for each in (one, two)]
    if sums[0] != sums[1]:
        raise Failed("two builds differ in " + ", ".join(sorted({each.split()[1] for each in sums[0] ^ sums[1]})))
    for each in two.iterdir():
        each.unlink()  # images are large
    return one


def _make(source: Path, clone: Path, images: str, more: dict[str, str]) -> Path:
    named = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
             for what, value in (("NAME", "release-test"), ("EMAIL", "release-test@example.org"))}  # fmt: skip
    environment = {**os.environ, **named, **more}
    run(["git", "clone", "--quiet", "--no-tags", source, clone], cwd=source, env=environment)
    if not run(["git", "branch", "--show-current"], cwd=clone, env=environment).strip():
        run(["git", "switch", "--quiet", "--create", "candidate"], cwd=clone, env=environment)
    stated = Version(tomllib.loads((clone / "pyproject.toml").read_text())["project"]["version"])
    version = f"{stated.base_version}rc1" if stated.is_devrelease else str(stated)
    run([sys.executable, "-m", "scripts.release", version, "--offline", "--images", images, "--out", clone / "release"],
        cwd=clone, env=environment, seconds=3600)  # fmt: skip
    return clone / "release" / version


def _bases(folder: Path) -> Path:
    """A cache that has everything of this user's but the layers and images of Hapax itself."""
    target = folder / "hapax" / "images"
    target.mkdir(parents=True)
    for each in cache().iterdir():
        if each.name != "images":
            (folder / "hapax" / each.name).symlink_to(each)
    for each in (cache() / "images").glob("*.tar"):
        if not each.name.startswith(_OWN):
            (target / each.name).symlink_to(each)
    return folder

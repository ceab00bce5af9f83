"""Builds the files of a release from an export of its commit. The same commit gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from packaging.version import Version
from scripts.images.oci import write_oci
from scripts.release.changelog import notes
from scripts.release.versions import Refused, semver

SUMS: Final = "SHA256SUMS"
NOTES: Final = "RELEASE-NOTES.md"


@dataclass(frozen=True, slots=True)
class Commit:
    sha: str
    epoch: int
    """Its time, in seconds since 1970: the time of everything that is built (SOURCE_DATE_EPOCH)."""


def say(text: str) -> None:
    print(f"release: {text}", file=sys.stderr, flush=True)


def run(command: Sequence[str | Path], cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Standard output. Raises Refused with the end of what it wrote to standard error."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})})
    if done.returncode:
        words = " ".join(map(str, command[:6]))
        raise Refused(f"{words} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def export(repository: Path, sha: str, folder: Path) -> Path:
    """The files of that commit, with its time: nothing that is ignored or changed can get into a release."""
    archive = folder / "tree.tar"
    settings = ("-c", "tar.umask=0022", "-c", "core.autocrlf=false", "-c", "core.eol=lf")  # not this user's
    run(["git", *settings, "archive", f"--output={archive}", sha], repository)
    with tarfile.open(archive) as content:
        content.extractall(folder / "tree", filter="data")
    return folder / "tree"


def build(tree: Path, out: Path, version: Version, commit: Commit, helm: Path, images: Sequence[str]) -> None:
    """Writes all files of the release into `out`, which is empty. Raises Refused."""
    (out / NOTES).write_text(notes((tree / "CHANGELOG.md").read_text(), version))
    say("wheel and sdist")
    python_packages(tree, out, commit.epoch)
    say("chart")
    chart(tree, out, version, helm)
    archives = [image(tree, out, name, version, commit) for name in images]
    say("SBOMs")
    sboms(tree, out, version, archives, images)
    (out / SUMS).write_text(sums(out))


def python_packages(tree: Path, out: Path, epoch: int) -> None:
    """The sdist, and the wheel. Both the tree and the sdist must give the same wheel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _hatch(tree, folder / "tree", epoch, "sdist", "wheel")
        (sdist,) = (folder / "tree").glob("*.tar.gz")
        with tarfile.open(sdist) as content:
            content.extractall(folder / "sources", filter="data")
        (sources,) = (folder / "sources").iterdir()
        _hatch(sources, folder / "again", epoch, "wheel")
        (wheel,) = (folder / "tree").glob("*.whl")
        if (folder / "again" / wheel.name).read_bytes() != wheel.read_bytes():
            raise Refused(f"the sdist builds another {wheel.name} than the tree")
        for each in (sdist, wheel):
            shutil.copy(each, out)


def _hatch(sources: Path, out: Path, epoch: int, *targets: str) -> None:
    words = [word for target in targets for word in ("-t", target)]
    run([sys.executable, "-m", "hatchling", "build", "-d", str(out), *words], sources,
        {"SOURCE_DATE_EPOCH": str(epoch)})  # fmt: skip


def chart(tree: Path, out: Path, version: Version, helm: Path) -> None:
    """Helm keeps the files' times, which are the commit's. The tree's chart has the version already."""
    wanted = semver(version)
    run([helm, "package", tree / "charts" / "hapax", "--version", wanted, "--app-version", wanted, "-d", out], tree)


def image(tree: Path, out: Path, name: str, version: Version, commit: Commit) -> Path:
    """Returns the archive in the user's cache, from which the release's is made."""
    say(f"image {name}")
    printed = run([sys.executable, tree / "scripts" / "images" / "build.py", name], tree)
    stored = Path(printed.strip().split(" ", 1)[1])
    called = "org.opencontainers.image"
    digest = write_oci(stored, out / f"{name}-{semver(version)}.oci.tar", f"localhost/{name}:{semver(version)}", {
        f"{called}.title": name, f"{called}.version": semver(version), f"{called}.revision": commit.sha,
        f"{called}.licenses": "Apache-2.0",
        f"{called}.created": datetime.fromtimestamp(commit.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    })  # fmt: skip
    say(f"image {name}: {digest}")
    return stored


def sboms(tree: Path, out: Path, version: Version, archives: Sequence[Path], images: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        words = [word for each in archives for word in ("--archive", str(each))]
        run([sys.executable, "-m", "scripts.supply.sbom", "--out", name, *words, *images, "wheel"], tree)
        for each in sorted(Path(name).iterdir()):
            kind = each.name.removesuffix(".cdx.json")
            shutil.copy(each, out / f"sbom-{kind}-{version if kind == 'wheel' else semver(version)}.cdx.json")


def sums(folder: Path) -> str:
    """As `sha256sum` prints it, of all files of the folder."""
    lines = []
    for each in sorted(folder.iterdir()):
        if each.name != SUMS:
            with open(each, "rb") as content:
                lines.append(f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {each.name}\n")
    return "".join(lines)

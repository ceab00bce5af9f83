"""The first phase's last commit: its chart, its image, and what its own tests installed.

All of it is built from that commit's tree, by its own scripts, in a cache of its own: their archives do not push out
those of this tree.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from hapax_kube.binaries import ROOT, NoKubernetes, cache

COMMIT: Final = "a76baed761d5e07d071e8a979909df241e741f70"
REPOSITORY: Final = "localhost/hapax"
TAG: Final = "former"
_FOLDER: Final = cache() / "former" / COMMIT[:12]


def tree() -> Path:
    """The folder with all files of the commit. Raises NoKubernetes where Git does not have it."""
    found = _FOLDER / "tree"
    if not found.exists():
        archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            raise NoKubernetes(f"commit {COMMIT[:8]} is not here (a clone without its history?)")
        unfinished = _FOLDER / "tree.new"
        unfinished.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(unfinished, filter="tar")
        unfinished.rename(found)
    return found


def image() -> Path:
    """Its image as a docker-archive, called `REPOSITORY:TAG`: the tests' own image has the name that it was built
    under. Raises NoKubernetes."""
    source = tree()
    renamed = _FOLDER / "hapax.tar"
    if not renamed.exists():
        images = _FOLDER / "hapax" / "images"
        images.mkdir(parents=True, exist_ok=True)
        for base in (cache() / "images").glob("base-*.tar"):  # used if its hash is the one that the scripts want
            (images / base.name).unlink(missing_ok=True)
            os.link(base, images / base.name)
        done = subprocess.run(
            [sys.executable, "scripts/images/build.py", "hapax"], cwd=source, stdout=subprocess.PIPE, text=True,
            check=False, env={**os.environ, "PYTHONPATH": str(source / "services"), "XDG_CACHE_HOME": str(_FOLDER)})
        if done.returncode:
            raise NoKubernetes(f"the image of {COMMIT[:8]} cannot be built here (exit code {done.returncode})")
        _rename(Path(done.stdout.split()[1]), renamed)
    return renamed


def _rename(archive: Path, target: Path) -> None:
    unfinished = target.with_suffix(".new")
    with tarfile.open(archive) as source, tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as renamed:
        for entry in source:
            content = source.extractfile(entry)
            assert content is not None
            if entry.name == "manifest.json":
                (manifest,) = json.load(content)
                data = json.dumps([{**manifest, "RepoTags": [f"{REPOSITORY}:{TAG}"]}]).encode()
                entry.size, content = len(data), io.BytesIO(data)  # type: ignore[assignment]
            renamed.addfile(entry, content)
    unfinished.rename(target)

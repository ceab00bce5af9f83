"""A repository of its own with this working tree's files, to make releases from."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SMALL = ("pyproject.toml", "CHANGELOG.md", "charts/hapax/Chart.yaml", ".gitignore")
"""What the verb itself reads and writes."""
WHOLE = (*SMALL, "README.md", "LICENSE", "requirements.lock", "proto", "services", "spark", "operator", "load",
         "charts", "images", "scripts")  # fmt: skip
"""What everything but images is built from."""
DAY = 1_770_000_000


class Repository:
    def __init__(self, folder: Path, names: Sequence[str] = SMALL) -> None:
        self.folder = folder
        folder.mkdir()
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *names], cwd=ROOT,
            capture_output=True, text=True, check=True)
        for name in listed.stdout.splitlines():
            if (ROOT / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        self.git("init", "--quiet", "--initial-branch=main")
        for key, value in {"user.name": "A Maintainer", "user.email": "maintainer@example.org", "gc.auto": "0"}.items():
            self.git("config", key, value)
        self.commit("Everything")

    def git(self, *words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=self.folder, capture_output=True, text=True, check=True,
            env={**os.environ, "GIT_AUTHOR_DATE": f"{DAY} +0000", "GIT_COMMITTER_DATE": f"{DAY} +0000"}).stdout.strip()

    def commit(self, message: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

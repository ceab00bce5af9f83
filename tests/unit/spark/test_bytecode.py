"""The archive of Spark's Python workers gets bytecode (scripts/spark_bytecode.py)."""

from __future__ import annotations

import marshal
import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random
from types import CodeType, SimpleNamespace

import pytest
from scripts import spark_bytecode
from scripts.spark_bytecode import add_bytecode


def _archive(folder: Path) -> Path:
    folder.mkdir()
    archive = folder / "made.zip"
    with zipfile.ZipFile(archive, "w") as content:
        for name, text in (
            ("made/__init__.py", f"DATA = {Random(1).randbytes(1 << 16)!r}"),
            ("made/worker.py", "assert __file__.endswith('.pyc'), __file__"),
            ("made/tests/test_worker.py", "1 is 1"), ("made/notes.txt", "no code"),
        ):  # fmt: skip
            content.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), text)
    return archive


def test_a_worker_finds_bytecode_in_the_archive(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "a")
    command = [sys.executable, "-c", "import made.worker"]
    assert subprocess.run(command, env={"PYTHONPATH": str(archive)}, capture_output=True, check=False).returncode == 1
    assert add_bytecode(archive) == 2
    subprocess.run(command, env={"PYTHONPATH": str(archive)}, check=True)
    assert add_bytecode(archive) == 0


def test_the_same_archive_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = _archive(tmp_path / "a"), _archive(tmp_path / "b")
    add_bytecode(first)
    add_bytecode(second)
    assert first.read_bytes() == second.read_bytes()


def test_the_archive_is_whole_at_each_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, set-up would find an archive that it cannot read, and so would each of Spark's workers."""
    archive = _archive(tmp_path / "a")
    before = archive.read_bytes()
    seen: list[bytes] = []

    def dumps(code: CodeType) -> bytes:
        seen.append(archive.read_bytes())
        return marshal.dumps(code)

    monkeypatch.setattr(spark_bytecode, "marshal", SimpleNamespace(dumps=dumps))
    assert add_bytecode(archive) == 2
    assert seen == [before, before]
    assert [each.name for each in archive.parent.iterdir()] == [archive.name]


def test_the_cache_of_a_package_manager_keeps_its_file(tmp_path: Path) -> None:
    """uv makes hard links to its cache, from which the environments of other Pythons are made too."""
    cached = _archive(tmp_path / "cache")
    before = cached.read_bytes()
    installed = tmp_path / "installed.zip"
    installed.hardlink_to(cached)
    assert add_bytecode(installed) == 2
    assert cached.read_bytes() == before

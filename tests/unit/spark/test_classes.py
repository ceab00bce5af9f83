"""The file of Spark's classes, which the tests' JVMs start faster with, is no condition of the tests."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from integration import spark_classes


def late(words: list[str], **options: Any) -> None:
    raise subprocess.TimeoutExpired(words, 300)


@pytest.mark.parametrize("trouble", ["a machine that is too slow", "a folder that cannot be written"])
def test_without_the_file_the_tests_run_nevertheless(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make test` makes it first, and ends at the first command that fails."""
    build = tmp_path / "build"
    if trouble == "a folder that cannot be written":
        build.write_text("")
    monkeypatch.setattr(spark_classes.subprocess, "run", late)
    monkeypatch.setattr(spark_classes, "place", lambda: build / "spark-classes-0.jsa")
    spark_classes.main()
    assert "NOTE: no file of Spark's classes" in capsys.readouterr().err
    assert not build.is_dir() or not list(build.iterdir())


def test_the_file_is_of_the_java_that_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another Java is not used, and would never be made again."""
    for name in ("a", "b"):
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text("")
        java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "a" / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    of_path = spark_classes.place()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "b"))
    assert of_path is not None and spark_classes.place() not in (None, of_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    assert spark_classes.place() == of_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert spark_classes.place() is None

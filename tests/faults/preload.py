"""Compiles `faults.c` and writes its rules: failing syncs, full disks and wrong clocks for processes under test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

_SOURCE = Path(__file__).with_name("faults.c")
_BUILD = Path(__file__).parents[2] / "build" / "faults"


class NoCompiler(Exception):
    """There is no C compiler here, so these faults cannot be made."""


def library() -> Path:
    """The compiled library, made where it is missing or older than its source. Raises NoCompiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompiler("no C compiler on the PATH: install gcc")
    built = _BUILD / f"faults-{sha256(_SOURCE.read_bytes()).hexdigest()[:12]}.so"
    if not built.exists():
        _BUILD.mkdir(parents=True, exist_ok=True)
        new = built.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", new, _SOURCE, "-ldl"], check=True)
        new.replace(built)
    return built


class Rules:
    """The file of rules. Without rules there is no file, and processes pay one `access` per call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rules: list[str] = []

    def add(self, call: str, argument: str, subject: str) -> str:
        """`call`: sync, write or clock; see faults.c. Returns the rule, for `remove`."""
        rule = f"{call} {argument} {subject}\n"
        self._rules.append(rule)
        self._write()
        return rule

    def remove(self, rule: str) -> None:
        self._rules.remove(rule)
        self._write()

    def clear(self) -> None:
        self._rules.clear()
        self._write()

    def _write(self) -> None:
        if not self._rules:
            self.path.unlink(missing_ok=True)
            return
        new = self.path.with_suffix(".new")
        new.write_text("".join(self._rules))
        new.replace(self.path)

    def environment(self) -> dict[str, str]:
        """For the processes that shall obey. Raises NoCompiler."""
        return {"LD_PRELOAD": str(library()), "FAULT_RULES": str(self.path)}

    @contextmanager
    def preloaded(self) -> Iterator[None]:
        """What is started meanwhile obeys, and its children. Raises NoCompiler."""
        wanted = self.environment()
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

"""Runs the commands of a documentation page: the indented blocks of a section, in bash, one after another."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from hapax_kube.binaries import ROOT
from hapax_kube.tools import Tools

_LONGEST_S: Final = 900
_TRACED: Final = "PS4='+ $EPOCHREALTIME '; set -x\n"


def commands(page: str, heading: str) -> str:
    """The lines indented by four spaces below the heading, up to the next heading of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {heading!r}"
    lines = [line[4:] for line in found[1].splitlines() if line.startswith("    ")]
    assert lines, f"no commands under {heading!r}"
    return "\n".join(lines)


class Page:
    def __init__(self, path: Path, tools: Tools, folder: Path, **variables: str) -> None:
        """The commands run in `folder`, which also has the charts and scripts."""
        self._text = path.read_text()
        self._folder = folder
        self._environment = {
            **os.environ, **variables, "KUBECONFIG": str(tools.kubeconfig),
            "PATH": f"{tools.binaries}:{os.environ['PATH']}",
        }  # fmt: skip
        for name in ("charts", "scripts"):
            (folder / name).symlink_to(ROOT / name)

    def keep(self, given: Mapping[str, Any]) -> None:
        """Adds these to values.yaml: what `--set` has changed stays so with the next commands."""
        values = self._folder / "values.yaml"
        known = yaml.safe_load(values.read_text())
        for key, more in given.items():
            known[key] = {**known.get(key, {}), **more}
        values.write_text(yaml.safe_dump(known))

    def follow(self, heading: str, **variables: str) -> str:
        """The output of the commands. Before each command is a line `+ TIME COMMAND` (seconds since 1970). Raises
        AssertionError with the whole output if one of them fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", _TRACED + commands(self._text, heading)], cwd=self._folder,
            env={**self._environment, **variables}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=_LONGEST_S)
        assert done.returncode == 0, f"{heading}: exit code {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout


def seconds_until(said: str, command: str) -> float:
    """The time from the first command to the one that begins with `command`, in seconds."""
    began = [(float(at), words) for at, words in re.findall(r"^\+ ([0-9.]+) (.*)$", said, re.MULTILINE)]
    return next(at for at, words in began if words.startswith(command)) - began[0][0]

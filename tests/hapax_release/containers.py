"""Loads a release's images into a containerd of its own, and runs processes of them."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from hapax_release.newcomer import Failed, run

_ANSWERS_S: Final = 30
_LOOK_EVERY_S: Final = 0.1


class Containerd:
    """Below `folder`, with the tests' binaries; needs root and runc. Containers use this machine's loopback."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.folder, self._socket, self._numbers = folder, folder / "containerd.sock", itertools.count()
        self._ctr: list[str | Path] = [binaries / "ctr", "--address", self._socket]
        self._environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}
        folder.mkdir()
        (folder / "containerd.toml").write_text(f"""\
version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
                    "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
                    "io.containerd.nri.v1.nri"]
[grpc]
address = "{self._socket}"
[ttrpc]
address = "{self._socket}.ttrpc"
[plugins.'io.containerd.internal.v1.opt']
path = "{folder}/opt"
""")
        with open(folder / "containerd.log", "wb") as log:
            self._process = subprocess.Popen(
                [binaries / "containerd", "--config", folder / "containerd.toml"], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env=self._environment)

    def __enter__(self) -> Self:
        limit = time.monotonic() + _ANSWERS_S
        while subprocess.run([*self._ctr, "version"], capture_output=True, check=False).returncode:
            if time.monotonic() > limit or self._process.poll() is not None:
                self.__exit__()
                raise Failed("containerd does not answer: " + (self.folder / "containerd.log").read_text()[-2000:])
            time.sleep(_LOOK_EVERY_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def load(self, archive: Path) -> str:
        """The image's name."""
        printed = self._run("images", "import", "--local", archive)
        (name,) = (line.split()[0] for line in self._run("images", "ls").splitlines()[1:])
        if not printed:
            raise Failed(f"nothing was loaded from {archive.name}")
        return name

    def remove(self, name: str) -> None:
        self._run("images", "rm", "--sync", name)

    def run(self, image: str, *command: str | Path, mounts: Sequence[tuple[Path, str]] = ()) -> str:
        """Standard output of a command in a container of the image, as the image's own user. Raises Failed."""
        options = [
            word for source, target in mounts
            for word in ("--mount", f"type=bind,src={source},dst={target},options=rbind:ro")]  # fmt: skip
        return self._run("run", "--rm", "--net-host", *options, image, f"try-{next(self._numbers)}", *command)

    def _run(self, *words: str | Path) -> str:
        return run([*self._ctr, *words], cwd=self.folder, env=self._environment, seconds=300)

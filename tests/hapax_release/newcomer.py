"""Somebody who has a release and a Python, and nothing of this repository: environments, and a first try of Hapax."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hapax.local.etcd import find_etcd

ROOT: Final = Path(__file__).resolve().parents[2]
_KEPT: Final = ("PIP_", "UV_", "SSL_CERT_", "JAVA_", "LANG", "LC_", "TZ", "TMPDIR")
"""Variables of this environment that say where packages come from, and what the machine has."""
_KAFKA_PYTHON: Final = """
import sys
from kafka import KafkaConsumer, KafkaProducer

bootstrap = sys.argv[1]
producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="newcomer")
producer.init_transactions()
for value, commit in ((b"aborted", False), (b"from kafka-python", True)):
    producer.begin_transaction()
    producer.send("words", value)
    producer.commit_transaction() if commit else producer.abort_transaction()
producer.close()
consumer = KafkaConsumer("words", bootstrap_servers=bootstrap, auto_offset_reset="earliest",
                         isolation_level="read_committed")
seen = []
while len(seen) < 2:
    seen += [each.value.decode() for batch in consumer.poll(10_000).values() for each in batch]
print(*sorted(seen), sep=", ")
consumer.close()
"""


class Failed(AssertionError):
    """What a newcomer would have seen fail."""


def run(command: Sequence[str | Path], *, cwd: Path, env: dict[str, str], given: str = "", seconds: float = 600) -> str:
    """Standard output. Raises Failed with all that was printed."""
    done = subprocess.run(
        command, cwd=cwd, env=env, input=given, capture_output=True, text=True, check=False, timeout=seconds)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Newcomer:
    """`folder` is outside of every checkout. The home is empty, so nothing that was built or cached before is found.

    `hasty`: uses uv where there is one, takes packages from this user's cache at the versions of the lock file, and
    finds the etcd that tests find. The others meet what the registries have today.
    """

    def __init__(self, folder: Path, *, hasty: bool = False) -> None:
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        places = [each for each in os.environ["PATH"].split(os.pathsep) if not each.startswith(str(ROOT))]
        if hasty:
            (folder / "bin").mkdir()
            (folder / "bin" / "etcd").symlink_to(find_etcd(sound_only=True).path)
            places.insert(0, str(folder / "bin"))
        self.environment = {
            **{name: value for name, value in os.environ.items() if name.startswith(_KEPT)},
            "HOME": str(self.home), "PATH": os.pathsep.join(places), "PYTHONNOUSERSITE": "1",
            "PIP_CACHE_DIR": str(folder / "pip"),
        }  # fmt: skip
        own = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.uv = shutil.which("uv", path=own) if hasty else None
        if self.uv:
            self.environment.setdefault("UV_FIND_LINKS", os.environ.get("PIP_FIND_LINKS", ""))
            if certificates := os.environ.get("PIP_CERT"):
                self.environment.setdefault("SSL_CERT_FILE", certificates)
            self.environment["UV_CACHE_DIR"] = subprocess.run(
                [self.uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()


class Environment:
    """A virtual environment, empty at first."""

    def __init__(self, owner: Newcomer, name: str) -> None:
        self.owner = owner
        self.folder = owner.home / name
        base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        words = ["--without-pip"] if owner.uv else []
        self._run(base if base.exists() else sys.executable, "-m", "venv", *words, self.folder)

    def install(self, what: Path, *extras: str) -> None:
        """A wheel or an sdist, and what it needs."""
        wanted = f"hapaxlog[{','.join(extras)}] @ {what.as_uri()}"
        if self.owner.uv:
            self._run(self.owner.uv, "pip", "install", "--quiet", "--python", self.folder / "bin" / "python",
                      "--constraint", ROOT / "requirements.lock", wanted)  # fmt: skip
            return
        self.run("python", "-m", "pip", "install", "--quiet", wanted, seconds=1800)
        self.run("python", "-m", "pip", "check")

    def run(self, *words: str | Path, given: str = "", seconds: float = 600) -> str:
        """Standard output of a command of the environment. Raises Failed."""
        return self._run(self.folder / "bin" / words[0], *words[1:], given=given, seconds=seconds)

    def _run(self, *words: str | Path, given: str = "", seconds: float = 600) -> str:
        """As after `activate`: Spark's workers are the `python3` that the PATH has first."""
        known = self.owner.environment
        active = {**known, "PATH": os.pathsep.join([str(self.folder / "bin"), known["PATH"]])}
        return run(words, cwd=self.owner.home, env=active, given=given, seconds=seconds)


@contextmanager
def cluster(environment: Environment, *options: str) -> Iterator[str]:
    """The address of a cluster. `options`: of `hapax local up`. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        ready = environment.run("hapax", "local", "up", "--dir", folder, "--port", "0", "--detach", *options)
        try:
            yield ready.split()[1].removeprefix("bootstrap=")
        finally:
            environment.run("hapax", "local", "down", "--dir", folder)


def try_cluster(environment: Environment, expected_version: str, *options: str) -> None:
    """A cluster; a transaction by the command, one aborted and one committed by kafka-python; both are read. `options`:
    of `hapax local up`. Raises Failed."""
    if (told := environment.run("hapax", "--version")) != f"hapax {expected_version}\n":
        raise Failed(f"hapax --version printed {told!r}")
    with cluster(environment, *options) as address:
        where = ("--bootstrap", address)
        environment.run("hapax", "topic", "create", "words", "--partitions", "1", *where)
        environment.run("hapax", "produce", "words", "--transactional-id", "trying", *where, given="by the command\n")
        read = environment.run(
            "hapax", "consume", "words", "--from-beginning", "--isolation-level", "read_committed", "--max", "1",
            *where)
        if read != "by the command\n":
            raise Failed(f"hapax consume printed {read!r}")
        seen = environment.run("python", "-c", _KAFKA_PYTHON, address, seconds=60).strip()
        if seen != "by the command, from kafka-python":
            raise Failed(f"kafka-python read {seen!r}")

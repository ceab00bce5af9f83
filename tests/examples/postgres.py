"""A private PostgreSQL for tests, where one is installed (Debian's package `postgresql`)."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from integration.waiting import wait_until

_PR_SET_PDEATHSIG: Final = 1
_USER: Final = "postgres"


class Postgres:
    """A running server. It listens on a socket in its own folder only."""

    def __init__(self, binaries: Path, folder: Path, user: str | None, settings: Sequence[str]) -> None:
        self._binaries, self._socket, self._user = binaries, folder, user
        self._settings = [f"unix_socket_directories={folder}", "listen_addresses=", "fsync=off", *settings]

    def create(self) -> None:
        subprocess.run(
            [self._binaries / "initdb", "--pgdata", self._socket / "data", "--username", _USER, "--auth", "trust",
             "--no-sync"],
            user=self._user, cwd=self._socket, check=True, capture_output=True, timeout=60)

    def start(self) -> None:
        log = self._socket / "log"
        options = [part for each in self._settings for part in ("-c", each)]
        with log.open("wb") as output:
            self._server = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._socket / "data", *options], user=self._user, cwd=self._socket,
                stdout=output, stderr=output, preexec_fn=_end_with_parent)
        wait_until(
            lambda: self._server.poll() is not None or "ready to accept" in log.read_text(), "PostgreSQL", 60)
        assert self._server.poll() is None, log.read_text()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends its connections; after SIGQUIT it recovers at the next start, as after a crash."""
        self._server.send_signal(how)
        self._server.wait(30)

    def kill_and_start(self) -> None:
        self.stop(signal.SIGQUIT)
        self.start()

    def url(self, schema: str = "public", **session: str) -> str:
        """Tables without a schema in their name are in this one. `session`: settings of its sessions."""
        options = " ".join(f"-c{name}={value}" for name, value in {"search_path": schema, **session}.items())
        return f"postgresql://{_USER}@/postgres?host={self._socket}&options={quote(options)}"

    def query(self, sql: str, schema: str = "public") -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url(schema), autocommit=True) as connection:
            found = connection.execute(sql.encode())
            return found.fetchall() if found.description else []

    def new_schema(self, name: str) -> str:
        """Returns its URL."""
        self.query(f"create schema if not exists {name}")
        return self.url(name)


def _binaries() -> Path | None:
    """The folder of initdb and postgres: Debian keeps them off the PATH, a folder for each version."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()]
    return max(versions, key=lambda path: float(path.parent.name), default=None)


@contextmanager
def running_postgres(*settings: str) -> Iterator[Postgres]:
    """`settings` such as `max_prepared_transactions=10`. Skips the test where there is no PostgreSQL."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    user: str | None = None
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        try:
            pwd.getpwnam(_USER)
        except KeyError:
            pytest.skip(f"PostgreSQL does not run as root, and there is no user {_USER} here")
        user = _USER
    # Not in pytest's folders, which other users may not enter. A socket's path is short, too.
    folder = Path(tempfile.mkdtemp(prefix="hapax-pg-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        server = Postgres(binaries, folder, user, settings)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

"""The REST API as a process of its own beside a local cluster, and a small client for it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hapax.local.cluster import LocalCluster
from integration.etcd_process import dies_with_parent
from integration.waiting import wait_until

ADMIN_TOKEN = "test-admin-token-0001"
READER_TOKEN = "test-reader-token-001"
TOKENS = f"# name role token\nboss admin {ADMIN_TOKEN}\nviewer read-only {READER_TOKEN}\n"


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class AdminProcess:
    """`python -m hapax.admin.main`; `port` is where it answers."""

    def __init__(self, cluster: LocalCluster, folder: Path, **settings: object) -> None:
        """`settings` with underscores for dots."""
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "admin.log"
        self.tokens = folder / "tokens"
        self.tokens.write_text(TOKENS)
        state = cluster.status()
        chosen = {
            "cluster.id": state.cluster_id, "etcd.endpoints": f"127.0.0.1:{state.process('etcd').port}",
            "admin.listen": "127.0.0.1:0", "admin.tokens.file": self.tokens,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        words = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
        self._command = [sys.executable, "-m", "hapax.admin.main", *words]
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> AdminProcess:
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(dies_with_parent(self._command), stdout=log, stderr=log)
        wait_until(self._serves, f"line of an admin service that serves in {self.log}")
        return self

    def _serves(self) -> bool:
        assert self.process is not None
        found = re.search(r" serves .*\bport=(\d+)", self.log.read_text())
        assert found or self.process.poll() is None, self.log.read_text()
        self.port = int(found[1]) if found else 0
        return found is not None

    def close(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def call(
        self, method: str, path: str, body: object = None, *, token: str | None = ADMIN_TOKEN,
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """`body`: sent as JSON, or as it is where it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **how: Any) -> Any:
        """The JSON of a 200."""
        answered = self.call("GET", path, **how)
        assert answered.status == 200, answered
        return answered.json

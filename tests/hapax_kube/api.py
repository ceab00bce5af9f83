"""A Kubernetes API server on loopback: etcd, kube-apiserver, and the controllers that delete namespaces and collect
objects without an owner. There are no nodes: objects are validated, stored and watched, but pods never run.

It is ready after about four seconds. All files are in one folder; the processes end with the one that started them.
"""

from __future__ import annotations

import json
import secrets
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from integration.etcd_process import dies_with_parent, held_ports

_READY_S: Final = 90.0
_LOOK_EVERY_S: Final = 0.1
_CONTROLLERS: Final = "namespace-controller,garbage-collector-controller,disruption-controller"
MASTERS: Final = "system:masters"


class ApiError(Exception):
    """An error answer of the API server: `code` is its HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class KubeApi:
    """Call `start()`, then use `kubeconfig`, or the API directly: `api.get("/api/v1/namespaces")`."""

    users: Mapping[str, tuple[str, str]] = {
        "admin": ("admin", MASTERS), "controller-manager": ("controller-manager", MASTERS)}
    """For each kubeconfig: the user that its token identifies, and the user's group."""
    names = "DNS:localhost,DNS:kubernetes"
    """Names in the server's certificate, besides its address."""

    def __init__(self, binaries: Path, folder: Path, *, owned: bool = True, address: str = "127.0.0.1") -> None:
        """`owned`: the server's processes end when this process ends, for whatever reason."""
        self._owned = owned
        self.binaries = binaries
        self.folder = folder
        self.kubeconfig = folder / "admin.kubeconfig"
        self.address = address
        self.port, self._etcd_client, self._etcd_peer = held_ports(self, 3)
        self.server = f"https://{address}:{self.port}"
        self._tokens = {name: secrets.token_hex(16) for name in self.users}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tls: ssl.SSLContext | None = None

    # --- processes

    def start(self) -> KubeApi:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_keys()
        for user in self.users:
            self._write_kubeconfig(self.kubeconfig_path(user), user, self._tokens[user])
        self._run("etcd", self._etcd())
        self.start_server()
        self._run("kube-controller-manager", self._manager())
        return self

    def kubeconfig_path(self, user: str) -> Path:
        return self.folder / f"{user}.kubeconfig"

    def with_definitions(self, folder: Path) -> KubeApi:
        """Applies the resource definitions of a folder. Returns when their resources are listed: a definition that is
        established answers 429 for a moment more, until its storage is ready."""
        done = self.kubectl("apply", "-f", str(folder))
        assert done.returncode == 0, done.stderr
        done = self.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(folder))
        assert done.returncode == 0, done.stderr
        limit = time.monotonic() + _READY_S
        for path in sorted(folder.glob("*.yaml")):
            while (done := self.kubectl("get", f"{path.stem}.hapax.dev", "--all-namespaces")).returncode:
                assert time.monotonic() < limit, done.stderr
                time.sleep(_LOOK_EVERY_S)
        return self

    def kubectl(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.binaries / "kubectl", f"--kubeconfig={self.kubeconfig}", *words], input=text, capture_output=True,
            text=True, check=False, timeout=60)

    def start_server(self) -> None:
        """Starts only the API server. Returns when it is ready."""
        self._run("kube-apiserver", self._apiserver())
        self._wait_ready()

    def kill_server(self) -> None:
        """Kills the API server with SIGKILL: watches break, and calls are refused. Its etcd keeps running."""
        self._end("kube-apiserver")

    def pause_server(self) -> None:
        """Stops the API server: it keeps its connections and answers nothing."""
        self._processes["kube-apiserver"].send_signal(signal.SIGSTOP)

    def resume_server(self) -> None:
        self._processes["kube-apiserver"].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for name in list(self._processes):
            self._end(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def _run(self, name: str, arguments: list[str]) -> None:
        command = [str(self.binaries / name), *arguments]
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                dies_with_parent(command) if self._owned else command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=not self._owned)

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def _etcd(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd_client}", f"http://127.0.0.1:{self._etcd_peer}"
        return [
            "--name=e", f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=e={peer}",
        ]  # fmt: skip

    def _apiserver(self) -> list[str]:
        folder = self.folder
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_client}",
            f"--bind-address={self.address}", f"--advertise-address={self.address}", f"--secure-port={self.port}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--tls-cert-file={folder / 'server.crt'}", f"--tls-private-key-file={folder / 'server.key'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'accounts.key'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            "--profiling=false", *self._apiserver_alone(),
        ]  # fmt: skip

    def _apiserver_alone(self) -> list[str]:
        # No controller here creates service accounts, so pods must not require one.
        return [
            "--authorization-mode=RBAC", "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount",
        ]  # fmt: skip

    def _manager(self) -> list[str]:
        return [
            "--kubeconfig", str(self.kubeconfig_path("controller-manager")), "--leader-elect=false",
            "--bind-address=127.0.0.1", "--secure-port=0", f"--controllers={_CONTROLLERS}", "--profiling=false",
            # The garbage collector must know a kind before it can collect objects that it owned.
            "--concurrent-gc-syncs=4",
        ]

    # --- keys

    def _write_keys(self) -> None:
        folder = self.folder
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650",
            "-subj", "/CN=kube-apiserver", "-addext", f"subjectAltName=IP:{self.address},{self.names}",
            "-keyout", str(folder / "server.key"), "-out", str(folder / "server.crt"))  # fmt: skip
        _openssl("genrsa", "-out", str(folder / "accounts.key"), "2048")
        (folder / "tokens.csv").write_text("".join(
            f'{self._tokens[name]},{user},{user},"{group}"\n' for name, (user, group) in self.users.items()))
        self._tls = ssl.create_default_context(cafile=str(folder / "server.crt"))

    def kubeconfig_of(self, namespace: str, account: str) -> Path:
        """A kubeconfig with which a program authenticates as a service account."""
        granted = self.create(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}})
        path = self.folder / f"{namespace}-{account}.kubeconfig"
        self._write_kubeconfig(path, account, granted["status"]["token"])
        return path

    def _write_kubeconfig(self, path: Path, user: str, token: str) -> None:
        path.write_text(json.dumps({  # JSON is valid YAML
            "apiVersion": "v1", "kind": "Config", "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            "clusters": [{"name": "tests", "cluster": {
                "server": self.server, "certificate-authority": str(self.folder / "server.crt")}}],
            "users": [{"name": user, "user": {"token": token}}],
        }))

    # --- calls

    def _wait_ready(self) -> None:
        limit = time.monotonic() + _READY_S
        while True:
            try:
                self.call("GET", "/readyz")
                return
            except (OSError, ApiError) as error:
                process = self._processes["kube-apiserver"]
                if process.poll() is not None or time.monotonic() > limit:
                    raise AssertionError(
                        f"the API server does not serve: {error}\n{self.log('kube-apiserver')[-3000:]}") from None
            time.sleep(_LOOK_EVERY_S)

    def call(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", token: str = ""
    ) -> Any:
        """The decoded answer. `token`: another one than the administrator's. Raises ApiError, or OSError if the server
        does not answer."""
        request = urllib.request.Request(
            self.server + path, None if body is None else json.dumps(body).encode(), method=method,
            headers={"Authorization": f"Bearer {token or self._tokens['admin']}", "Content-Type": kind})
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=20) as response:
                answer = response.read()
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                text = json.loads(text)["message"]
            except (ValueError, KeyError, TypeError):
                text = text.strip()
            raise ApiError(error.code, text) from None
        return json.loads(answer) if answer.startswith(b"{") else answer.decode()

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def create(self, path: str, body: Any) -> Any:
        return self.call("POST", path, body)

    def patch(self, path: str, body: Any) -> Any:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)

    def exists(self, path: str) -> bool:
        try:
            self.get(path)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

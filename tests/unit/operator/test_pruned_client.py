"""The image has the Kubernetes client without its typed APIs and models (scripts/images/build.py). The operator works
without them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, fnmatch, importlib.abc, sys

PATTERNS = ["kubernetes.client.api.*", "kubernetes.client.models.*", "kubernetes.aio.client.api.*",
            "kubernetes.aio.client.models.*"]

class Pruned(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if any(fnmatch.fnmatch(name, pattern) for pattern in PATTERNS):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Pruned())
import hapax_operator.certificates_main, hapax_operator.main
from hapax_operator.api import KubeApi, KubeUnavailable, login
from hapax_operator.watching import connection

async def main():
    configuration = await login()
    info = await connection(configuration)
    assert (info.server, info.scheme, info.token) == ("https://127.0.0.1:1", "Bearer", "secret"), info
    api = KubeApi(configuration)
    await api.start()
    for call in (api.read("/api/v1/namespaces"), anext(api.follow("/api/v1/pods", "a=b"))):
        try:
            await call
        except KubeUnavailable as error:
            print("unavailable")
    await api.close()

asyncio.run(main())
"""


def test_the_operator_needs_no_typed_api(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}]}))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={"KUBECONFIG": str(kubeconfig), "PATH": "/usr/bin"}, capture_output=True,
        text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["unavailable", "unavailable"]

"""Folders of published Go modules: resource definitions and sources of what the chart works with."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Final

KEDA: Final = ("github.com/kedacore/keda/v2@v2.17.2", "h1:xlrcK5TKABJF9PebK79sgL07s/csGjL3H4m72OkZXxk=")
GATEWAY_API: Final = ("sigs.k8s.io/gateway-api@v1.6.0", "h1:735YBRj5NXFrOGX0GoSjwzUIzbz8kiEOfADsqHFmHgE=")


@lru_cache
def folder(module: str, checksum: str) -> Path | None:
    """`checksum`: as go.sum has it. None: there is no Go toolchain, or the module cannot be had."""
    if shutil.which("go") is None:
        return None
    done = subprocess.run(
        ["go", "mod", "download", "-json", module], capture_output=True, text=True, check=False, timeout=300, cwd="/")
    if done.returncode:
        return None
    found = json.loads(done.stdout)
    assert found["Sum"] == checksum, found["Sum"]
    return Path(found["Dir"])

"""`python -m hapax_kube up | down`: a Kubernetes API on loopback that goes on by itself, for trying the operator.

Exit codes: 0 done, 1 it does not start, 3 nothing runs (down), 4 no binaries.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from hapax.cli.local.folder import alive, start_time
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT, NoKubernetes, build, cache

_FOLDER = cache() / "kube"
_STATE = _FOLDER / "processes.json"


def up() -> int:
    if _running():
        print(f"it runs already: export KUBECONFIG={_FOLDER / 'admin.kubeconfig'}")
        return 0
    try:
        binaries = build()
    except NoKubernetes as error:
        print(error, file=sys.stderr)
        return 4
    shutil.rmtree(_FOLDER, ignore_errors=True)
    api = KubeApi(binaries, _FOLDER, owned=False)
    try:
        api.start().with_definitions(ROOT / "charts" / "hapax" / "files" / "crds")
    except BaseException:
        api.close()
        raise
    _STATE.write_text(json.dumps({name: [pid, start_time(pid)] for name, pid in api.pids().items()}))
    print(f"export KUBECONFIG={api.kubeconfig}\nexport PATH={binaries}:$PATH")
    return 0


def down() -> int:
    running = _running()
    for pid in running.values():
        os.kill(pid, signal.SIGKILL)  # nothing of it is worth keeping
    shutil.rmtree(_FOLDER, ignore_errors=True)
    return 0 if running else 3


def _running() -> dict[str, int]:
    """Those processes of the last `up` that are still the same."""
    if not _STATE.exists():
        return {}
    known = json.loads(_STATE.read_text())
    return {name: pid for name, (pid, started) in known.items() if alive(pid, started)}


if __name__ == "__main__":
    verbs = {"up": up, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in verbs:
        sys.exit(f"usage: python -m {Path(__file__).parent.name} up | down")
    sys.exit(verbs[sys.argv[1]]())

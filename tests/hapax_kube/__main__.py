"""Runs a Kubernetes cluster for trials, and the tests that need nodes.

    python -m hapax_kube up              starts an API server on loopback, without nodes
    python -m hapax_kube up NODES        starts a cluster with nodes, in a sandbox ("world"); needs root. Further names
                                         are images (scripts/images/build.py) to load on each node, such as hapax-load
    python -m hapax_kube enter COMMAND   runs a command in that sandbox, where it reaches the cluster's pods and names
    python -m hapax_kube down            stops what `up` started
    python -m hapax_kube bench KILLS     measures failovers: this many losses of a broker, of four kinds in turn
    python -m hapax_kube demo FLIGHTS    Spark on Kubernetes: counts this many flights once while pods are deleted
    python -m hapax_kube upgrade         upgrades a release of the first phase to this one under load
    python -m hapax_kube test [WORDS]    runs tests/kubernetes_nodes; WORDS are arguments of pytest. Uses the cluster of
                                         KUBECONFIG if that is set, or starts two and gives each half of the files

Exit codes: 0 done, 1 a start or a test failed, 3 no cluster is running (down, enter), 4 not possible on this computer.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hapax.local.folder import alive, start_time
from hapax_kube import former
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT, NoKubernetes, build, cache
from hapax_kube.halves import SECONDS, halves, outcome
from hapax_kube.images import DEMO_IMAGES, USUAL, build_images
from hapax_kube.world import INTERRUPTED, install_missing, run_in_world, why_not

_FOLDER = cache() / "kube"
_STATE = _FOLDER / "processes.json"
_KEEPER: Final = "keeper"
_INIT: Final = "init"
_READY_S: Final = 300.0
SKIPPED: Final = ROOT / "build" / "kube-test.skipped"
"""A file that says why `test` did not run, if it was not possible. Callers through make only see that it failed."""
TESTS: Final = ROOT / "tests" / "kubernetes_nodes"


def up(nodes: int, *images: str) -> int:
    if _running():
        print(f"already running: export KUBECONFIG={_FOLDER / 'admin.kubeconfig'}")
        return 0
    binaries = build()
    shutil.rmtree(_FOLDER, ignore_errors=True)
    return _up_with_nodes(binaries, nodes, images) if nodes else _up_alone(binaries)


def _up_alone(binaries: Path) -> int:
    api = KubeApi(binaries, _FOLDER, owned=False)
    try:
        api.start().with_definitions(ROOT / "charts" / "hapax" / "files" / "crds")
    except BaseException:
        api.close()
        raise
    _remember(api.pids())
    print(f"export KUBECONFIG={api.kubeconfig}\nexport PATH={binaries}:$PATH")
    return 0


def _up_with_nodes(binaries: Path, nodes: int, more: Sequence[str]) -> int:
    _possible()
    images = build_images(*USUAL, *more)
    _FOLDER.mkdir(parents=True)
    with open(_FOLDER / "keeper.log", "ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "hapax_kube.keeper", str(_FOLDER), str(binaries), str(nodes),
             *map(str, images.values())],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)  # fmt: skip
    ready = _FOLDER / "ready"
    limit = time.monotonic() + _READY_S
    while not ready.exists():
        if keeper.poll() is not None or time.monotonic() > limit:
            keeper.terminate()
            print((_FOLDER / "keeper.log").read_text(errors="replace")[-4000:], file=sys.stderr)
            return 1
        time.sleep(0.1)
    (unshare,) = _children(keeper.pid)
    (init,) = _children(unshare)
    _remember({_KEEPER: keeper.pid, _INIT: init})
    print(f"export KUBECONFIG={_FOLDER / 'admin.kubeconfig'}\nexport PATH={binaries}:$PATH")
    print("# images on every node: " + ", ".join(images))
    print(f"# with the cluster's names and addresses: PYTHONPATH={ROOT / 'tests'} {sys.executable} -m hapax_kube enter "
          "COMMAND")
    return 0


def enter(command: list[str]) -> int:
    running = _running()
    if _INIT not in running:
        print("no cluster with nodes is running (`make kube-up NODES=3`)", file=sys.stderr)
        return 3
    return subprocess.run(
        ["nsenter", f"--target={running[_INIT]}", "--net", "--mount", "--pid", f"--wdns={os.getcwd()}", *command],
        check=False).returncode


def down() -> int:
    running = _running()
    if _KEEPER in running:
        os.kill(running[_KEEPER], signal.SIGTERM)  # the keeper ends the sandbox and cleans up
        while alive(running[_KEEPER], start_time(running[_KEEPER])):
            time.sleep(0.1)
    else:
        for pid in running.values():
            os.kill(pid, signal.SIGKILL)  # these processes have no state worth keeping
    shutil.rmtree(_FOLDER, ignore_errors=True)
    return 0 if running else 3


def test(words: list[str]) -> int:
    SKIPPED.unlink(missing_ok=True)
    named = [word for word in words if not word.startswith("-") and Path(word.partition("::")[0]).exists()]
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(each for each in words if each not in named)]
    if os.environ.get("KUBECONFIG"):
        return subprocess.run([*pytest, *(named or [str(TESTS)])], check=False,
                              env={**os.environ, "HAPAX_KUBE_EXTERNAL": "1"}).returncode
    _possible()
    build()
    build_images(*DEMO_IMAGES)  # here, because a world has no way out
    files = named or [str(each) for each in sorted(TESTS.glob("test_*.py"))]
    parts = halves(files, SECONDS) if len(files) > 1 and all(Path(each).is_file() for each in files) else (files,)
    return _side_by_side([[*pytest, *part] for part in parts])


def _side_by_side(commands: list[list[str]]) -> int:
    """Runs each command in a world of its own: for the most part tests wait for pods. The first one's output is shown
    as it comes, the others' afterwards."""
    (ROOT / "build").mkdir(exist_ok=True)
    others = []
    for number, command in enumerate(commands[1:], 2):
        log = open(ROOT / "build" / f"kube-test-{number}.log", "w+")  # noqa: SIM115 - it outlives the loop
        others.append((log, subprocess.Popen(
            [sys.executable, "-m", "hapax_kube.world", *command], stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, "HAPAX_KUBE_FIGURES": f"kube-test-{number}.json"})))
    codes = [INTERRUPTED]
    try:
        codes[0] = run_in_world(commands[0], os.environ)
    finally:
        for log, process in others:
            if codes[0] == INTERRUPTED:  # from outside: the others may not have been
                process.terminate()
            codes.append(process.wait())
            log.seek(0)
            sys.stdout.write(log.read())
            log.close()
        sys.stdout.flush()
    return outcome(codes)


def bench(kills: int) -> int:
    _possible()
    build()
    build_images()
    return run_in_world([sys.executable, "-m", "hapax_kube.bench", str(kills)], os.environ)


def demo(flights: int) -> int:
    _possible()
    build()
    build_images(*DEMO_IMAGES)
    return run_in_world([sys.executable, "-m", "hapax_kube.demo", str(flights)], os.environ)


def upgrade() -> int:
    _possible()
    build()
    build_images()
    former.image()
    return run_in_world([sys.executable, "-m", "hapax_kube.upgrade"], os.environ)


def _possible() -> None:
    """Raises NoKubernetes if nodes cannot run on this computer."""
    install_missing()
    reason = why_not()
    if reason:
        raise NoKubernetes(f"nodes cannot run on this computer: {reason}")


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _remember(pids: dict[str, int]) -> None:
    _STATE.write_text(json.dumps({name: [pid, start_time(pid)] for name, pid in pids.items()}))


def _running() -> dict[str, int]:
    """The processes that the last `up` started and that still run."""
    if not _STATE.exists():
        return {}
    known = json.loads(_STATE.read_text())
    return {name: pid for name, (pid, started) in known.items() if alive(pid, started)}


def main(words: list[str]) -> int:
    try:
        match words:
            case ["up"]:
                return up(0)
            case ["up", nodes, *images] if nodes.isdigit():
                return up(int(nodes), *images)
            case ["down"]:
                return down()
            case ["enter", *command] if command:
                return enter(command)
            case ["bench", kills] if kills.isdigit():
                return bench(int(kills))
            case ["demo", flights] if flights.isdigit() and int(flights) > 0:
                return demo(int(flights))
            case ["upgrade"]:
                return upgrade()
            case ["test", *rest]:
                return test(rest)
    except NoKubernetes as error:
        print(f"SKIPPED: {error}", file=sys.stderr)
        SKIPPED.parent.mkdir(exist_ok=True)
        SKIPPED.write_text(f"{error}\n")
        return 4
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

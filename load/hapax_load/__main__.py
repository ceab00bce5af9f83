"""`python -m hapax_load`: puts load on a cluster while processes are killed, then counts every record.

Without `--bootstrap` it starts three brokers and two coordinators of its own and kills one process after another.
With `--secure` that cluster has TLS and logins on every port, and `--rotate-every` replaces all its certificates.
With `--kube NAMESPACE` it follows the load that the chart runs there, and kills pods. The exit code is 0 only if no
record was lost, doubled, shown or torn. Writes report.html, verdict.json and locust's own files.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from rich.console import Console
from rich.table import Table

from hapax.client import HapaxError, SettingsError
from hapax.local.cluster import LocalCluster
from hapax.local.folder import LocalClusterError
from hapax.local.secure import SecureFolder
from hapax.local.timeline import Kill
from hapax_load import connecting, pods, rotation, steadiness
from hapax_load.audit import Reading, audit, create_topics
from hapax_load.connecting import VARIABLE
from hapax_load.copier import Copier
from hapax_load.ledger import Ledger, Verdict, outcomes
from hapax_load.report import as_json, page
from hapax_load.serving import serve
from hapax_load.shapes import SHAPES
from hapax_load.statistics import read_history
from hapax_load.topics import ALL, PARTITIONS

USERS: Final = {"produce": "ProduceUser", "transactions": "TransactionUser", "copy": "CopyUser", "rest": "RestUser"}
VICTIMS: Final = ("broker-0", "coordinator-0", "broker-1", "controller-0", "broker-2", "coordinator-1", "pid-0")
_KILL_EVERY_S: Final = {"soak": 300.0}
_DOWN_S: Final = 3.0
"""From the kill of a process to its restart."""
_SAMPLE_S: Final = 5.0
_STOP_S: Final = 150
_SLACK_S: Final = 300
"""Time for locust to start, for its workers to connect, and for locust to end."""
_END_S: Final = 10
_COPY_LIMIT_S: Final = 600.0
_SOAKED: Final = {"segment.bytes": str(1 << 20), "retention.bytes": str(8 << 20)}
"""Configuration of a soak's topics. Retention keeps their size level after some minutes, so that memory and handles can
be judged. Every record is read before retention removes it."""
_SOAKING: Final = (
    "log.retention.check.interval.ms=10000",
    # The internal topics roll and compact segments every minute or two instead of every twenty.
    "transaction.state.log.segment.bytes=262144", "offsets.topic.segment.bytes=262144",
)
_IDLE_STEPS: Final = 2


class Background:
    """A thread that calls `each` repeatedly until the block ends. The block then raises the thread's exception."""

    def __init__(self, each: Callable[[], None], pause_s: float) -> None:
        self._each, self._pause_s = each, pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None

    def _run(self) -> None:
        try:
            while not self._over.wait(self._pause_s):
                self._each()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


class Killer:
    """Kills one process of a local cluster after another, and restarts it."""

    def __init__(self, cluster: LocalCluster, began: float) -> None:
        self._cluster, self._began = cluster, began
        self._victims: Iterator[str] = itertools.cycle(VICTIMS)
        self.kills: list[Kill] = []

    def __call__(self) -> None:
        victim = next(self._victims)
        self._cluster.kill(victim)
        self.kills.append(Kill(time.time() - self._began, victim))
        time.sleep(_DOWN_S)
        self._cluster.start(victim, timeout=120)


class Watch:
    """Samples every process of a local cluster, and restarts a process that ended by itself, as Kubernetes would."""

    def __init__(self, cluster: LocalCluster, began: float, files: SecureFolder | None = None) -> None:
        """`files`: of a secure cluster."""
        self._cluster, self._began, self._files = cluster, began, files
        self.lives: dict[int, steadiness.Watched] = {}
        self.ended: list[Kill] = []

    def __call__(self) -> None:
        now = time.monotonic()
        for process in self._cluster.status().processes:
            if process.state == "running":
                life = self.lives.setdefault(process.pid, steadiness.Watched(process.name, process.pid, now))
                tls = None if self._files is None else self._files.trust()
                steadiness.sample(life, now, process.http_port, tls)
            elif process.state.startswith("exited"):
                self.ended.append(Kill(time.time() - self._began, f"{process.name} (by itself)"))
                with contextlib.suppress(LocalClusterError):  # started, but not ready yet
                    self._cluster.start(process.name, timeout=120)

    def slopes(self) -> dict[str, dict[str, steadiness.Slope]]:
        judged = {f"{life.name} ({life.pid})": steadiness.slopes(life) for life in self.lives.values()}
        return {name: slopes for name, slopes in judged.items() if slopes is not None}


def locust_command(
    bootstrap: str, users_of: Sequence[str], *, users: int, seconds: float, shape: str = "steady",
    record_size: int = 200, host: str = "", workers: int = 0,
) -> list[str]:
    """Of one headless locust process. `users_of`: names of user classes; `workers`: the number of worker processes."""
    return [
        sys.executable, "-m", "locust", "-f", str(Path(__file__).with_name("locustfile.py")), "--headless",
        "--bootstrap", bootstrap, "--shape", shape, "--most-users", str(users), "--seconds", str(seconds),
        "--record-size", str(record_size), "--worker-count", str(max(workers, 1)), "--stop-timeout", str(_STOP_S),
        "--loglevel", "WARNING",
        "--exit-code-on-error", "0", "--host", host or "http://127.0.0.1", *users_of,
    ]


def locust(arguments: argparse.Namespace, bootstrap: str, out: Path) -> list[list[str]]:
    """The command lines: one process, or a master and its workers."""
    common = locust_command(
        bootstrap, [USERS[name] for name in arguments.users_of.split(",")], users=arguments.users,
        seconds=arguments.minutes * 60, shape=arguments.shape, record_size=arguments.record_size, host=arguments.rest,
        workers=arguments.expect_workers or arguments.workers)
    files = ["--csv", str(out / "locust"), "--csv-full-history", "--html", str(out / "locust.html"), "--only-summary",
             "--ledger", str(out / "ledger.jsonl")]
    if arguments.expect_workers:
        return [[*common, *files, "--master", "--master-bind-port", str(arguments.master_port),
                 "--expect-workers", str(arguments.expect_workers)]]
    if not arguments.workers:
        return [[*common, *files]]
    port = ["--master-port", str(arguments.master_port)]
    master = [*common, *files, "--master", "--master-bind-host", "127.0.0.1", "--master-bind-port",
              str(arguments.master_port), "--expect-workers", str(arguments.workers)]
    worker = [word for word in common if word != "--headless"]
    return [master] + [[*worker, "--worker", "--master-host", "127.0.0.1", *port]] * arguments.workers


def work_for(arguments: argparse.Namespace) -> None:
    """Replaces this process by a locust worker of a master elsewhere."""
    command = locust_command(
        arguments.bootstrap, [USERS[name] for name in arguments.users_of.split(",")], users=arguments.users,
        seconds=arguments.minutes * 60, shape=arguments.shape, record_size=arguments.record_size, host=arguments.rest,
        workers=arguments.expect_workers)
    command.remove("--headless")
    command += ["--worker", "--master-host", arguments.worker_of, "--master-port", str(arguments.master_port)]
    os.execve(sys.executable, command, {**os.environ, "LOCUST_REST_TOKEN": arguments.rest_token})


def drive(commands: Sequence[list[str]], token: str, out: Path, limit_s: float) -> None:
    """Runs the commands until the first ends. Raises RuntimeError if it fails, TimeoutError if it does not end."""
    environment = {**os.environ, "LOCUST_REST_TOKEN": token}
    with (out / "locust.log").open("ab") as log, contextlib.ExitStack() as stack:
        processes = []
        for command in commands:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
            stack.callback(_end, process)
            processes.append(process)
        try:
            code = processes[0].wait(limit_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"locust did not end within {limit_s:.0f} s: see {out / 'locust.log'}") from None
        if code != 0:
            raise RuntimeError(f"locust ended with {code}: see {out / 'locust.log'}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def copied_to_the_end(bootstrap: str) -> None:
    """Copies the records that the copying users left. Raises TimeoutError."""
    deadline = time.monotonic() + _COPY_LIMIT_S
    for partition in range(PARTITIONS):
        copier, idle = Copier(bootstrap, partition), 0
        # A fetch may return nothing although there are more records, and records that are not copied count as lost.
        while idle < _IDLE_STEPS:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the copies of partition {partition} did not catch up")
            try:
                idle = 0 if copier.step() else idle + 1
            except KafkaException:
                idle = 0
        copier.close()


def run(arguments: argparse.Namespace, console: Console) -> bool:
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("locust*"), *out.glob("*.jsonl"), *out.glob("samples.csv")):
        old.unlink()
    with contextlib.ExitStack() as stack:
        cluster: LocalCluster | None = None
        soaks = arguments.shape == "soak" and not arguments.bootstrap
        bootstrap = arguments.bootstrap
        if not bootstrap:
            cluster = LocalCluster(stack.enter_context(tempfile.TemporaryDirectory(prefix="hapax-load-")))
            settings = ["default.replication.factor=3", "min.insync.replicas=2", *(_SOAKING if soaks else ()),
                        *(rotation.SETTINGS if arguments.secure else ()), *arguments.set]
            rest = "rest" in arguments.users_of.split(",")
            state = cluster.up(
                brokers=3, coordinators=2, owned=True, settings=settings, admin=rest, secure=arguments.secure)
            stack.callback(cluster.down)
            bootstrap = state.bootstrap
            if arguments.secure:
                os.environ[VARIABLE] = str(SecureFolder(cluster.folder).profile)
                stack.callback(os.environ.pop, VARIABLE)
            if rest:
                scheme = "https" if arguments.secure else "http"
                arguments.rest = f"{scheme}://127.0.0.1:{state.process('admin-0').port}"
                arguments.rest_token = cluster.folder.rest_tokens().read_text().split()[-1]  # the read-only token
        create_topics(
            bootstrap, 3 if cluster is not None else arguments.replication, replace=arguments.replace,
            config=_SOAKED if soaks else None)
        began = time.time()
        print(pods.BEGINS, file=sys.stderr, flush=True)
        killer, rotated, watch, reading = None, None, None, None
        counting = contextlib.ExitStack()
        with contextlib.ExitStack() as beside:
            if cluster is not None:
                watch = Watch(cluster, began, SecureFolder(cluster.folder) if arguments.secure else None)
                beside.enter_context(Background(watch, _SAMPLE_S))
            if soaks:
                reading = stack.enter_context(Reading(bootstrap, ALL))
                stack.enter_context(counting).enter_context(Background(reading.step, 0.0))
            if cluster is not None and arguments.kill_every > 0:
                killer = Killer(cluster, began)
                beside.enter_context(Background(killer, arguments.kill_every))
            if cluster is not None and arguments.rotate_every > 0:
                rotated = rotation.Rotation(cluster, began)
                beside.enter_context(Background(rotated, arguments.rotate_every))
            limit_s = arguments.minutes * 60 + _STOP_S + _SLACK_S
            drive(locust(arguments, bootstrap, out), arguments.rest_token, out, limit_s)
        seconds = time.time() - began
        print(pods.OVER, file=sys.stderr, flush=True)
        copies = "copy" in arguments.users_of.split(",")
        if copies:
            copied_to_the_end(bootstrap)
        ledger = Ledger.read(out / "ledger.jsonl")
        counting.close()
        if reading is None:
            reading = stack.enter_context(Reading(bootstrap, ALL))
        reading.to_the_end()
        verdicts = audit(reading.seen, ledger, copied=copies)
    rotations = [] if rotated is None else rotated.done
    kills = [*(killer.kills if killer is not None else []), *(watch.ended if watch is not None else [])]
    courses = read_history(out / "locust_stats_history.csv", began)
    slopes: dict[str, dict[str, steadiness.Slope]] = {}
    if watch is not None:
        slopes = watch.slopes()
        steadiness.write_samples(watch.lives.values(), out / "samples.csv")
    if not all(verdict.kept for verdict in verdicts.values()):
        raise RuntimeError(f"a topic of the load has no acknowledged record: see {out / 'locust.log'}")
    steady = steadiness.steady(slopes)
    title = f"{arguments.shape} load, {arguments.users} users, {len(kills)} kills"
    if arguments.rotate_every > 0:
        title += f", all certificates replaced {len(rotations)} times"
    (out / "report.html").write_text(
        page(title, verdicts, courses, [*kills, *rotations], seconds, slopes), encoding="utf-8")
    told = as_json(verdicts, courses, kills) | {
        "slopes": {name: {each: asdict(found) for each, found in of.items()} for name, of in slopes.items()},
        "records": outcomes(ledger.facts()), "title": title, "began": began, "seconds": seconds,
        "rotations": [asdict(each) for each in rotations]}
    (out / "verdict.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    show(console, verdicts, title)
    if arguments.shape == "soak" and not steady:
        console.print("[red]not steady[/]" if slopes else "[red]no process lived long enough to be judged[/]")
    console.print(f"report: {out / 'report.html'}")
    clean = all(verdict.clean for verdict in verdicts.values())
    if arguments.rotate_every > 0 and killer is None:
        # Nothing but certificates has changed, and no client may have noticed.
        failures = {name: course.failures for name, course in courses.items() if course.failures}
        console.print(f"requests that failed: {failures or 'none'}")
        clean = clean and bool(rotations) and not failures
    return clean and (arguments.shape != "soak" or steady)


def show(console: Console, verdicts: dict[str, Verdict], title: str) -> None:
    names = ("kept", "unknown_kept", "unreported", "lost", "doubled", "shown", "torn")
    table = Table(title=title)
    for heading in ("topic", *names):
        table.add_column(heading.replace("_", " "), justify="left" if heading == "topic" else "right")
    for topic, verdict in verdicts.items():
        table.add_row(topic, *(f"{getattr(verdict, name):,}" for name in names))
    console.print(table)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hapax_load", description=__doc__)
    parser.add_argument("--bootstrap", default="", help="use this running cluster, and kill none of its processes")
    parser.add_argument(
        "--command-config", default=os.environ.get(VARIABLE, ""), metavar="FILE",
        help=f"settings of TLS and logins, with --bootstrap. Default: {VARIABLE}")
    parser.add_argument("--replication", type=int, default=-1, help="replicas of the topics, with --bootstrap")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--users", type=int, default=12)
    parser.add_argument("--users-of", default="produce,transactions,copy", help=f"kinds of users: {','.join(USERS)}")
    parser.add_argument("--shape", choices=SHAPES, default="steady", help="users over time")
    parser.add_argument("--record-size", type=int, default=200, help="bytes of a record's value")
    parser.add_argument(
        "--kill-every", type=float,
        help="seconds between kills; 0: kill nothing. Default: 15, and 300 for a soak, so that processes live long "
        "enough to be judged")
    parser.add_argument(
        "--secure", action="store_true", help="TLS, logins and permissions on every port of the own cluster")
    parser.add_argument(
        "--rotate-every", type=float, default=0.0,
        help="seconds between replacements of every certificate, with --secure; 0: none. With --kill-every 0, a "
        "request that fails is a failure of the load")
    parser.add_argument("--workers", type=int, default=0, help="locust worker processes; 0: one process in all")
    parser.add_argument("--master-port", type=int, default=5557)
    parser.add_argument(
        "--expect-workers", type=int, default=0,
        help="run only the locust master and wait for this many workers to connect; give the workers the same number")
    parser.add_argument("--worker-of", default="", metavar="HOST", help="run only a worker of this locust master")
    parser.add_argument("--replace", action="store_true", help="delete the topics of an earlier load first")
    parser.add_argument("--serve", type=int, default=0, metavar="PORT", help="serve the finished report over HTTP")
    parser.add_argument("--serve-seconds", type=float, default=3600.0, help="serve the report for this many seconds")
    parser.add_argument("--kube", default="", metavar="NAMESPACE", help="follow the load that the chart runs there")
    parser.add_argument("--rest", default="", help="address of the REST API, with --bootstrap")
    parser.add_argument("--rest-token", default=os.environ.get("HAPAX_TOKEN", ""), help="default: HAPAX_TOKEN")
    parser.add_argument("--rest-token-file", type=Path, metavar="FILE", help="a file with the token, in place of it")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the own cluster")
    parser.add_argument("--out", default="build/load", help="folder of the report")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = parser()
    arguments = words.parse_args(argv)
    if arguments.kill_every is None:
        arguments.kill_every = _KILL_EVERY_S.get(arguments.shape, 15.0)
    unknown = set(arguments.users_of.split(",")) - set(USERS)
    if unknown:
        words.error(f"no such users: {', '.join(sorted(unknown))}")
    if "rest" in arguments.users_of.split(",") and arguments.bootstrap and not arguments.rest:
        words.error("--users-of rest needs --rest, the address of the REST API")
    if arguments.secure and arguments.bootstrap:
        words.error("--secure is for the load's own cluster; a running one is reached with --command-config")
    if arguments.rotate_every > 0 and not arguments.secure:
        words.error("--rotate-every needs --secure")
    if not arguments.bootstrap:  # its own cluster makes its own logins
        os.environ.pop(VARIABLE, None)
    elif arguments.command_config:
        os.environ[VARIABLE] = arguments.command_config
        try:
            connecting.librdkafka("")
        except (OSError, ValueError, SettingsError) as error:
            words.error(f"--command-config: {error}")
    if arguments.rest_token_file:
        try:
            arguments.rest_token = arguments.rest_token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            words.error(f"--rest-token-file: {error}")
    if arguments.worker_of:
        work_for(arguments)
    try:
        if arguments.kube:
            clean = pods.follow(arguments.kube, arguments.kill_every, Path(arguments.out))
            print(f"{'clean' if clean else 'NOT clean'}; report: {arguments.out}/report.html")
        else:
            clean = run(arguments, Console())
            if arguments.serve:
                serve(Path(arguments.out), arguments.serve, arguments.serve_seconds)
        return 0 if clean else 1
    except (LocalClusterError, HapaxError, RuntimeError, TimeoutError, ValueError, KafkaException) as error:
        print(f"hapax-load: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

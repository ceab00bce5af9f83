"""`make demo`: processes every flight exactly once while processes are killed, and compares weaker settings.

1. The loader writes flights.csv into `flights`. It is killed twice, and resumes at the right line.
2. Spark reads `flights` and writes `delays` (1:1) and `delay_windows`, exactly once. The demo kills the driver between
   the cluster's commit and Spark's record of it, and then, during open transactions, the broker that leads a partition
   being written, a coordinator, and the driver again. Every partition has three replicas, so another one becomes leader
   at once. Then an older copy of the query's checkpoint is restored: the query must refuse it, and continues with the
   right one.
3. The same with a part of the flights and with at-most-once and at-least-once settings, killed where these must fail.
4. Lost and duplicated records are counted, and the windows are compared with those computed from the CSV.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hapax.local.cluster import LocalCluster
from hapax.local.folder import LocalClusterError
from hapax_spark.demo.flights_csv import PARTITIONS, expected_windows
from hapax_spark.demo.report import Part, page
from hapax_spark.demo.restoring import started_on_older_copy
from hapax_spark.demo.stage import DemoFailure, Stage
from hapax_spark.demo.verdict import count_lines, differing_windows

FLIGHTS = 336_776
SLICE = 20_000
LIMIT_S = 300
BROKERS = 3
REPLICATED = ("default.replication.factor=3", "min.insync.replicas=2")
COPYING = "passthrough"
"""The query that copies flights one to one, and the folder of its checkpoint."""
TOPICS = ("flights", "slice", "delays", "delay_windows", "delays_at_most_once", "delays_at_least_once")


def load(stage: Stage, flights: int) -> Part:
    """Loads all flights. The loader is killed after about a quarter and after about two thirds."""
    with stage.part("loading the CSV", "flights", flights) as part:
        for share in (0.25, 0.66):
            loader = stage.run("loader", "--limit", str(flights), log="loader.log")
            stage.wait(lambda share=share: stage.held("flights") >= flights * share, "progress", loader)  # type: ignore[misc]
            stage.kill(loader)
        stage.run("loader", "--limit", str(flights), log="loader.log").finish(LIMIT_S)
    return part


def exactly_once(stage: Stage, flights: int) -> Part:
    checkpoint = stage.folder / "checkpoint"
    copying = [
        "--input", "flights", "--output", "delays", "--checkpoint", str(checkpoint),
        "--max-offsets-per-trigger", str(flights // 6 + 1),
    ]  # fmt: skip
    arguments = [*copying, "--windows", "delay_windows"]
    with stage.part("exactly once, under kills", "delays", flights) as part:
        paused = stage.folder / "exactly-once.paused"
        driver = stage.run(
            "pipeline", *arguments, "--pause-in-commit", "1", "--pause-file", str(paused), log="exactly-once.log"
        )
        stage.wait(paused.exists, "commit to stop in", driver)
        stage.kill(driver)
        older = Path(shutil.copytree(checkpoint / COPYING, stage.folder / "older-checkpoint"))
        driver = stage.run("pipeline", *arguments, log="exactly-once.log")
        for victim in (stage.leader_of, lambda _: "coordinator-0"):
            stage.wait(stage.writing, "open transaction", driver)
            stage.kill_node(victim("delays"))
        held, later = stage.held("delays"), checkpoint / COPYING / "commits" / "2"
        stage.wait(
            lambda: later.exists() and stage.held("delays") > held and stage.writing(), "open transaction", driver
        )
        stage.kill(driver)
        part.refusal = started_on_older_copy(stage, checkpoint / COPYING, older, copying, LIMIT_S)
        stage.run("pipeline", *arguments, log="exactly-once.log").finish(LIMIT_S)
    return part


def at_most_once(stage: Stage, flights: int) -> Part:
    paused = stage.folder / "at-most-once.paused"
    arguments = ["--input", "slice", "--output", "delays_at_most_once"]
    with stage.part("at most once, under kills", "delays_at_most_once", flights) as part:
        consumer = stage.run(
            "at_most_once", *arguments, "--pause-after", str(flights // 4), "--pause-file", str(paused),
            log="at-most-once.log",
        )  # fmt: skip
        stage.wait(paused.exists, "position committed ahead", consumer)
        stage.kill(consumer)
        stage.run("at_most_once", *arguments, log="at-most-once.log").finish(LIMIT_S)
    return part


def at_least_once(stage: Stage, flights: int) -> Part:
    paused = stage.folder / "at-least-once.paused"
    arguments = [
        "--input", "slice", "--output", "delays_at_least_once", "--delivery", "at-least-once",
        "--checkpoint", str(stage.folder / "checkpoint-at-least-once"),
        "--max-offsets-per-trigger", str(flights // 3 + 1),
    ]  # fmt: skip
    with stage.part("at least once, under kills", "delays_at_least_once", flights) as part:
        driver = stage.run(
            "pipeline", *arguments, "--pause-in-commit", "1", "--pause-file", str(paused), log="at-least-once.log"
        )
        stage.wait(paused.exists, "commit to stop in", driver)
        stage.kill(driver)
        stage.run("pipeline", *arguments, log="at-least-once.log").finish(LIMIT_S)
    return part


def verdict(stage: Stage, parts: dict[str, Part], flights: int, small: int) -> dict[str, Any]:
    """The content of the report and of `verdict.json`."""
    result: dict[str, Any] = {}
    for name, topic, inputs in (
        ("exactly_once", "delays", flights),
        ("at_most_once", "delays_at_most_once", small),
        ("at_least_once", "delays_at_least_once", small),
    ):
        count = count_lines(stage.bootstrap, topic, inputs)
        part = parts[name]
        result[name] = {
            "input": count.input,
            "output": count.output,
            "lost": count.lost,
            "duplicated": count.duplicated,
            "seconds": round(part.seconds, 1),
            "kills": [kill.target for kill in part.kills],
        }
    loaded = count_lines(stage.bootstrap, "flights", flights)
    result["loader"] = {
        "input": loaded.input,
        "output": loaded.output,
        "lost": loaded.lost,
        "duplicated": loaded.duplicated,
        "seconds": round(parts["load"].seconds, 1),
        "kills": [kill.target for kill in parts["load"].kills],
    }
    refusal = parts["exactly_once"].refusal
    result["older_checkpoint"] = {"refused": bool(refusal), "said": refusal}
    expected = expected_windows(flights)
    differing = differing_windows(stage.bootstrap, "delay_windows", expected)
    result["aggregation"] = {"windows": len(expected), "differing": len(differing), "equal": not differing}
    return result


def failures(result: dict[str, Any]) -> list[str]:
    """The reasons why the demo failed; empty if it succeeded."""
    found = []
    for name in ("loader", "exactly_once"):
        if result[name]["lost"] or result[name]["duplicated"]:
            found.append(f"{name} lost {result[name]['lost']} and duplicated {result[name]['duplicated']} records")
    if not result["older_checkpoint"]["refused"]:
        found.append("the query did not refuse an older copy of its checkpoint; see restored.log")
    if not result["aggregation"]["equal"]:
        found.append(f"{result['aggregation']['differing']} windows differ from the CSV")
    if result["at_most_once"]["lost"] == 0:
        found.append("at-most-once lost nothing: its kill proved nothing")
    if result["at_least_once"]["duplicated"] == 0:
        found.append("at-least-once duplicated nothing: its kill proved nothing")
    return found


def table(result: dict[str, Any]) -> Table:
    drawn = Table(title="The outcome for every flight", title_justify="left")
    for heading in ("", "input", "output", "lost", "duplicated", "seconds"):
        drawn.add_column(heading, justify="left" if not heading else "right")
    for name in ("loader", "exactly_once", "at_most_once", "at_least_once"):
        one = result[name]
        style = ["[green]0[/]" if one[k] == 0 else f"[red]{one[k]:,}[/]" for k in ("lost", "duplicated")]
        label = name.replace("_", "-")
        drawn.add_row(label, f"{one['input']:,}", f"{one['output']:,}", *style, f"{one['seconds']:.1f}")
    return drawn


def main() -> int:
    parser = argparse.ArgumentParser(description="Process every flight exactly once while processes are killed")
    parser.add_argument("--dir", type=Path, default=Path("build/demo"), help="folder for logs and the report")
    parser.add_argument("--flights", type=int, default=FLIGHTS, help="lines of the CSV to use")
    parser.add_argument("--slice", type=int, default=SLICE, help="lines for the weaker settings")
    args = parser.parse_args()
    folder: Path = args.dir.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console = Console()
    began = time.monotonic()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    cluster = LocalCluster(folder / "cluster")
    parts: dict[str, Part] = {}
    with Progress(*columns, console=console) as progress:
        bars: dict[str, Any] = {}

        def show(label: str, done: int, total: int) -> None:
            if label not in bars:
                bars[label] = progress.add_task(label, total=total)
            progress.update(bars[label], completed=done)

        stage: Stage | None = None
        try:
            cluster.up(brokers=BROKERS, coordinators=2, owned=True, settings=REPLICATED)
            stage = Stage(cluster, folder, show)
            stage.create_topics(TOPICS, PARTITIONS)
            parts["load"] = load(stage, args.flights)
            stage.run("loader", "--limit", str(args.slice), "--topic", "slice", log="loader.log").finish(LIMIT_S)
            parts["exactly_once"] = exactly_once(stage, args.flights)
            parts["at_most_once"] = at_most_once(stage, args.slice)
            parts["at_least_once"] = at_least_once(stage, args.slice)
            result = verdict(stage, parts, args.flights, args.slice)
        except (DemoFailure, LocalClusterError) as error:
            console.print(f"[red]the demo could not be carried out:[/] {error}")
            return 2
        finally:
            if stage is not None:
                stage.end()
            cluster.down()
    result["seconds"] = round(time.monotonic() - began, 1)
    (folder / "verdict.json").write_text(json.dumps(result, indent=2) + "\n")
    (folder / "report.html").write_text(page(result, list(parts.values())))
    console.print(table(result))
    if result["older_checkpoint"]["refused"]:
        console.print(f"an older checkpoint was restored: refused, {result['older_checkpoint']['said']}")
    console.print(
        f"windows: {result['aggregation']['windows']:,}, of which {result['aggregation']['differing']:,} differ from "
        f"the CSV; {result['seconds']:.0f} s in all; time line in {folder / 'report.html'}"
    )
    problems = failures(result)
    for problem in problems:
        console.print(f"[red]{problem}[/]")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

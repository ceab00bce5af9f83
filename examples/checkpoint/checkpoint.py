"""Counts the words of a growing file and writes their totals to a topic: each checkpoint once. See README.md.

    python checkpoint.py --input words.txt --topic totals --checkpoint words.checkpoint
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from hapax.client import AbortableError, CommitToken, FencedError, HapaxError, Work
from hapax.client.blocking import Producer
from hapax.client.properties import read_properties

FENCED = 3
"""Exit status: another run has taken over. Do not start this one again."""


class Stop(Exception):
    """The program cannot go on; the message says what to do."""


@dataclass
class Checkpoint:
    """What the engine remembers. `number`: of the last finished checkpoint, -1 before the first one. `position`: bytes
    of the input that are counted. A plan, if there is one, is the next checkpoint's input: up to `planned_end`, with
    that digest."""

    owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    number: int = -1
    position: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    planned_end: int | None = None
    digest: str = ""


def load(path: Path) -> Checkpoint:
    try:
        return Checkpoint(**json.loads(path.read_text()))
    except FileNotFoundError:
        return Checkpoint()
    except (ValueError, TypeError) as error:
        raise Stop(f"{path} is no checkpoint of this program: {error}") from None


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Replaces the file in one step. When this returns, the new content survives a power cut."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        json.dump(asdict(checkpoint), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def lock(path: Path) -> IO[str]:
    """Two runs on one machine must not write the same checkpoint. The lock ends with the process."""
    file = path.with_name(f"{path.name}.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Stop(f"another process works with {path}: end it first") from None
    return file


def plan(source: Path, checkpoint: Checkpoint, most_lines: int) -> None:
    """Chooses the next checkpoint's input: whole lines that are there now. None there: no plan."""
    with source.open("rb") as file:
        file.seek(checkpoint.position)
        lines = [line for line, _ in zip(file, range(most_lines), strict=False) if line.endswith(b"\n")]
    if lines:
        taken = b"".join(lines)
        checkpoint.planned_end = checkpoint.position + len(taken)
        checkpoint.digest = hashlib.sha256(taken).hexdigest()


def planned_input(source: Path, checkpoint: Checkpoint) -> bytes:
    assert checkpoint.planned_end is not None
    with source.open("rb") as file:
        file.seek(checkpoint.position)
        taken = file.read(checkpoint.planned_end - checkpoint.position)
    if hashlib.sha256(taken).hexdigest() != checkpoint.digest:
        raise Stop(
            f"{source} has changed between byte {checkpoint.position} and {checkpoint.planned_end}, which checkpoint"
            f" {checkpoint.number + 1} had read: restore the file, which may only grow")
    return taken


def count(taken: bytes, command: str) -> dict[str, int]:
    """The words of the input, by this process or by a command: the engine, which may be any program that gives the same
    result for the same input."""
    if not command:
        return Counter(taken.decode(errors="replace").split())
    done = subprocess.run(shlex.split(command), input=taken, capture_output=True)
    if done.returncode:
        raise Stop(f"{command} ended with status {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}")
    rows = [line.split("\t") for line in done.stdout.decode().splitlines()]
    return {word: int(number) for word, number in rows}


def perform(
    producer: Producer, topic: str, scope: str, checkpoint: Checkpoint, counted: Mapping[str, int]
) -> None:
    """Commits the output of the planned checkpoint under its number."""
    totals = checkpoint.totals | {word: checkpoint.totals.get(word, 0) + new for word, new in counted.items()}
    number = checkpoint.number + 1
    work = Work(
        checkpoint.owner, follows=checkpoint.number if number else None,
        fingerprints=(("input", bytes.fromhex(checkpoint.digest)),))
    producer.begin()
    try:
        for word in counted:
            producer.send(topic, str(totals[word]).encode(), key=word.encode())
        committed = producer.commit(CommitToken(scope, number, records=len(counted), work=work))
    except AbortableError:
        producer.abort()  # raises FencedError if the cause is that another run has taken over
        raise
    # The output is visible, or it was already: this run repeats what a former one did before it could save.
    print(f"checkpoint {number}: {len(counted)} totals{', already committed' if committed.already else ''}", flush=True)
    assert checkpoint.planned_end is not None
    checkpoint.number, checkpoint.position, checkpoint.totals = number, checkpoint.planned_end, totals
    checkpoint.planned_end, checkpoint.digest = None, ""


def run(options: argparse.Namespace, stopping: list[int]) -> None:
    settings: dict[str, object] = {"bootstrap.servers": options.bootstrap}
    if options.config:
        settings |= read_properties(options.config)
    with lock(options.checkpoint), Producer({**settings, "transactional.id": options.name}) as producer:
        checkpoint = load(options.checkpoint)
        while not stopping:
            if checkpoint.planned_end is None:
                plan(options.input, checkpoint, options.lines)
                if checkpoint.planned_end is not None:
                    # Before the work: a replay has to read exactly the same lines, although the file has grown.
                    save(options.checkpoint, checkpoint)
                elif options.until_end:
                    break
                else:
                    time.sleep(options.pause_ms / 1000)
                    continue
            counted = count(planned_input(options.input, checkpoint), options.count_with)
            perform(producer, options.topic, options.name, checkpoint, counted)
            save(options.checkpoint, checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--config", type=Path, metavar="FILE", help="client settings, such as security.protocol")
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="text; lines may be appended")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE")
    parser.add_argument("--name", default="words", help="transactional id, and scope of the commit tokens")
    parser.add_argument("--lines", type=int, default=1000, help="most lines of one checkpoint")
    parser.add_argument("--pause-ms", type=int, default=200, help="between two looks for new lines")
    parser.add_argument(
        "--count-with", default="", metavar="COMMAND", help="reads lines, prints WORD<TAB>COUNT; default: count here")
    parser.add_argument("--until-end", action="store_true", help="end when there are no more lines")
    options = parser.parse_args()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    try:
        run(options, stopping)
    except FencedError as error:
        print(f"another run has taken over: {error}", file=sys.stderr)
        sys.exit(FENCED)
    except (Stop, HapaxError, OSError) as error:
        sys.exit(f"checkpoint: {error}")


if __name__ == "__main__":
    main()

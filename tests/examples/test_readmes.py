"""The commands of the examples' pages do what the pages say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import end_cluster, start_cluster
from hapax.local.cluster import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {
    "to-database": "ann|1|10",
    "checkpoint": "be\t2",
    "two-phase": '"id": "a-2"',
    "outbox": '"customer": "bob"',
    "inbox": '"id": "r-1"',
    "account": "refused",
}
"""What a reader of each page sees at its end."""
TRIED = list(SHOWN) if os.environ.get("EXAMPLE_STEPS") else ["checkpoint", "outbox"]
"""Each page takes some seconds."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """As the pages start it, and with what two-phase needs."""
    cluster = start_cluster(tmp_path_factory.mktemp("pages"), settings=["transaction.two.phase.commit.enable=true"])
    yield cluster
    end_cluster(cluster)


def commands(name: str, bootstrap: str) -> str:
    """The first block of the page's section, for a cluster that runs elsewhere."""
    section = (EXAMPLES / name / "README.md").read_text().partition("\n## How to run it\n")[2]
    block = re.search(r"(?:^    .*\n)+", section, re.MULTILINE)
    assert block is not None
    lines = [line[4:] for line in block[0].splitlines() if not line.startswith("    hapax local ")]
    assert len(lines) < len(block[0].splitlines()), "a cluster is started first"

    def program(found: re.Match[str]) -> str:
        path = EXAMPLES.parent / found[1]
        reaches = f" --bootstrap {bootstrap}" if '"--bootstrap"' in path.read_text() else ""
        return f"{shlex.quote(sys.executable)} {shlex.quote(str(path))}{reaches}"

    script = "\n".join(re.sub(r"python (examples/\S+)", program, line) for line in lines)
    return f"set -e -o pipefail\n{script}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TRIED)
def test_the_commands_of_a_page_show_what_it_says(name: str, whole: LocalCluster, tmp_path: Path) -> None:
    environment = {
        **os.environ, "HAPAX_BOOTSTRAP": whole.bootstrap, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", commands(name, whole.bootstrap)], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert SHOWN[name] in done.stdout, done.stdout


def test_every_page_is_among_them_and_ends() -> None:
    pages = {each.parent.name: each.read_text() for each in EXAMPLES.glob("*/README.md")}
    assert pages.keys() == SHOWN.keys()
    for name, text in pages.items():
        shows = re.findall(r"^    hapax consume .*", text, re.MULTILINE)
        assert all("--from-beginning --until-end" in each for each in shows), f"{name} shows nothing, and does not end"

"""Load on a real cluster whose processes are killed meanwhile, by locust's processes as `make load` starts them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hapax_load.audit import Reading, audit, create_topics
from hapax_load.ledger import Fact, Ledger
from hapax_load.topics import PLAIN, value_of

from conftest import ClusterFactory
from hapax.client.blocking import Admin, Producer


@pytest.mark.timeout(300)
def test_nothing_is_lost_or_doubled_under_kills(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-m", "hapax_load", "--minutes", "0.4", "--users", "12", "--kill-every", "4",
         "--users-of", "produce,transactions,copy,rest", "--shape", "spike", "--workers", "2",
         "--master-port", str(port), "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "locust.log").read_text()[-3000:]
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert told["clean"] and {"broker-0", "coordinator-0"} <= {kill["target"] for kill in told["kills"]}
    assert all(topic["kept"] > 0 for topic in told["topics"].values()) and len(told["topics"]) == 3
    assert [topic["unreported"] for topic in told["topics"].values()] == [0, 0, 0]  # no worker was killed
    assert {"produce", "transaction", "copy"} <= told["requests"].keys()
    looked = told["requests"]["/v1/topics"]
    assert looked["answers"] > looked["failures"], (tmp_path / "locust.log").read_text()[-3000:]
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") >= 4 and told["kills"][0]["target"] in page


@pytest.mark.timeout(300)
def test_no_client_notices_that_every_certificate_is_replaced(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hapax_load", "--minutes", "0.3", "--users", "4", "--secure", "--rotate-every", "4",
         "--kill-every", "0", "--users-of", "produce,transactions,copy,rest", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "locust.log").read_text()[-3000:]
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert told["clean"] and not told["kills"] and len(told["rotations"]) >= 2
    assert all(topic["kept"] > 0 for topic in told["topics"].values()) and len(told["topics"]) == 3
    assert not any(request["failures"] for request in told["requests"].values()), told["requests"]


def test_what_is_missing_and_what_is_twice_there_is_found(cluster_factory: ClusterFactory) -> None:
    bootstrap = cluster_factory().bootstrap
    create_topics(bootstrap, 1)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in (0, 1, 1, 3):
            producer.send(PLAIN, value_of("w", number, 50))
    ledger = Ledger([Fact(PLAIN, "w", "kept", 0, 4)])
    with Reading(bootstrap, [PLAIN]) as reading:
        reading.to_the_end()
    verdict = audit(reading.seen, ledger, copied=False)[PLAIN]
    assert (verdict.kept, verdict.lost, verdict.doubled) == (3, 1, 1)
    assert not verdict.clean
    with pytest.raises(ValueError, match="delete them first"):
        create_topics(bootstrap, 1)
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        assert PLAIN in {topic.name for topic in admin.list_topics()}

"""The file for `locust -f`: the users, their number over time, and the ledger that workers send to the master."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from locust import LoadTestShape, events
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from hapax_load.ledger import Fact
from hapax_load.shapes import SHAPES, users_at
from hapax_load.users import LEDGER, CopyUser, ProduceUser, RestUser, TransactionUser

__all__ = ["Arranged", "CopyUser", "ProduceUser", "RestUser", "TransactionUser"]

_SPAWN_RATE = 100.0
_LAST_REPORT = "last report"


class Arranged(LoadTestShape):
    def tick(self) -> tuple[int, float] | None:
        assert self.runner is not None
        options: Any = self.runner.environment.parsed_options
        users = users_at(options.shape, self.get_run_time(), options.most_users, options.seconds)
        return None if users is None else (users, _SPAWN_RATE)


@events.init_command_line_parser.add_listener
def _(parser: ArgumentParser) -> None:
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="the cluster's address, host:port,...")
    parser.add_argument("--shape", choices=SHAPES, default="steady")
    parser.add_argument("--most-users", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--worker-count", type=int, default=1, help="workers in all; they share the partitions to copy")
    parser.add_argument("--record-size", type=int, default=200, help="bytes of a record's value")
    parser.add_argument(
        "--rest-token", env_var="LOCUST_REST_TOKEN", default="", help="bearer token of the REST API", is_secret=True)
    parser.add_argument("--ledger", default="", help="write the ledger to this file at the end")


def _told() -> dict[str, Any]:
    """A worker's report. It removes the settled facts from the worker's ledger."""
    return {"settled": [asdict(fact) for fact in LEDGER.take()],
            "under_way": [asdict(fact) for fact in LEDGER.under_way[""].values()]}


def _heard(client_id: str, told: dict[str, Any]) -> None:
    for fact in told.get("settled", ()):
        LEDGER.add(Fact(**fact))
    LEDGER.under_way[client_id] = {fact["writer"]: Fact(**fact) for fact in told.get("under_way", ())}


@events.report_to_master.add_listener
def _(client_id: str, data: dict[str, Any]) -> None:
    data.update(_told())


@events.worker_report.add_listener
def _(client_id: str, data: dict[str, Any]) -> None:
    _heard(client_id, data)


@events.init.add_listener
def _(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        environment.runner.register_message(_LAST_REPORT, lambda environment, msg: _heard(msg.node_id, msg.data))


@events.test_stop.add_listener
def _(environment: Environment, **_: Any) -> None:
    """A worker sends a last report before it confirms that it has stopped. A report sent later, when it is told to
    quit, might find the master gone."""
    if isinstance(environment.runner, WorkerRunner):
        environment.runner.send_message(_LAST_REPORT, _told())


@events.quitting.add_listener
def _(environment: Environment, **_: Any) -> None:
    options: Any = environment.parsed_options
    if options.ledger and not isinstance(environment.runner, WorkerRunner):
        LEDGER.save(Path(options.ledger))

"""What `locust -f` is given: the users, their number over time, and the ledger that workers send to the master."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from locust import LoadTestShape, events
from locust.env import Environment
from locust.runners import WorkerRunner

from hapax_load.ledger import Fact
from hapax_load.shapes import SHAPES, users_at
from hapax_load.users import LEDGER, CopyUser, ProduceUser, RestUser, TransactionUser

__all__ = ["Arranged", "CopyUser", "ProduceUser", "RestUser", "TransactionUser"]

_SPAWN_RATE = 100.0


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
    parser.add_argument("--record-size", type=int, default=200, help="bytes of a record's value")
    parser.add_argument(
        "--rest-token", env_var="LOCUST_REST_TOKEN", default="", help="bearer token of the REST API", is_secret=True)
    parser.add_argument("--ledger", default="", help="the file that the promises are written to in the end")


@events.report_to_master.add_listener
def _(client_id: str, data: dict[str, Any]) -> None:
    data["settled"] = [asdict(fact) for fact in LEDGER.take()]
    data["under_way"] = [asdict(fact) for fact in LEDGER.under_way[""].values()]


@events.worker_report.add_listener
def _(client_id: str, data: dict[str, Any]) -> None:
    for fact in data.get("settled", ()):
        LEDGER.add(Fact(**fact))
    LEDGER.under_way[client_id] = {fact["writer"]: Fact(**fact) for fact in data.get("under_way", ())}


@events.quitting.add_listener
def _(environment: Environment, **_: Any) -> None:
    options: Any = environment.parsed_options
    if options.ledger and not isinstance(environment.runner, WorkerRunner):
        LEDGER.save(Path(options.ledger))

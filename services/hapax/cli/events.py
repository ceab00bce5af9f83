"""`hapax events ...`: the events in the topic `__hapax_events`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, finish, reaching
from hapax.cli.consume import read
from hapax.client import Record
from hapax.client.event_log import as_event
from hapax.codec.metadata import EVENTS_TOPIC

_HIDDEN_FIELDS = ("offset", "at_ms", "event", "v")

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Without this, typer would make the group's only command the group itself."""


@app.command()
def tail(
    follow: Annotated[bool, typer.Option("--follow", help="Keep waiting for new events. Ctrl-C ends it.")] = False,
    kind: Annotated[
        list[str] | None, typer.Option("--event", help="Print only events of this kind. Repeatable.")
    ] = None,
    maximum: Annotated[int, typer.Option("--max", help="Stop after this many events. 0: no limit.", min=0)] = 0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Print the events, oldest first."""
    options = {**reaching(bootstrap, "c", {}), "auto.offset.reset": "earliest", "isolation.level": "read_committed"}

    shown = 0

    def show(record: Record) -> bool:
        nonlocal shown
        event = as_event(record.offset, record.timestamp_ms, record.value)
        if kind and event["event"] not in kind:
            return False
        if as_json:
            output.print_json(event)
        else:
            print(_line(event), flush=True)
        shown += 1
        return shown == maximum

    finish(read(options, EVENTS_TOPIC, (), None, not follow, show))


def _line(event: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(event["at_ms"] / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    words = " ".join(f"{name}={value}" for name, value in event.items() if name not in _HIDDEN_FIELDS)
    return f"{at}Z {event['event']} {words}"

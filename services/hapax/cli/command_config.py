"""`--command-config FILE`: settings of the client of every command that reaches a cluster, as Kafka's tools have it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

_CommandConfig = Annotated[
    str | None,
    typer.Option(
        "--command-config", metavar="FILE", envvar="HAPAX_COMMAND_CONFIG",
        help="File of client settings, such as security.protocol, ssl.truststore.location and sasl.jaas.config."),
]
_NAME: Final = "command_config"
_given: ContextVar[str | None] = ContextVar("command-config", default=None)


def with_command_config(app: typer.Typer) -> typer.Typer:
    """Gives the option to each command of `app` that has `--bootstrap`."""
    for command in app.registered_commands:
        callback = command.callback
        names = set() if callback is None else set(inspect.signature(callback).parameters)
        if callback is not None and "bootstrap" in names and _NAME not in names:
            command.callback = _configured(callback)
    return app


def _configured(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def run(*arguments: Any, command_config: str | None = None, **named: Any) -> Any:
        _given.set(command_config)
        return command(*arguments, **named)

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter(_NAME, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_CommandConfig)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    run.__annotations__ = {**get_type_hints(command, include_extras=True), _NAME: _CommandConfig}
    return run


def command_config() -> dict[str, object]:
    """What the present command was given; empty: no file. Raises OSError and SettingsError, the client's or the
    runtime's."""
    path = _given.get()
    if path is None:
        return {}
    if path.endswith(".toml"):
        from hapax.runtime.settings import read_file

        return dict(read_file(Path(path)))
    from hapax.client.properties import read_properties

    return dict(read_properties(Path(path)))

"""`hapax user ...`: users who log in with a password (SCRAM, and PLAIN). Passwords are never arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, administer
from hapax.client import Admin
from hapax.client.credentials import Unusable, first_line
from hapax.client.users import DEFAULT_ITERATIONS, ScramCredentialInfo, ScramDeletion, ScramUpsertion
from hapax.core.sasl.credentials import LEAST_ITERATIONS, MOST_ITERATIONS
from hapax.core.sasl.scram_keys import ScramMechanism

app = typer.Typer(no_args_is_help=True)

_BY_NAME: Final = {each.sasl_name: each for each in ScramMechanism}
User = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
_MECHANISM: Final = f"Only for {' or '.join(_BY_NAME)}."
Mechanism = Annotated[str | None, typer.Option("--mechanism", help=_MECHANISM)]


@app.command("list")
def list_users(
    users: Annotated[
        list[str] | None, typer.Option("--user", metavar="USER", help="Only this user. Repeatable.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the users who have passwords."""
    _show(as_json, administer(bootstrap, lambda admin: admin.describe_user_scram_credentials(users or ())))


@app.command()
def set_password(
    user: User,
    password_file: Annotated[
        str | None,
        typer.Option(help="File with the password in its first line; - for standard input. Default: you are asked."),
    ] = None,
    mechanism: Mechanism = None,
    iterations: Annotated[int, typer.Option(
        help="Work to check one guess.", min=LEAST_ITERATIONS, max=MOST_ITERATIONS)] = DEFAULT_ITERATIONS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a user, or replace a password. Sessions with the former password end."""
    mechanisms = _mechanisms(mechanism)
    password = _password(password_file)

    async def change(admin: Admin) -> None:
        for each in admin.order_of_changes(user, mechanisms):  # one call takes one change of a user
            await admin.alter_user_scram_credentials([ScramUpsertion(user, each, password, iterations)])

    administer(bootstrap, change)
    output.note(f"the password of {user} is set for {', '.join(each.sasl_name for each in mechanisms)}")


@app.command()
def remove(
    user: User, mechanism: Mechanism = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False,
) -> None:
    """Remove a user's passwords, and show what was removed. The user's sessions end."""
    wanted = _mechanisms(mechanism)

    async def removed(admin: Admin) -> list[ScramCredentialInfo]:
        found = [
            each for each in await admin.describe_user_scram_credentials([user])
            if mechanism is None or each.mechanism in wanted]
        for each in admin.order_of_changes(user, (info.mechanism for info in found)):
            await admin.alter_user_scram_credentials([ScramDeletion(user, each)])
        return found

    found = administer(bootstrap, removed)
    if not found:
        output.fail(f"{user} has no password for {mechanism}", output.NOT_FOUND)
    _show(as_json, found)


def _mechanisms(name: str | None) -> list[ScramMechanism]:
    if name is not None and name.upper() not in _BY_NAME:
        output.fail(f"--mechanism is {' or '.join(_BY_NAME)}, not {name!r}", output.USAGE)
    return list(ScramMechanism) if name is None else [_BY_NAME[name.upper()]]


def _password(file: str | None) -> str:
    if file is None:
        if not sys.stdin.isatty():
            output.fail("there is no terminal to ask at: give --password-file", output.USAGE)
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    try:
        content = sys.stdin.buffer.readline() if file == "-" else Path(file).read_bytes()
        return first_line(content, "standard input" if file == "-" else file)
    except (OSError, Unusable) as error:
        output.fail(f"--password-file: {error}", output.USAGE)


def _show(as_json: bool, found: list[ScramCredentialInfo]) -> None:
    output.print_records(as_json, "", [
        {"user": each.user, "mechanism": each.mechanism.sasl_name, "iterations": each.iterations} for each in found
    ], ("user", "mechanism", "iterations"))

"""`hapax quota ...`: how much clients may use (client quotas, as Kafka has them)."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, administer
from hapax.client import Admin
from hapax.core.errors import Refusal
from hapax.core.quota.entities import CLIENT_ID, IP, USER, Entity, checked_change, checked_entity, keys_of

app = typer.Typer(no_args_is_help=True)

DEFAULT: Final = "default"
"""How the default entity is shown."""

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user, without 'User:'.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="NAME", help="A client id.")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="An IP address.")]
UserDefault = Annotated[bool, typer.Option("--user-default", help="Every user without quotas of its own.")]
ClientIdDefault = Annotated[bool, typer.Option("--client-id-default", help="Every client id without its own.")]
IpDefault = Annotated[bool, typer.Option("--ip-default", help="Every address without its own.")]


@app.command("list")
def list_quotas(
    user: User = None, user_default: UserDefault = False, client_id: ClientId = None,
    client_id_default: ClientIdDefault = False, ip: Ip = None, ip_default: IpDefault = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List quotas. With names: those whose entity has them."""
    names = _names(user, user_default, client_id, client_id_default, ip, ip_default)
    _show(as_json, administer(bootstrap, lambda admin: admin.list_quotas(names)))


@app.command("set")
def set_quotas(
    quotas: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help=(
        "producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate; of addresses "
        "connection_creation_rate."))],
    user: User = None, user_default: UserDefault = False, client_id: ClientId = None,
    client_id_default: ClientIdDefault = False, ip: Ip = None, ip_default: IpDefault = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Set quotas of a user, a client id, both together, or an address; others keep their values."""
    values: dict[str, float | None] = {}
    for each in quotas:
        key, _, text = each.partition("=")
        try:
            values[key] = float(text)
        except ValueError:
            output.fail(f"{each!r} is not KEY=NUMBER", output.USAGE)
    entity = _entity(_names(user, user_default, client_id, client_id_default, ip, ip_default))
    _change(bootstrap, as_json, entity, values)


@app.command()
def remove(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY...]", help="Default: all that it has.")] = None,
    user: User = None, user_default: UserDefault = False, client_id: ClientId = None,
    client_id_default: ClientIdDefault = False, ip: Ip = None, ip_default: IpDefault = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Remove quotas of exactly this entity, and show what is left."""
    entity = _entity(_names(user, user_default, client_id, client_id_default, ip, ip_default))
    for key in keys or ():
        if key not in keys_of(entity):
            output.fail(f"{key!r} is none of {', '.join(keys_of(entity))}", output.USAGE)
    _change(bootstrap, as_json, entity, dict.fromkeys(keys or keys_of(entity)))


def _change(bootstrap: str, as_json: bool, entity: Entity, values: dict[str, float | None]) -> None:
    try:
        change = checked_change(entity, values.items())
    except Refusal as refusal:
        output.fail(refusal.reason, output.USAGE)
    names = dict(entity)

    async def changed(admin: Admin) -> dict[Entity, dict[str, float]]:
        await admin.alter_quotas(names, change)
        return await admin.list_quotas(names, strict=True)

    _show(as_json, administer(bootstrap, changed))


def _names(
    user: str | None, user_default: bool, client_id: str | None, client_id_default: bool, ip: str | None,
    ip_default: bool,
) -> dict[str, str | None]:
    names: dict[str, str | None] = {}
    for kind, name, default in (
        (USER, user, user_default), (CLIENT_ID, client_id, client_id_default), (IP, ip, ip_default)
    ):
        if name is not None and default:
            output.fail(f"give --{kind} or --{kind}-default, not both", output.USAGE)
        if name is not None or default:
            names[kind] = name
    return names


def _entity(names: dict[str, str | None]) -> Entity:
    if not names:
        output.fail("say whose quotas: --user, --client-id or --ip, or their defaults", output.USAGE)
    try:
        return checked_entity(names.items())
    except Refusal as refusal:
        output.fail(refusal.reason, output.USAGE)


def _show(as_json: bool, found: dict[Entity, dict[str, float]]) -> None:
    rows = [
        {**{kind: _shown(dict(entity), kind, as_json) for kind in (USER, CLIENT_ID, IP)}, "quota": key, "value": value}
        for entity, quotas in found.items() for key, value in sorted(quotas.items())]
    output.print_records(as_json, "", rows, (USER, CLIENT_ID, IP, "quota", "value"))


def _shown(names: dict[str, str | None], kind: str, as_json: bool) -> object:
    """In JSON an entity of another type is null, and a default is an object of its own, which no name is."""
    if kind not in names:
        return None if as_json else ""
    name = names[kind]
    if name is None:
        return {DEFAULT: True} if as_json else f"<{DEFAULT}>"
    return name

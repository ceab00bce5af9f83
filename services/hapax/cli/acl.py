"""`hapax acl ...`: who may do what (ACLs, as Kafka has them)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, administer
from hapax.client import Admin
from hapax.client.acls import EVERY_ACL
from hapax.core.access.bindings import Binding, Filter, checked_binding
from hapax.core.access.resources import CLUSTER_NAME, WILDCARD, Operation, Pattern, Permission, ResourceType
from hapax.core.errors import Refusal

app = typer.Typer(no_args_is_help=True)

OPERATIONS: Final = {each.name.lower().replace("_", "-"): each for each in Operation if each > Operation.ANY}
_OPERATION_HELP: Final = f"One of {', '.join(OPERATIONS)}. Repeatable."

Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="A topic. Repeatable.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="GROUP", help="A consumer group. Repeatable.")]
Ids = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id. Repeatable.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Operations = Annotated[list[str] | None, typer.Option("--operation", metavar="OPERATION", help=_OPERATION_HELP)]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The names are prefixes of names.")]


@app.command("list")
def list_acls(
    topics: Topics = None, groups: Groups = None, ids: Ids = None, cluster: Cluster = False,
    principal: Annotated[str | None, typer.Option(help="Only those of this principal, such as User:app.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List ACLs. With names: those that concern them, also by prefix and by *."""
    filters = [
        EVERY_ACL._replace(kind=kind, name=name, pattern=Pattern.MATCH, principal=principal)
        for kind, name in _resources(topics, groups, ids, cluster)] or [EVERY_ACL._replace(principal=principal)]

    async def listed(admin: Admin) -> set[Binding]:
        return {binding for wanted in filters for binding in await admin.list_acls(wanted)}

    _show(as_json, administer(bootstrap, listed))


@app.command()
def add(
    operations: Annotated[
        list[str], typer.Option("--operation", metavar="OPERATION", help=_OPERATION_HELP)],
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="PRINCIPAL", help="Permit it to User:NAME. Repeatable.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option("--deny", metavar="PRINCIPAL", help="Deny it to User:NAME. Repeatable.")
    ] = None,
    topics: Topics = None, groups: Groups = None, ids: Ids = None, cluster: Cluster = False, prefixed: Prefixed = False,
    host: Annotated[str, typer.Option(help="Only from this IP address.")] = WILDCARD,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Permit or deny principals operations on resources. '*' names all resources of a type."""
    pattern = Pattern.PREFIXED if prefixed else Pattern.LITERAL
    principals = [(each, Permission.ALLOW) for each in allow or ()] + [(each, Permission.DENY) for each in deny or ()]
    if not principals:
        output.fail("give --allow or --deny", output.USAGE)
    resources = _resources(topics, groups, ids, cluster)
    if not resources:
        output.fail("give --topic, --group, --transactional-id or --cluster", output.USAGE)
    try:
        bindings = [
            checked_binding(
                kind, name, Pattern.LITERAL if kind is ResourceType.CLUSTER else pattern, principal, host, operation,
                permission)
            for kind, name in resources for principal, permission in principals
            for operation in _operations(operations)]
    except Refusal as refusal:
        output.fail(refusal.reason, output.USAGE)
    administer(bootstrap, lambda admin: admin.create_acls(bindings))
    _show(as_json, bindings)


@app.command()
def remove(
    topics: Topics = None, groups: Groups = None, ids: Ids = None, cluster: Cluster = False, prefixed: Prefixed = False,
    principal: Annotated[str | None, typer.Option(help="Only those of this principal.")] = None,
    operations: Operations = None,
    every: Annotated[bool, typer.Option("--all", help="Remove every ACL of the cluster.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Remove ACLs, and show them. With names: those with exactly this name, not those that concern it."""
    resources = _resources(topics, groups, ids, cluster)
    if not (resources or principal or operations or every):
        output.fail("say which ACLs, or give --all", output.USAGE)
    pattern = Pattern.PREFIXED if prefixed else Pattern.LITERAL
    filters = [
        Filter(kind, name, Pattern.LITERAL if kind is ResourceType.CLUSTER else pattern, principal, None, operation,
               Permission.ANY)
        for kind, name in resources for operation in _operations(operations) or [Operation.ANY]
    ] or [
        EVERY_ACL._replace(principal=principal, operation=operation)
        for operation in _operations(operations) or [Operation.ANY]]

    async def removed(admin: Admin) -> list[Binding]:
        return [binding for wanted in filters for binding in await admin.delete_acls(wanted)]

    _show(as_json, administer(bootstrap, removed))


def _resources(
    topics: list[str] | None, groups: list[str] | None, ids: list[str] | None, cluster: bool
) -> list[tuple[ResourceType, str]]:
    return [
        *((ResourceType.TOPIC, name) for name in topics or ()), *((ResourceType.GROUP, name) for name in groups or ()),
        *((ResourceType.TRANSACTIONAL_ID, name) for name in ids or ()),
        *([(ResourceType.CLUSTER, CLUSTER_NAME)] if cluster else [])]


def _operations(names: list[str] | None) -> list[Operation]:
    for name in names or ():
        if name not in OPERATIONS:
            output.fail(f"{name!r} is no operation: {', '.join(OPERATIONS)}", output.USAGE)
    return [OPERATIONS[name] for name in names or ()]


def _show(as_json: bool, bindings: Iterable[Binding]) -> None:
    rows = [
        {"permission": each.permission.name.lower(), "principal": each.principal, "host": each.host,
         "operation": each.operation.name.lower().replace("_", "-"),
         "type": each.kind.name.lower().replace("_", "-"), "name": each.name, "pattern": each.pattern.name.lower()}
        for each in sorted(bindings)]
    columns = ("permission", "principal", "host", "operation", "type", "name", "pattern")
    output.print_records(as_json, "", rows, columns)

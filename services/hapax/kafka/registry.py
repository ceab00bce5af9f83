"""Finds the modules of `kafka/api`, and builds a node's table from the rows that they declare.

A module of `kafka/api` serves one API key. It has

* `ROW`, its row of the table: key, versions, the largest request, who answers,
  and what a request needs the permission for;
* `register(table, ...)`, which installs the handler: of calls that every node answers with a `NodeContext`, of a
  role's calls with the role's own service;
* where `ROW.elsewhere` is set, or the need refuses requests by it, `refused(request, version, code)`: a response that
  refuses the whole request;
* where the answer is no message, `throttled(version, answer, milliseconds)`: the answer that says how long its
  connection is not read.

Every node advertises the same table (rule 11). A client whose picture of the cluster is out of date, or a tool that
asks each node in turn, gets the error that makes it look again or an empty list, not a missing version and not a
closed connection.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from hapax.core.errors import ErrorCode
from hapax.kafka import api
from hapax.kafka.context import NodeContext
from hapax.kafka.quotas import told_in_message
from hapax.kafka.table import Api, ApiTable, RequestContext, Role

API_MODULES: Final = sorted(
    (import_module(f"{api.__name__}.{found.name}") for found in iter_modules(api.__path__)),
    key=lambda module: module.ROW.key)
"""By API key. Imported here, not at first use: a local cluster's services are forked from a parent that has them."""


def all_apis() -> list[Api]:
    """A fresh table's rows, by key, none of them served yet."""
    return [
        Api(module.ROW, getattr(module, "refused", None), getattr(module, "throttled", told_in_message))
        for module in API_MODULES]


def register_common(table: ApiTable, node: NodeContext) -> None:
    """Installs the calls that every node answers."""
    for module in API_MODULES:
        if module.ROW.answered_by is Role.EVERY_NODE:
            module.register(table, node)


def register_other_roles(table: ApiTable) -> None:
    """Gives each API key that this node does not serve the answer of a wrong node. Call it after all `register`s."""
    for module in API_MODULES:
        if not table.apis[module.ROW.key].served:
            table.on(module.ROW, _refusing(module, module.ROW.elsewhere))


def _refusing(module: Any, code: ErrorCode) -> Any:
    def handle(ctx: RequestContext, request: Any) -> Any:
        return module.refused(request, ctx.api_version, code)

    return handle

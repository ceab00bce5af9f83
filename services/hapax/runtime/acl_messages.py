"""Bindings and filters as the messages of `proto/hapax/internal/v1/controller.proto`."""

from __future__ import annotations

from hapax.core.access.bindings import Binding, Filter, checked_binding, checked_filter
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb


def acl_message(binding: Binding) -> pb.Acl:
    kind, name, pattern, principal, host, operation, permission = binding
    return pb.Acl(
        type=kind, name=name, pattern=pattern, principal=principal, host=host, operation=operation,
        permission=permission)


def read_acl(message: pb.Acl) -> Binding:
    """Raises Refusal (INVALID_REQUEST)."""
    return checked_binding(
        message.type, message.name, message.pattern, message.principal, message.host, message.operation,
        message.permission)


def filter_message(wanted: Filter) -> pb.AclFilter:
    kind, name, pattern, principal, host, operation, permission = wanted
    return pb.AclFilter(
        type=kind, name=name, pattern=pattern, principal=principal, host=host, operation=operation,
        permission=permission)


def read_filter(message: pb.AclFilter) -> Filter:
    """Raises Refusal (INVALID_REQUEST)."""
    return checked_filter(
        message.type, message.name if message.HasField("name") else None, message.pattern,
        message.principal if message.HasField("principal") else None,
        message.host if message.HasField("host") else None, message.operation, message.permission)

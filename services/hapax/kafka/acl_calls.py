"""What the calls about bindings (ACLs) have in common."""

from __future__ import annotations

from typing import Any, Final

from hapax.core.access.bindings import Filter, checked_filter
from hapax.core.errors import ErrorCode, Refusal

TIMEOUT_MS: Final = 30_000
"""These requests have no time-out field."""
NO_AUTHORIZER: Final = Refusal(
    ErrorCode.SECURITY_DISABLED, "No Authorizer is configured. (authorizer.class.name is empty.)")


def filter_of(asked: Any) -> Filter:
    """The filter of a DescribeAcls request, or of an entry of a DeleteAcls request. Raises Refusal."""
    return checked_filter(
        asked.resource_type_filter, asked.resource_name_filter, asked.pattern_type_filter, asked.principal_filter,
        asked.host_filter, asked.operation, asked.permission_type)

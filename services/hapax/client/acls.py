"""The admin client's calls for ACLs: bindings that permit or deny a principal an operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hapax.client.connected import Connected
from hapax.client.errors import from_code
from hapax.core.access.bindings import Binding, Filter
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.wire import messages

EVERY_ACL = Filter(ResourceType.ANY, None, Pattern.ANY, None, None, Operation.ANY, Permission.ANY)


class AclAdmin(Connected):
    async def list_acls(self, wanted: Filter = EVERY_ACL) -> list[Binding]:
        """The ACLs that the filter selects, in order."""
        kind, name, pattern, principal, host, operation, permission = wanted
        answer = await self._ask_for_acls("listing ACLs", messages.DescribeAclsRequest(
            resource_type_filter=kind, resource_name_filter=name, pattern_type_filter=pattern,
            principal_filter=principal, host_filter=host, operation=operation, permission_type=permission))
        return sorted(_binding(found, each) for found in answer.resources for each in found.acls)

    async def create_acls(self, bindings: Iterable[Binding]) -> None:
        """Adds ACLs. One that exists already is no error. Raises the first refusal, after all were asked for."""
        Creation = messages.CreateAclsRequest.AclCreation
        answer = await self._ask_for_acls("creating ACLs", messages.CreateAclsRequest(creations=[
            Creation(
                resource_type=kind, resource_name=name, resource_pattern_type=pattern, principal=principal, host=host,
                operation=operation, permission_type=permission)
            for kind, name, pattern, principal, host, operation, permission in bindings]))
        for result in answer.results:
            if result.error_code:
                raise from_code(result.error_code, "creating an ACL", result.error_message)

    async def delete_acls(self, wanted: Filter) -> list[Binding]:
        """Removes the ACLs that the filter selects, and returns them."""
        kind, name, pattern, principal, host, operation, permission = wanted
        answer = await self._ask_for_acls("deleting ACLs", messages.DeleteAclsRequest(filters=[
            messages.DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=kind, resource_name_filter=name, pattern_type_filter=pattern,
                principal_filter=principal, host_filter=host, operation=operation, permission_type=permission)]))
        (result,) = answer.filter_results
        for each in (result, *result.matching_acls):
            if each.error_code:
                raise from_code(each.error_code, "deleting ACLs", each.error_message)
        return sorted(_binding(each, each) for each in result.matching_acls)

    async def _ask_for_acls(self, what: str, message: Any) -> Any:
        """Raises HapaxError, also for an error of the whole answer."""

        async def attempt() -> Any:
            answer = await self._cluster.call_any(lambda: message)
            if getattr(answer, "error_code", 0):
                raise from_code(answer.error_code, what, answer.error_message)
            return answer

        return await self._cluster.within(self._timeout, what, attempt)


def _binding(resource: Any, acl: Any) -> Binding:
    return Binding(
        ResourceType(resource.resource_type), resource.resource_name, Pattern(resource.pattern_type),
        Principal(acl.principal), acl.host, Operation(acl.operation), Permission(acl.permission_type))

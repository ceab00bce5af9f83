"""A node's authoriser: what principals may do, by the bindings in the node's image of the cluster."""

from __future__ import annotations

import asyncio
from typing import Final

from hapax.codec.metadata import INTERNAL_TOPICS
from hapax.core.access.index import Policy
from hapax.core.access.principals import Principal, parsed
from hapax.core.access.resources import Action, title
from hapax.core.access.rights import Rights
from hapax.core.hosts import plain_host
from hapax.core.types import TopicId
from hapax.runtime import telemetry
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.incidents import Incidents
from hapax.runtime.security_settings import SSL
from hapax.runtime.settings import Settings

log = telemetry.logger("access")

_LONGEST_LOGGED: Final = 256
_MOST_PRINCIPALS: Final = 256


class Access:
    """What is permitted to whom. A change of the bindings counts from the next request on."""

    def __init__(
        self, view: ClusterView, policy: Policy, node_principals: frozenset[Principal], secured: bool = False,
        audit: Audit = SILENT,
    ) -> None:
        """`secured`: nodes prove themselves by certificates. `audit`: where refusals are recorded."""
        self.secured = secured
        self.view = view
        self._audit = audit
        self.image = view.access
        """Rights answer for the bindings of now while their index is this one's."""
        self._policy = policy
        self._node_principals = node_principals
        self._rights: dict[tuple[Principal, str, type[Rights]], Rights] = {}
        self._incidents = Incidents(log, asyncio.get_running_loop().time)
        self.refusals = 0

    def rights(self, principal: Principal, host: str, made: type[Rights] = Rights) -> Rights:
        """`host`: the client's IP address. The connections of one principal from one host share the answer. `made`: of
        this class."""
        found = self._rights.get((principal, host, made))
        if found is None or found.index is not self.image.index:
            if len(self._rights) >= _MOST_PRINCIPALS:
                self._rights.clear()
            found = made(self.image.index, self._policy, principal, plain_host(host))
            self._rights[principal, host, made] = found
        return found

    def name_of_topic(self, topic_id: bytes) -> str | None:
        """None: no topic has the id."""
        topic = self.view.topic_by_id(TopicId(topic_id))
        return None if topic is None else topic.name

    def may_be_node(self, principal: Principal) -> bool:
        """Whether a principal may show a node's proof (rule 17). The proof alone can be copied from an unencrypted
        connection: where nodes have principals, it needs one of those too."""
        return not self._node_principals or principal in self._node_principals

    def note_refusal(self, rights: Rights, action: Action, name: str, call: str) -> None:
        """Says in a log line who was refused what by which binding: at most ten lines a second. The audit log says it
        too."""
        self.refusals += 1
        decision = rights.decide(action, name)
        self._audit.record(
            "refused", rights.principal, rights.host, call=call, operation=title(action.operation),
            resource_type=title(action.kind), resource=name,
            rule=None if decision.rule is None else str(decision.rule), reason=decision.reason)
        self._incidents(
            "refused", "a request was refused", principal=rights.principal, host=rights.host, needs=str(action),
            name=name[:_LONGEST_LOGGED], call=call, reason=decision.reason,
            rule="" if decision.rule is None else str(decision.rule))


def access_of(settings: Settings, view: ClusterView, audit: Audit = SILENT) -> Access | None:
    """None: the cluster has no authoriser, and everybody may do everything. `audit`: where refusals are recorded."""
    if not settings.authorizer_class_name:
        return None
    policy = Policy(
        principals_of(settings.super_users), settings.allow_everyone_if_no_acl_found, frozenset(INTERNAL_TOPICS))
    secured = settings.security_inter_broker_protocol == SSL
    return Access(view, policy, principals_of("" if secured else settings.node_principals), secured, audit)


def principals_of(text: str) -> frozenset[Principal]:
    """Of a setting: separated by semicolons."""
    return frozenset(parsed(each.strip()) for each in text.split(";") if each.strip())

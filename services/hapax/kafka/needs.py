"""What a request needs the permission for, declared in each row of the table, and checked before any handler.

A need looks at the decoded request. It lets the request pass, refuses it as a whole, or takes out what is refused: the
handler then sees the rest, and the answer gets the refused entries back, each with the error of its resource. Rights
are judged before existence, so that an answer never tells whether a hidden resource exists.

`guarded` is the one place where needs are applied; `ApiTable.on` calls it. Produce, Fetch and Metadata, which are not
decoded by the table, bring their own guard, and `ApiTable.on_raw` demands it.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from hapax.core.access.resources import CLUSTER_NAME, Action, ResourceType
from hapax.core.access.rights import Rights
from hapax.core.errors import ErrorCode
from hapax.kafka.node_proofs import proven
from hapax.runtime.access import Access
from hapax.wire.messages import unknown_tag
from hapax.wire.peer import INTERNAL_WRITE_TAG

if TYPE_CHECKING:
    from hapax.kafka.table import Api, Handler, RequestContext

REFUSED_WITH: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is answered with this."""

    answer: Any


@dataclass(frozen=True, slots=True)
class Passing:
    """The handler is called, and `finish` completes its answer."""

    finish: Callable[[Any], Any]


Outcome = Refused | Passing | None
"""None: the request passes as it is."""


class Asking:
    """Who asks."""

    __slots__ = ("access", "ctx", "rights")

    def __init__(self, access: Access, ctx: RequestContext) -> None:
        self.access = access
        self.ctx = ctx
        self.rights: Rights = rights_of(access, ctx)

    def may(self, action: Action, name: str = CLUSTER_NAME) -> bool:
        """A refusal is counted and logged. To filter a list, ask `rights`."""
        return self.rights.may(action, name) or self._refuse(action, name)

    def _refuse(self, action: Action, name: str) -> bool:
        self.access.note_refusal(self.rights, action, name, self.ctx.api.name)
        return False

    def refused(self, request: Any, kind: ResourceType) -> Any:
        """The module's answer that refuses everything in the request."""
        return self.ctx.api.refused(request, self.ctx.api_version, REFUSED_WITH[kind])

    def topic_name(self, topic_id: Any) -> str | None:
        """None: no topic has this id (`uuid.UUID` or None), which the handler tells as to everybody."""
        return None if topic_id is None else self.access.name_of_topic(topic_id.bytes)

    def is_node(self, request: Any) -> bool:
        """A node of this cluster asks on its own behalf."""
        content = unknown_tag(request, INTERNAL_WRITE_TAG)
        return content is not None and proves_node(self.access, self.ctx, content)


def proves_node(access: Access, ctx: RequestContext, proof: bytes) -> bool:
    return access.may_be_node(ctx.principal) and proven(access.view, ctx, proof, access.secured) is not None


def rights_of(access: Access, ctx: RequestContext) -> Rights:
    """Kept in the session until its principal or the bindings change."""
    session = ctx.session
    rights = session.rights
    if rights is not None and rights.index is access.image.index and rights.principal == session.principal:
        return rights
    rights = session.rights = access.rights(session.principal, ctx.host)
    return rights


@dataclass(frozen=True, slots=True)
class Need:
    text: str
    """For the documentation; empty where nothing more is needed."""
    check: Callable[[Asking, Any], Outcome]
    nodes_pass: bool = False
    """Whether the cluster's own nodes, which prove themselves, need nothing."""

    def then(self, following: Need) -> Need:
        """Both, in this order."""

        def check(asking: Asking, request: Any) -> Outcome:
            first = self.check(asking, request)
            if isinstance(first, Refused):
                return first
            second = following.check(asking, request)
            if first is None or second is None:
                return first or second
            if isinstance(second, Refused):
                return Refused(first.finish(second.answer))
            return Passing(lambda answer: first.finish(second.finish(answer)))

        text = "; ".join(filter(None, (self.text, following.text)))
        return Need(text, check, self.nodes_pass or following.nodes_pass)

    def open_to_nodes(self) -> Need:
        return replace(self, nodes_pass=True)


def guarded(access: Access, api: Api, handler: Handler) -> Handler:
    """The handler behind the row's need."""
    need = api.need
    if need is NOTHING:
        return handler

    async def later(answer: Awaitable[Any], finish: Callable[[Any], Any]) -> Any:
        return finish(await answer)

    def handle(ctx: RequestContext, request: Any) -> Any:
        asking = Asking(access, ctx)
        if need.nodes_pass and asking.is_node(request):
            return handler(ctx, request)
        outcome = need.check(asking, request)
        if outcome is None:
            return handler(ctx, request)
        if isinstance(outcome, Refused):
            return outcome.answer
        answer = handler(ctx, request)
        return later(answer, outcome.finish) if isinstance(answer, Awaitable) else outcome.finish(answer)

    return handle


# --- needs ----------------------------------------------------------------------------------------------------------

NOTHING: Final = Need("nothing", lambda asking, request: None)


def checked_by_guard(request: Any) -> Outcome:
    """For needs of raw handlers, whose guard knows the request (`ApiTable.on_raw`). A node of another role, which
    decodes such a request to refuse it, lets it pass to that refusal, which tells nothing."""
    return None


def in_cluster(action: Action, *others: Action) -> Need:
    """One of these operations on the cluster, for the whole request."""

    def check(asking: Asking, request: Any) -> Outcome:
        if any(asking.rights.may_in_cluster(other) for other in others) or asking.may(action):
            return None
        return Refused(asking.refused(request, ResourceType.CLUSTER))

    return Need(" or ".join(str(each) for each in (action, *others)), check)


def whole(action: Action, field: str) -> Need:
    """On the resource that a field of the request names, for the whole request."""
    name_of = attrgetter(field)

    def check(asking: Asking, request: Any) -> Outcome:
        return None if asking.may(action, name_of(request)) else Refused(asking.refused(request, action.kind))

    return Need(str(action), check)


def own_name(asking: Asking, entry: Any) -> str | None:
    """Of entries that are names."""
    return str(entry)


def field_name(asking: Asking, entry: Any) -> str | None:
    return entry.name  # type: ignore[no-any-return]


def name_or_id(asking: Asking, entry: Any) -> str | None:
    """Of entries that name a topic by its name or, in later versions, by its id."""
    return entry.name or asking.topic_name(entry.topic_id)


def each(
    action: Action, field: str, answers: str, name_of: Callable[[Asking, Any], str | None] = field_name,
    *, or_in_cluster: Action | None = None,
) -> Need:
    """On the resource of each entry of a list. `answers`: the list of the response that has their results. Entries
    without a name pass."""

    def permitted(asking: Asking, entry: Any) -> bool:
        name = name_of(asking, entry)
        return name is None or asking.may(action, name)

    def check(asking: Asking, request: Any) -> Outcome:
        if or_in_cluster is not None and asking.rights.may_in_cluster(or_in_cluster):
            return None
        return split(asking, request, field, answers, action.kind, permitted)

    return Need(f"{action} each" + ("" if or_in_cluster is None else f", or {or_in_cluster}"), check)


def split(
    asking: Asking, request: Any, field: str, answers: str, kind: ResourceType,
    permitted: Callable[[Asking, Any], bool],
) -> Outcome:
    """Takes the entries that are not permitted out of the request, and puts their refusals into the answer."""
    entries = getattr(request, field)
    kept, refused = _parted(entries or (), lambda entry: permitted(asking, entry))
    if not refused:
        return None
    refusing = copy.copy(request)
    setattr(refusing, field, refused)
    refusal = asking.refused(refusing, kind)
    if not kept:
        return Refused(refusal)
    setattr(request, field, kept)

    def finish(answer: Any) -> Any:
        setattr(answer, answers, [*getattr(answer, answers), *getattr(refusal, answers)])
        return answer

    return Passing(finish)


CONFIGURED_TYPES: Final = {2: ResourceType.TOPIC, 32: ResourceType.GROUP}
"""Kafka's `ConfigResource.Type` -> what a right is on; nodes, their loggers and all others: the cluster."""


def each_resource(topic: Action, group: Action, cluster: Action, answers: str) -> Need:
    """Of requests about configurations, whose entries have a type and a name."""

    def permitted(asking: Asking, entry: Any) -> bool:
        match CONFIGURED_TYPES.get(entry.resource_type):
            case ResourceType.TOPIC:
                return asking.may(topic, entry.resource_name)
            case ResourceType.GROUP:
                return asking.may(group, entry.resource_name)
        return asking.may(cluster)

    return Need(
        f"{topic}, {group} or {cluster} each",
        lambda asking, request: split(asking, request, "resources", answers, ResourceType.CLUSTER, permitted))


def refusal_of(resource: Any, code: ErrorCode) -> ErrorCode:
    """The error of a refused resource in a request about configurations; `code`: where it is the cluster."""
    return REFUSED_WITH.get(CONFIGURED_TYPES.get(resource.resource_type, ResourceType.ANY), code)


def _parted(entries: Sequence[Any], permitted: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    kept: list[Any] = []
    refused: list[Any] = []
    for entry in entries:
        (kept if permitted(entry) else refused).append(entry)
    return kept, refused



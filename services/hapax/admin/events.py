"""/v1/events: the cluster's events, newest first."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from hapax.admin.answers import LARGEST_INT64, answer
from hapax.admin.context import Context
from hapax.admin.needs import Routes
from hapax.admin.paging import Cursor, decode, encode
from hapax.admin.problems import invalid
from hapax.client.event_log import newest_events


class Event(BaseModel):
    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [{
        "offset": 17, "at_ms": 1767225600000, "event": "failover", "node_id": 300, "v": 1, "topic": "flights"}]})
    offset: int
    at_ms: int
    event: str = Field(description="The event's kind: failover, producer_fenced, healed_transaction, ...")


class EventPage(BaseModel):
    items: list[Event]
    next_cursor: str | None = Field(description="Cursor of the next, older page. An empty page may have one.")


def routes(context: Context) -> APIRouter:
    router = Routes(context.keys, "/v1/events", "events")

    @router.get("", response_model=EventPage)
    async def events(
        event: Annotated[list[str], Query(max_length=50, description="Only events of these kinds.")] = [],  # noqa: B006
        since_ms: Annotated[
            int, Query(ge=0, le=LARGEST_INT64, description="Only events at or after this time, in ms since 1970.")] = 0,
        limit: Annotated[int, Query(ge=1, le=500)] = 100, cursor: Cursor = None,
    ) -> Response:
        """Failovers, fencings with both parties, healed transactions and other events, newest first."""
        before = None if cursor is None else _offset(cursor)
        async with context.heavy:
            found = await context.clients.call(lambda admin: newest_events(
                admin, most=limit, kinds=event, before=before, since_ms=since_ms))
        items: list[dict[str, Any]] = found.events
        return answer({"items": items, "next_cursor": None if found.before is None else encode((found.before,))})

    return router


def _offset(cursor: str) -> int:
    key = decode(cursor)
    if len(key) != 1 or not isinstance(key[0], int) or not 0 <= key[0] <= LARGEST_INT64:
        raise invalid("The cursor was not issued by this API.", "query.cursor")
    return key[0]

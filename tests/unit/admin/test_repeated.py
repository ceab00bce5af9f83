"""Requests that are repeated, or come late: through the gate and the handlers, to a cluster that answers when told."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.admin.app import make_app
from hapax.admin.callers import NONE, Callers
from hapax.admin.coalescing import QueryCoalescer
from hapax.admin.context import Context
from hapax.admin.gate import Gate
from hapax.admin.idempotency import Idempotency
from hapax.client.errors import FatalError, RetriableError
from hapax.client.groups import GroupOffset
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime import telemetry
from hapax.runtime.settings import Settings
from unit.admin.test_idempotency import Clock, Store

P0 = TopicPartition("t", PartitionIndex(0))
P1 = TopicPartition("t", PartitionIndex(1))


class Group:
    """What the handlers ask of an admin client: one group, on a log of a thousand records in each partition."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, tuple[int, int]] = {}
        self.now_ms = 1
        self.lost_answers = 0
        """So many commits are made without an answer."""
        self.lost_commits = 0
        """So many commits are not made at all."""

    def commit(self, partition: TopicPartition, offset: int) -> None:
        self.now_ms += 1
        self.offsets[partition] = (offset, self.now_ms)

    async def group_offsets(self, group: str) -> dict[TopicPartition, GroupOffset]:
        if not self.offsets:
            raise FatalError("nothing committed", code=ErrorCode.GROUP_ID_NOT_FOUND)
        return {each: GroupOffset(offset, "", -1, ms, False) for each, (offset, ms) in self.offsets.items()}

    async def partition_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Any]:
        return {each: SimpleNamespace(first=0, last_stable=1000, high_watermark=1000) for each in partitions}

    async def alter_group_offsets(self, group: str, offsets: Any) -> None:
        if self.lost_commits:
            self.lost_commits -= 1
            raise RetriableError("the coordinator does not answer")
        for each, wanted in offsets.items():
            self.commit(each, wanted.offset)
        if self.lost_answers:
            self.lost_answers -= 1
            raise RetriableError("the answer is lost")


class Rest:
    """A replica of the REST service."""

    def __init__(self, admin: Any, view: Any, store: Store) -> None:
        async def call(work: Any) -> Any:
            return await work(admin)

        settings, clients, metrics = Settings(), SimpleNamespace(call=call), telemetry.Metrics()
        nothing: Any = None
        keys = Idempotency(store, Clock(), "c", claim_s=60)  # type: ignore[arg-type]
        context = Context(nothing, settings, view, clients, QueryCoalescer(60.0), keys)  # type: ignore[arg-type]
        self._gate = Gate(make_app(context), settings, Callers((NONE,), None, metrics, nothing), metrics, lambda: 0.0)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        names = {"content-type": "application/json", **headers}
        await self._gate({
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "state": {},
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in names.items()],
            "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2),
        }, receive, send)
        answer = b"".join(each.get("body", b"") for each in sent[1:])
        return sent[0]["status"], json.loads(answer) if answer else None


@pytest.fixture
def world() -> tuple[Group, Rest, Rest]:
    group, store = Group(), Store()
    view = SimpleNamespace(topic=lambda name: SimpleNamespace(partitions=2) if name == "t" else None)
    group.commit(P0, 100)
    group.commit(P1, 200)
    return group, Rest(group, view, store), Rest(group, view, store)


async def back(rest: Rest, by: int = -10) -> tuple[int, Any]:
    return await rest.ask(
        "POST", "/v1/groups/g/reset", {"to": {"shift": by}, "topics": ["t"], "dry_run": False},
        idempotency_key="once")


MOVED = [
    {"topic": "t", "partition": 0, "before": 100, "after": 90},
    {"topic": "t", "partition": 1, "before": 200, "after": 190},
]


def offsets(group: Group) -> list[int]:
    return [group.offsets[each][0] for each in (P0, P1)]


async def test_a_shift_whose_answer_was_lost_is_not_made_twice(world: tuple[Group, Rest, Rest]) -> None:
    group, one, other = world
    group.lost_answers = 1
    assert (await back(one))[0] == 503
    assert offsets(group) == [90, 190]
    status, answer = await back(other)
    assert (status, answer["items"]) == (200, MOVED)
    assert offsets(group) == [90, 190]
    assert (await back(one))[1]["items"] == MOVED


async def test_a_shift_that_was_not_made_is_made_once(world: tuple[Group, Rest, Rest]) -> None:
    group, one, other = world
    group.lost_commits = 2
    assert (await back(one))[0] == 503
    assert (await back(other))[0] == 503
    assert (await back(other))[1]["items"] == MOVED
    assert offsets(group) == [90, 190]


async def test_a_group_that_has_gone_on_since_is_not_put_back_again(world: tuple[Group, Rest, Rest]) -> None:
    """It has read the ten records again, and stands where it stood before."""
    group, one, other = world
    group.lost_answers = 1
    assert (await back(one))[0] == 503
    group.commit(P0, 100)
    group.commit(P1, 200)
    status, answer = await back(other)
    assert status == 409 and "another key" in answer["detail"]
    assert offsets(group) == [100, 200]


async def test_two_requests_with_keys_of_their_own_are_two_shifts(world: tuple[Group, Rest, Rest]) -> None:
    group, one, _ = world
    await back(one)
    body = {"to": {"shift": -10}, "topics": ["t"], "dry_run": False}
    await one.ask("POST", "/v1/groups/g/reset", body, idempotency_key="twice")
    await one.ask("POST", "/v1/groups/g/reset", body)
    assert offsets(group) == [70, 170]


async def test_a_deletion_names_the_topic_and_the_revision_that_were_looked_at() -> None:
    asked: list[tuple[str, bytes, int | None]] = []

    async def delete_topic(name: str, topic_id: bytes, if_revision: int | None) -> None:
        asked.append((name, topic_id, if_revision))

    async def wait_for(predicate: Any, timeout: float) -> None: ...

    topic = SimpleNamespace(topic_id=b"i" * 16, mod_revision=7)
    view = SimpleNamespace(topic=lambda name: topic, wait_for=wait_for)
    rest = Rest(SimpleNamespace(delete_topic=delete_topic), view, Store())
    assert (await rest.ask("DELETE", "/v1/topics/t"))[0] == 204
    assert (await rest.ask("DELETE", "/v1/topics/t", if_match='"7"'))[0] == 204
    assert (await rest.ask("DELETE", "/v1/topics/t", if_match='"6"'))[0] == 412
    assert asked == [("t", topic.topic_id, None), ("t", topic.topic_id, 7)]


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "once"}])
async def test_a_handler_that_fails_is_answered_by_a_problem(
    world: tuple[Group, Rest, Rest], headers: dict[str, str]
) -> None:
    group, one, _ = world

    async def fails(*_: Any) -> None:
        raise KeyError("a defect")

    group.partition_offsets = fails  # type: ignore[assignment, method-assign]
    body = {"to": {"earliest": True}, "topics": ["t"]}
    status, answer = await one.ask("POST", "/v1/groups/g/reset", body, **headers)
    assert (status, answer["type"]) == (500, "urn:hapax:problem:internal-error")


@pytest.mark.parametrize("error", [TimeoutError(), ValueError("a record that nobody can read")])
async def test_what_fails_before_a_handler_is_answered_by_a_problem(error: Exception) -> None:
    class Broken(Store):
        async def get(self, key: str) -> Any:
            raise error

    rest = Rest(Group(), SimpleNamespace(), Broken())
    status, answer = await back(rest)
    assert (status, answer["status"]) == (503 if isinstance(error, TimeoutError) else 500, status)

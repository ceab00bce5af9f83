"""Events are counted up, not repeated."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from hapax_operator.conditions import Note
from hapax_operator.events import EventRecorder, event, event_name
from hapax_operator.resources import TOPICS, Meta, Ref

NOTE = Note("Warning", "Refused", "there are too few brokers")


def meta(uid: str = "1", name: str = "orders") -> Meta:
    return Meta(ref=Ref(TOPICS, "team", name), uid=uid, generation=1, created="2026-01-01T00:00:00Z")


class Api:
    """The API server's Events."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []

    async def read(self, path: str) -> Mapping[str, Any] | None:
        self.calls.append("read")
        return self.events.get(path)

    async def create_new(self, path: str, body: Mapping[str, Any]) -> bool:
        self.calls.append("create")
        path = f"{path}/{body['metadata']['name']}"
        if path in self.events:
            return False
        self.events[path] = dict(body)
        return True

    async def merge(self, path: str, body: Mapping[str, Any]) -> bool:
        self.calls.append("merge")
        if path in self.events:
            self.events[path] |= body
        return path in self.events

    def counts(self) -> list[int]:
        return [each.get("series", {"count": 1})["count"] for each in self.events.values()]


async def test_what_occurs_again_is_counted_by_one_request() -> None:
    api = Api()
    recorder = EventRecorder(api)
    for _ in range(3):
        await recorder.record(meta(), NOTE)
    assert api.counts() == [3] and api.calls == ["create", "merge", "merge"]


async def test_a_restarted_operator_goes_on_counting() -> None:
    api = Api()
    for _ in range(2):
        await EventRecorder(api).record(meta(), NOTE)
    await EventRecorder(api).record(meta(), NOTE)
    assert api.counts() == [3]


async def test_an_event_that_has_expired_is_a_new_one() -> None:
    api = Api()
    recorder = EventRecorder(api)
    await recorder.record(meta(), NOTE)
    api.events.clear()
    await recorder.record(meta(), NOTE)
    await recorder.record(meta(), NOTE)
    assert api.counts() == [2]


async def test_other_objects_and_other_words_are_other_events() -> None:
    api = Api()
    recorder = EventRecorder(api)
    await recorder.record(meta(), NOTE)
    await recorder.record(meta(uid="2"), NOTE)
    await recorder.record(meta(), NOTE._replace(message="there are enough brokers"))
    assert api.counts() == [1, 1, 1]


@pytest.mark.parametrize("name", ["a" * 253, "a" * 199 + ".b"])
def test_the_name_of_an_event_is_a_valid_one(name: str) -> None:
    made = event_name(meta(name=name), NOTE)
    assert len(made) <= 253 and ".." not in made


@pytest.mark.parametrize("letter", ["a", "é", "語"])
def test_a_long_note_is_cut_to_the_bytes_that_the_api_server_allows(letter: str) -> None:
    told = event(meta(), NOTE._replace(message=letter * 2000), "name", datetime.now(UTC))["note"]
    assert 1021 < len(told.encode()) <= 1024 and set(told) == {letter}

"""What the watches missed is found by listing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from hapax.runtime import telemetry
from hapax_operator import sweep
from hapax_operator.api import KubeRefused, KubeUnavailable
from hapax_operator.resources import SPARK_JOBS, TOPICS, Meta, Ref
from hapax_operator.sweep import WatchSweep, different

REF = Ref(TOPICS, "team", "orders")


def metadata(version: int = 1, uid: str = "1", name: str = "orders") -> dict[str, Any]:
    return {"namespace": "team", "name": name, "uid": uid, "resourceVersion": str(version)}


def meta(version: int = 1, uid: str = "1", ref: Ref = REF) -> Meta:
    return Meta(ref=ref, uid=uid, generation=1, created="2026-01-01T00:00:00Z", version=str(version))


@pytest.mark.parametrize(("listed", "known", "found"), [
    (metadata(2), meta(2), False), (metadata(2), meta(3), False), (metadata(3), meta(2), True),
    (metadata(3), None, True), (None, meta(2), True), (metadata(2, uid="2"), meta(3), True),
])
def test_a_watch_may_be_ahead_of_a_list_but_not_behind(listed: Any, known: Meta | None, found: bool) -> None:
    made = different(TOPICS, [listed] if listed else [], {REF: known} if known else {})
    assert made == ({REF: known} if found else {})


class World:
    """An API server, and what its watches reported."""

    def __init__(self) -> None:
        self.stored: dict[Ref, dict[str, Any]] = {}
        self.known: dict[Ref, Meta] = {}
        self.restarts = 0
        self.away = False
        self.readable = True
        self.not_installed = ""
        self.namespaces: tuple[str, ...] = ()
        self.refused: set[str] = set()
        self.left_out: list[Any] = []
        self.gone_namespaces: set[str] = set()

    async def outline(self, path: str) -> list[Mapping[str, Any]]:
        if self.away:
            raise KubeUnavailable
        if path.endswith(self.not_installed or "nothing"):
            raise KubeRefused(404, "page not found")
        if any(f"/namespaces/{each}/" in path for each in self.refused):
            raise KubeRefused(403, "topics is forbidden")
        kind = path.partition("?")[0].endswith(TOPICS)
        return [each for each in self.stored.values()
                if kind and (not self.namespaces or f"/namespaces/{each['namespace']}/" in path)]

    async def get(self, ref: Ref) -> Mapping[str, Any] | None:
        found = self.stored.get(ref)
        return None if found is None else {"metadata": found}

    async def namespace_is_gone(self, name: str) -> bool:
        return name in self.gone_namespaces

    def metas(self, plural: str) -> Iterable[Meta]:
        return list(self.known.values()) if plural == TOPICS else []

    def meta(self, ref: Ref) -> Meta | None:
        return self.known.get(ref)

    def seen(self, plural: str, body: Mapping[str, Any]) -> None:
        if self.readable:
            self.known[REF] = meta(int(body["metadata"]["resourceVersion"]), body["metadata"]["uid"])

    def gone(self, ref: Ref, uid: str) -> None:
        assert self.known.pop(ref).uid == uid

    def restart(self) -> None:
        self.restarts += 1

    def sweep(self, monkeypatch: pytest.MonkeyPatch) -> WatchSweep:
        monkeypatch.setattr(sweep, "_LATE_S", 0.0)
        world: Any = self
        return WatchSweep(
            world, random.Random(1), self.namespaces, world, self.restart, self.left_out.append, telemetry.Metrics())


async def test_a_missed_change_is_reported_and_the_process_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    made = world.sweep(monkeypatch)
    made.start()
    world.stored[REF] = metadata(2)
    await made.look()
    assert world.known[REF] == meta(2) and "missed 1 changes" in made.ready() and not world.restarts
    world.stored[REF] = metadata(3)
    await made.look()
    assert world.known[REF] == meta(3) and world.restarts == 1
    await made.look()
    assert made.ready() == "" and world.restarts == 1
    del world.stored[REF]
    await made.look()
    assert not world.known and made.ready()
    await made.close()


async def test_a_change_that_the_watch_reports_in_time_is_none_of_its_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    made = world.sweep(monkeypatch)
    made.start()
    world.stored[REF] = metadata(2)

    async def reports(seconds: float) -> None:
        world.known[REF] = meta(2)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "sleep", reports)
        await made.look()
    assert made.ready() == ""
    await made.close()


async def test_what_the_watch_reports_during_a_look_is_not_replaced_by_what_the_look_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watch reports a change once: the earlier state would stand until the next look."""
    class Late(World):
        async def get(self, ref: Ref) -> Mapping[str, Any] | None:
            found = await super().get(ref)
            self.known[REF] = meta(3)
            return found

    world = Late()
    made = world.sweep(monkeypatch)
    made.start()
    world.stored[REF] = metadata(2)
    await made.look()
    assert world.known[REF] == meta(3) and made.ready() == ""
    await made.close()


async def test_a_resource_that_is_gone_is_remembered_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.readable = False
    made = world.sweep(monkeypatch)
    made.start()
    world.stored[REF] = metadata(2)
    await made.look()
    assert made._unreadable == {REF: "2"}
    world.stored.clear()
    await made.look()
    assert not made._unreadable
    await made.close()


@pytest.mark.parametrize("known", [None, meta(1)])
async def test_a_resource_that_cannot_be_read_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, known: Meta | None
) -> None:
    world = World()
    world.readable = False
    if known is not None:  # it could be read before it was changed
        world.known[REF] = known
    made = world.sweep(monkeypatch)
    made.start()
    world.stored[REF] = metadata(2)
    for _ in range(3):
        await made.look()
        assert made.ready() == ""
    await made.close()


async def test_a_server_that_does_not_answer_makes_it_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.away = True
    made = world.sweep(monkeypatch)
    made.start()
    await made.look()
    assert made.ready() == ""
    monkeypatch.setattr(sweep, "_UNANSWERED_S", -1000.0)
    assert "listed no resources for" in made.ready()
    world.away = False
    monkeypatch.setattr(sweep, "_UNANSWERED_S", 60.0)
    await made.look()
    assert made.ready() == ""
    await made.close()


async def test_definitions_of_a_release_without_spark_jobs_are_swept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the definitions are installed apart from the release, they may be older than the operator."""
    world = World()
    made = world.sweep(monkeypatch)
    monkeypatch.setattr(sweep, "_UNANSWERED_S", 60.0)
    made.start()
    world.stored[REF], world.not_installed = metadata(2), SPARK_JOBS
    await made.look()
    assert "missed 1 changes" in made.ready()
    world.not_installed = TOPICS
    monkeypatch.setattr(sweep, "_UNANSWERED_S", -1000.0)
    await made.look()
    assert "listed no resources for" in made.ready(), "of other kinds it is a failure"
    await made.close()


async def test_a_namespace_that_may_not_be_read_is_left_out_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was deleted, and the rights with it."""
    world = World()
    world.namespaces, world.refused = ("team", "gone"), {"gone"}
    monkeypatch.setattr(sweep, "_UNANSWERED_S", -1000.0)
    made = world.sweep(monkeypatch)
    await made.look_for_rights()
    assert world.left_out == [{"gone"}] and not world.restarts, "the watches are not there yet"
    made.start()
    kept = Ref(TOPICS, "gone", "kept")
    world.known[kept] = meta(ref=kept)
    world.stored[REF] = metadata(2)
    monkeypatch.setattr(sweep, "_UNANSWERED_S", 60.0)
    await made.look()
    assert world.known[REF] == meta(2), "what was missed elsewhere is found"
    assert kept in world.known, "what is not read is not gone"
    await made.look()
    assert made.ready() == "" and world.left_out == [{"gone"}] and not world.restarts
    world.refused = {"team"}
    await made.look()
    assert world.left_out[1:] == [{"team"}] and world.restarts == 1
    world.refused = set()
    await made.look()
    assert world.left_out[2:] == [set()] and world.restarts == 2
    await made.close()


async def test_what_was_in_a_namespace_is_gone_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would otherwise take precedence over resources elsewhere, and hold up all that is compared with it."""
    world = World()
    world.namespaces, world.refused = ("team", "gone"), {"gone"}
    made = world.sweep(monkeypatch)
    made.start()
    former = Ref(TOPICS, "gone", "orders")
    world.known = {REF: meta(), former: meta(ref=former)}
    world.stored[REF] = metadata(1)
    await made.look()
    assert former in world.known
    world.gone_namespaces = {"gone"}
    await made.look()
    assert world.known == {REF: meta()} and made.ready() == ""
    await made.close()


async def test_an_operator_that_may_not_read_at_all_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(World):
        async def outline(self, path: str) -> list[Mapping[str, Any]]:
            raise KubeRefused(403, "topics is forbidden")

    world = Refusing()
    made = world.sweep(monkeypatch)
    made.start()
    await made.look()
    monkeypatch.setattr(sweep, "_UNANSWERED_S", -1000.0)
    assert "listed no resources for" in made.ready() and not world.left_out
    await made.close()

"""The thread in which kopf runs: it starts again whatever ends it, and needs no user's name."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from typing import Any

import kopf
import pytest
from kopf._core.reactor import observation

from hapax_operator.watching import _NO_LIST, Watching, pool, resources


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hapax_operator.watching._AGAIN_S", 0.01)


@pytest.mark.parametrize("error", [kopf.LoginError("the API server is away"), asyncio.CancelledError()])
def test_a_watch_that_fails_is_begun_anew(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    begun = threading.Semaphore(0)

    async def fails(**_: Any) -> None:
        begun.release()
        raise error

    monkeypatch.setattr(kopf, "operator", fails)
    watching = Watching([resources(())], lambda plural, kind, body: None)
    watching.start()
    assert all(begun.acquire(timeout=5) for _ in range(3))
    watching.close()
    assert not any(thread.name == "kopf" for thread in threading.enumerate())


def test_a_pod_s_user_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id is in no list of users, and by default kopf makes its own identity of the user's name."""
    given: list[dict[str, Any]] = []
    begun = threading.Event()

    async def notes(**arguments: Any) -> None:
        given.append(arguments)
        begun.set()
        await arguments["stop_flag"].wait()

    monkeypatch.setattr(kopf, "operator", notes)
    watching = Watching([resources(("team-a",))], lambda plural, kind, body: None)
    watching.start()
    assert begun.wait(10)
    watching.close()
    assert not any(thread.name == "kopf" for thread in threading.enumerate())
    assert given[0]["identity"] and given[0]["namespaces"] == ["team-a"] and not given[0]["clusterwide"]


def test_scopes_end_together_and_are_watched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf cancels all tasks on its loop when it ends, so the other scope would be left without some of its own."""
    begun: list[str] = []
    all_of = threading.Semaphore(0)

    async def one_fails(**arguments: Any) -> None:
        begun.append(arguments["namespaces"][0])
        all_of.release()
        if arguments["namespaces"] == ["prod"] and len(begun) < 4:
            raise kopf.LoginError("forbidden")
        await arguments["stop_flag"].wait()

    monkeypatch.setattr(kopf, "operator", one_fails)
    watching = Watching([resources(("team-a",)), pool("prod", "hapax-broker")], lambda plural, kind, body: None)
    watching.start()
    assert all(all_of.acquire(timeout=5) for _ in range(4))
    watching.restart()
    assert all(all_of.acquire(timeout=5) for _ in range(2))
    watching.close()
    assert begun == ["team-a", "prod"] * 3


def test_a_namespace_that_is_left_out_is_not_watched_and_none_is_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[list[str], bool]] = []
    all_of = threading.Semaphore(0)

    async def notes(**arguments: Any) -> None:
        begun.append((arguments["namespaces"], arguments["clusterwide"]))
        all_of.release()
        await arguments["stop_flag"].wait()

    monkeypatch.setattr(kopf, "operator", notes)
    watching = Watching([resources(("team-a", "team-b")), pool("prod", "b")], lambda plural, kind, body: None)
    watching.leave_out({"team-b"})
    watching.start()
    assert all(all_of.acquire(timeout=5) for _ in range(2))
    watching.leave_out({"team-a", "team-b"})
    watching.restart()
    assert all_of.acquire(timeout=5)
    watching.leave_out(())
    watching.restart()
    assert all(all_of.acquire(timeout=5) for _ in range(2))
    watching.close()
    assert begun == [(["team-a"], False), (["prod"], False), (["prod"], False),
                     (["team-a", "team-b"], False), (["prod"], False)]


def test_that_other_namespaces_may_not_be_listed_is_said_once_and_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """kopf warns of it in each scope and at each start, as of a fault, though nothing else is asked for."""
    async def warns(**arguments: Any) -> None:
        for text in (*_NO_LIST, "Not enough permissions to watch for resources"):
            observation.logger.warning(f"{text}: more")
        begun.release()
        await arguments["stop_flag"].wait()

    source, begun = inspect.getsource(observation), threading.Semaphore(0)
    assert all(text in source for text in _NO_LIST), "as this release of kopf says it"
    monkeypatch.setattr(kopf, "operator", warns)
    watching = Watching([resources(("team-a", "team-b")), pool("home", "p")], lambda plural, kind, body: None)
    with caplog.at_level(logging.INFO):
        watching.start()
        assert begun.acquire(timeout=10) and begun.acquire(timeout=10)
        watching.close()
    warnings = [each.getMessage() for each in caplog.records if each.name.startswith("kopf")]
    assert warnings == ["Not enough permissions to watch for resources: more"] * 2
    told = [each for each in caplog.records if "these namespaces alone" in each.getMessage()]
    assert len(told) == 1

"""What the reconciler of Users does with a plan, whatever it missed and whatever is refused."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hapax.core.access.principal_rules import PrincipalRules
from hapax.runtime import telemetry
from hapax.runtime.clock import SystemClock
from hapax_operator.access_file import AccessFile
from hapax_operator.api import KubeRefused, KubeUnavailable
from hapax_operator.conditions import Condition, Note
from hapax_operator.plan_user import DeleteSecret, UserPlan
from hapax_operator.resources import PAUSE, USERS, Ref
from hapax_operator.user_resource import USER_FINALIZER
from hapax_operator.users import ClusterAccess, Orphan, UserReconciler

REF = Ref(USERS, "shop", "app")


def body(uid: str = "1", paused: str = "false", finalizers: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "shop", "name": "app", "uid": uid, "generation": 1, "resourceVersion": uid,
            "annotations": {PAUSE: paused}, "finalizers": list(finalizers)},
        "spec": {"authentication": {"type": "Scram"}},
        "status": {"observedGeneration": 1, "conditions": [{
            "type": "Ready", "status": "False", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": "ForeignSecret", "message": ""}]}}


class Api:
    def __init__(self, found: Mapping[str, Any] | None) -> None:
        self.found = found
        self.reasons: list[str] = []
        self.away = False

    async def get(self, ref: Ref) -> Mapping[str, Any] | None:
        assert ref == REF
        return self.found

    async def record(self, _: Any, note: Note) -> None:
        self.reasons.append(note.reason)

    async def put_status(self, _: Any, status: Mapping[str, Any]) -> Any:
        if self.away:
            raise KubeUnavailable("it does not answer")
        return self.found


def reconciler(api: Api, planned: UserPlan) -> UserReconciler:
    world = cast(Any, None)
    made = UserReconciler(
        world, world, cast(Any, api), SystemClock(), random.Random(1), telemetry.Metrics(),
        ClusterAccess(AccessFile(), True, PrincipalRules("DEFAULT"), "shop"))

    async def plan(*_: Any) -> tuple[UserPlan, Any]:
        return planned, (None, None)

    made._plan = plan  # type: ignore[method-assign]
    return made


NOTHING = UserPlan((), None, (Condition("Ready", "False", "ForeignSecret", ""),), {})


@pytest.mark.parametrize("found", [None, body("2")])
async def test_a_user_without_finalizer_whose_end_no_watch_told_loses_its_rights(found: dict[str, Any] | None) -> None:
    """A watch that was interrupted tells of no deletion, and a paused User, or one whose login is not in force, has
    nothing to do that would make the operator look."""
    made = reconciler(Api(found), NOTHING)
    made.seen(body(paused="true"))
    owner = made._all[REF].owner
    await made._user(REF)
    assert (None if REF not in made._all else made._all[REF].meta.uid) == (None if found is None else "2")
    assert Orphan(owner) in {await made._queue.get() for _ in range(len(made._queue))}
    await made.close()


@pytest.mark.parametrize(("before", "told", "answer", "left"), [
    ([], ["2"], None, "2"), (["1"], ["2"], None, "2"), (["1"], ["2"], "1", "2"), (["1"], [], "1", None)])
async def test_what_a_watch_tells_while_the_api_server_is_asked_counts(
    before: list[str], told: list[str], answer: str | None, left: str | None
) -> None:
    """It tells of each state once."""
    class Late(Api):
        async def get(self, ref: Ref) -> Mapping[str, Any] | None:
            made.gone(REF, "1")
            for uid in told:
                made.seen(body(uid))
            return await super().get(ref)

    made = reconciler(Late(None if answer is None else body(answer)), NOTHING)
    for uid in before:
        made.seen(body(uid))
    await made._refresh(REF)
    known = made.get(REF)
    assert (known and known.meta.uid) == left
    if before:
        made._written(REF, body("1"))
        assert made.get(REF) == known
    await made.close()


async def test_an_event_tells_what_was_done_and_not_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An admission policy or a quota of Secrets may refuse at each try."""
    api, refuses = Api(body(finalizers=(USER_FINALIZER,))), True

    async def apply(*_: Any) -> bool:
        if refuses:
            raise KubeRefused(403, "exceeded quota")
        return False

    monkeypatch.setattr("hapax_operator.users.apply_to_user", apply)
    made = reconciler(api, NOTHING)
    made.seen(body(finalizers=(USER_FINALIZER,)))
    rotates = UserPlan((DeleteSecret("uid"),), None, (), None, (Note("Normal", "PasswordRotated", ""),))
    for _ in range(2):
        with pytest.raises(KubeRefused):
            await made._carry_out(made._all[REF], rotates, (None, None))
    refuses = False
    await made._carry_out(made._all[REF], rotates, (None, None))
    assert api.reasons == [], "the Secret had changed"

    async def done(*_: Any) -> bool:
        return True

    monkeypatch.setattr("hapax_operator.users.apply_to_user", done)
    await made._carry_out(made._all[REF], rotates, (None, None))
    assert api.reasons == ["PasswordRotated"]
    await made.close()


async def test_a_conflict_is_told_once_while_no_status_can_be_written() -> None:
    note = Note("Warning", "ResourceConflict", "an older resource describes it")
    api = Api(body(finalizers=(USER_FINALIZER,)))
    made = reconciler(api, NOTHING)
    made.seen(body(finalizers=(USER_FINALIZER,)))
    api.away = True
    for _ in range(3):
        with pytest.raises(KubeUnavailable):
            await made._write(made._all[REF], UserPlan((), None, NOTHING.conditions, {"secret": "app"}, (note,)))
    assert api.reasons == ["ResourceConflict"]
    await made.close()


@pytest.mark.parametrize("gone", [False, True])
async def test_what_a_user_left_goes_with_its_namespace(monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    """The rights there are gone too, so that nothing in it can be read; its password and its permissions must not stay.
    As long as the namespace is there, its rights may come back."""
    class Refusing(Api):
        async def get(self, ref: Ref) -> Mapping[str, Any] | None:
            raise KubeRefused(403, "users is forbidden")

        async def namespace_is_gone(self, name: str) -> bool:
            assert name == "shop"
            return gone

    removed: list[str] = []

    async def apply(_: Any, owner: str, action: Any) -> None:
        removed.append(type(action).__name__)

    monkeypatch.setattr("hapax_operator.users.apply_to_cluster", apply)
    monkeypatch.setattr("hapax_operator.users._anything", lambda seen: True)
    monkeypatch.setattr("hapax_operator.users.plan_orphan", lambda owner, seen: (DeleteSecret("uid"),))
    made = reconciler(Refusing(None), NOTHING)
    made._observer = cast(Any, SimpleNamespace(owned=lambda owner: None))
    made.seen(body())
    owner = made._all.pop(REF).owner
    await made._orphan(Orphan(owner))
    assert removed == (["DeleteSecret"] if gone else [])
    await made.close()

"""Users whose operator may die between any two actions, while others change what it made: a model of the cluster and of
the Secret carries out the plans."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hapax.core.access.bindings import Binding
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax_operator.access_file import Listeners
from hapax_operator.namespace_policy import read_policy
from hapax_operator.plan_user import (
    Action,
    DeleteSecret,
    PasswordSeen,
    QuotasSeen,
    RemovePassword,
    SetBindings,
    SetPassword,
    SetQuotas,
    UserPlan,
    UserSeen,
    WriteSecret,
    in_force,
    plan_user,
)
from hapax_operator.user_resource import USER_FINALIZER, UserResource, read_user
from hapax_operator.user_secret import SecretSeen

POLICY = read_policy({"namespaces": [{
    "names": ["*"], "topics": ["{namespace}.*"], "users": ["{namespace}.*"]}]})
OVERLAP_S = 60
NAME, OWNER = "shop.app", "users/shop/app/uid-app"
TOPICS = ("shop.a", "shop.b", "pay.a")
ACLS = st.lists(st.tuples(st.sampled_from(TOPICS), st.booleans()), max_size=3)


@dataclass
class World:
    fixed: bool
    now_ms: int = 1_800_000_000_000
    acls: list[tuple[str, bool]] = field(default_factory=list)
    rotate: str = ""
    quota: int = 0
    deleting: bool = False
    finalizer: bool = False
    bindings: dict[Binding, str] = field(default_factory=dict)
    passwords: dict[ScramMechanism, tuple[str, str]] = field(default_factory=dict)
    """Owner and text."""
    quotas: tuple[str, dict[str, float]] | None = None
    secret: SecretSeen | None = None
    untouched: bool = True
    """Nobody but the operator has changed a password or the Secret."""
    published: bool = False
    """The Secret once had a password that worked."""
    fresh: Any = field(default_factory=lambda: map("{:043}".format, itertools.count()))
    versions: Any = field(default_factory=itertools.count)

    def resource(self) -> UserResource:
        metadata = {
            "namespace": "shop", "name": "app", "uid": "uid-app", "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [USER_FINALIZER] if self.finalizer else [],
            **({"deletionTimestamp": "2026-01-02T00:00:00Z"} if self.deleting else {})}
        login = {"type": "Scram", "overlapSeconds": OVERLAP_S, **({"mechanism": "SCRAM-SHA-512"} if self.fixed else {})}
        return read_user({"metadata": metadata, "spec": {
            "authentication": login, "rotate": self.rotate,
            "acls": [{"type": "Topic", "name": name, "operations": ["Read"], "permission": "Deny" if deny else "Allow"}
                     for name, deny in self.acls],
            **({"quotas": {"producerByteRate": self.quota}} if self.quota else {})}})

    def plan(self) -> UserPlan:
        kept = None if self.secret is None else self.secret.password()
        seen = UserSeen(
            bindings=self.bindings, secret=self.secret, listeners=Listeners(bootstrap="hapax:9093"),
            passwords={(NAME, mechanism): PasswordSeen(
                owner, kept is not None and (kept.mechanism, kept.text) == (mechanism, text))
                for mechanism, (owner, text) in self.passwords.items()},
            quotas={} if self.quotas is None else {NAME: QuotasSeen(*self.quotas)})
        return plan_user(self.resource(), [self.resource()], seen, POLICY, self.now_ms, next(self.fresh))

    def carry_out(self, action: Action) -> None:
        match action:
            case SetBindings(add, remove):
                for binding in add:
                    self.bindings.setdefault(binding, OWNER)
                for binding in remove:
                    assert self.bindings.pop(binding) == OWNER
            case SetQuotas(user, changes):
                assert user == NAME
                owner, values = self.quotas or (OWNER, {})
                assert owner == OWNER
                values = {**values, **changes}  # type: ignore[dict-item]
                values = {key: value for key, value in values.items() if value is not None}
                self.quotas = (owner, values) if values else None
            case SetPassword(user, mechanism, text):
                assert user == NAME and self.passwords.get(mechanism, (OWNER, ""))[0] == OWNER
                self.passwords[mechanism] = (OWNER, text)
            case RemovePassword(user, mechanism):
                assert user == NAME and self.passwords.pop(mechanism)[0] == OWNER
            case WriteSecret(contents, over):
                assert (over is None) == (self.secret is None)
                self.secret = SecretSeen(
                    "uid", str(next(self.versions)), True, dict(contents.data), contents.credential)
            case DeleteSecret():
                assert self.secret is not None and self.secret.ours
                self.secret = None
            case _:
                raise AssertionError(action)
        self.check()

    def run(self, dies_after: int) -> bool:
        """One operator; it dies after so many effects. True: it had nothing left to do."""
        for _ in range(12):
            planned = self.plan()
            if not planned.actions and planned.finalizer is None:
                return True
            if planned.finalizer is not None:
                if dies_after <= 0:
                    return False
                assert planned.finalizer or not self.owned(), "the finalizer goes last"
                self.finalizer = planned.finalizer
                dies_after -= 1
                continue
            assert self.deleting or self.finalizer, "the finalizer comes first"
            for action in planned.actions:
                if dies_after <= 0:
                    return False
                self.carry_out(action)
                dies_after -= 1
        raise AssertionError(f"no end: {self.plan()}")

    def owned(self) -> bool:
        return (
            OWNER in self.bindings.values() or any(owner == OWNER for owner, _ in self.passwords.values())
            or (self.quotas is not None and self.quotas[0] == OWNER) or (self.secret is not None and self.secret.ours))

    def works(self) -> bool:
        """Whether what the Secret says logs in."""
        if self.secret is None or "password" not in self.secret.data:
            return False
        return any(
            mechanism.sasl_name == self.secret.data["sasl.mechanism"] and text == self.secret.data["password"]
            for mechanism, (_, text) in self.passwords.items())

    def check(self) -> None:
        """After each effect."""
        if self.untouched and not self.deleting and not self.fixed:
            if self.works():
                self.published = True
            assert self.works() or not self.published, "a Secret with a password that does not work"
        if self.untouched and self.published and self.fixed and not self.deleting:
            assert self.passwords, "neither password works"

    def settled(self) -> None:
        """What holds when an operator has nothing left to do."""
        permitted, _ = in_force(self.resource(), POLICY)
        mine = {binding for binding, owner in self.bindings.items() if owner == OWNER}
        if self.deleting:
            assert not self.owned() and not self.finalizer
            return
        assert mine <= set(permitted) <= set(self.bindings)
        foreign = any(owner != OWNER for owner, _ in self.passwords.values())
        if not foreign and (self.secret is None or self.secret.ours):
            assert self.works()
            assert self.secret is not None
            told = self.secret.password()
            assert told is not None and told.rotate == self.rotate


def binding(name: str) -> Binding:
    return Binding(
        ResourceType.TOPIC, name, Pattern.LITERAL, Principal(f"User:{NAME}"), "*", Operation.READ, Permission.ALLOW)


STEPS = st.one_of(
    st.tuples(st.just("operator"), st.integers(0, 6)),
    st.tuples(st.just("acls"), ACLS),
    st.tuples(st.just("rotate"), st.sampled_from("123")),
    st.tuples(st.just("quota"), st.integers(0, 2)),
    st.tuples(st.just("time"), st.integers(1, 2 * OVERLAP_S)),
    st.tuples(st.just("foreign acl"), st.sampled_from(TOPICS)),
    st.tuples(st.just("secret"), st.sampled_from(["delete", "alter", "other key"])),
    st.tuples(st.just("password"), st.sampled_from(list(ScramMechanism))),
    st.tuples(st.just("no password"), st.sampled_from(list(ScramMechanism))),
)


def disturb(world: World, what: str, how: Any) -> None:
    match what:
        case "acls":
            world.acls = how
        case "rotate":
            world.rotate = how
        case "quota":
            world.quota = how
        case "time":
            world.now_ms += how * 1000
        case "foreign acl":
            world.bindings.setdefault(binding(how), "")
        case "secret" if world.secret is not None:
            world.untouched = False
            data = dict(world.secret.data)
            data["password" if how == "alter" else "bootstrap.servers"] = "x" * 43
            world.secret = None if how == "delete" else SecretSeen(
                "uid", str(next(world.versions)), True, data, world.secret.credential)
        case "password":  # an administrator's change keeps the owner, if there is one
            world.untouched = False
            world.passwords[how] = (world.passwords.get(how, ("", ""))[0], "by hand")
        case "no password":
            world.untouched = False
            world.passwords.pop(how, None)


@settings(max_examples=300)
@given(st.booleans(), st.lists(STEPS, max_size=14))
def test_whatever_happens_the_next_operator_gets_there(fixed: bool, steps: list[tuple[str, Any]]) -> None:
    world = World(fixed)
    for what, how in steps:
        if what == "operator":
            world.run(how)
        else:
            disturb(world, what, how)
    assert world.run(100)
    world.settled()
    by_hand = {key: owner for key, owner in world.bindings.items() if owner == ""}
    by_hand_passwords = {key: each for key, each in world.passwords.items() if each[0] == ""}
    world.deleting = True
    assert world.run(100)
    world.settled()
    assert world.bindings == by_hand and world.passwords == by_hand_passwords, "what is not its own stays"


@given(st.booleans(), st.lists(st.tuples(st.sampled_from("123"), st.integers(0, 5)), max_size=6))
def test_rotations_never_publish_a_password_that_does_not_work(fixed: bool, rotations: list[tuple[str, int]]) -> None:
    """Checked after each effect, also of operators that die in between."""
    world = World(fixed)
    assert world.run(100)
    assert world.works()
    for rotate, dies_after in rotations:
        world.rotate = rotate
        world.run(dies_after)
    assert world.run(100)
    assert world.works()
    world.now_ms += OVERLAP_S * 1000
    assert world.run(100)
    assert world.works() and len(world.passwords) == 1, "the former password has ended"

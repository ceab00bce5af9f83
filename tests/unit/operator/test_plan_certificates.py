"""Certificates in a world with virtual time: processes take over what their Secret holds late, the members of etcd read
their authorities only when they start, and everybody can connect to everybody at every moment."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from hapax_operator.plan_certificates import (
    AUTHORITIES,
    CLIENTS,
    SERVICES,
    AddIssuer,
    EtcdSeen,
    Forget,
    Holder,
    HolderSeen,
    Issuer,
    KeepTrusting,
    Leaf,
    LeafSeen,
    MarkTrusted,
    MarkUnused,
    Plan,
    RollEtcd,
    Seen,
    SetUpStore,
    Write,
    due_at,
    plan,
)

DAY = 86_400
OVERLAP = {SERVICES: 900, CLIENTS: 30 * DAY}
LEAF_S, ISSUER_S = 90 * DAY, 1825 * DAY


def leaf(name: str, authority: str = SERVICES) -> Leaf:
    return Leaf(name, authority, f"CN={name}", frozenset({f"host-{name}"}), "both")


ETCD = Holder("etcd", (leaf("etcd"), leaf("root")), first=True)
ADMIN = Holder("admin", (leaf("user", CLIENTS),), user="admin", first=True)
BROKER = Holder("broker", (leaf("0"), leaf("0-public", CLIENTS), leaf("1"), leaf("1-public", CLIENTS)))
PID = Holder("pid", (leaf("pid"), leaf("pid-public", CLIENTS)))
WANTED = [ETCD, ADMIN, BROKER, PID]


@dataclass
class Loaded:
    """What a process or a client has taken over of its Secret."""

    holder: HolderSeen
    next_at: int = 0


class World:
    """Applies plans as the keeper does. Every process takes over a change within the overlap."""

    def __init__(self, seed: int, wanted: list[Holder] = WANTED, now: int = 1_800_000_000) -> None:
        self.random = random.Random(seed)
        self.now = now
        self.wanted = wanted
        self.seen = Seen(etcd=EtcdSeen(None, True))
        self.loaded: dict[str, Loaded] = {}
        self.member: frozenset[str] = frozenset()
        """What the members of etcd trust."""
        self.serials = itertools.count(1)
        self.made: list[str] = []
        self.plans: list[Plan] = []

    # --- the keeper

    def step(self) -> Plan:
        planned = plan(self.wanted, self.seen, OVERLAP, self.now)
        self.plans.append(planned)
        for action in planned.issuers:
            self.issuer(action)
        for write in planned.writes:
            self.write(write)
        if planned.roll is not None:
            self.seen = replace(self.seen, etcd=EtcdSeen(planned.roll.trusted, False))
        if planned.store is not None:
            assert all(each.name in self.seen.holders for each in self.wanted if each.first)
            self.seen = replace(self.seen, store_ready=True, users_stored=True)
        return planned

    def settle(self) -> Plan:
        for _ in range(50):
            planned = self.step()
            if planned.empty:
                return planned
        raise AssertionError(f"no end: {planned}")

    def issuer(self, action: object) -> None:
        issuers = {authority: list(known) for authority, known in self.seen.issuers.items()}
        known = issuers.setdefault(action.authority, [])  # type: ignore[attr-defined]
        match action:
            case AddIssuer(authority, trusted, id):
                name = id or f"{authority}-{next(self.serials)}"
                self.made.append(name)
                known.append(Issuer(name, self.now, self.now + ISSUER_S, 0 if trusted else None))
            case KeepTrusting(_, id):
                known.append(Issuer(id, self.now - DAY, self.now + ISSUER_S, self.now, signs=False))
            case MarkTrusted(_, id):
                known[:] = [each._replace(trusted_at=self.now) if each.id == id else each for each in known]
            case MarkUnused(_, id, unused):
                known[:] = [each._replace(unused_at=self.now if unused else None) if each.id == id else each
                            for each in known]
            case Forget(_, id):
                known[:] = [each for each in known if each.id != id]
        self.seen = replace(self.seen, issuers=issuers)

    def write(self, write: Write) -> None:
        former = self.seen.holders.get(write.holder.name, HolderSeen())
        leaves = dict(former.leaves)
        for each in write.holder.leaves:
            if each.name in write.issue:
                leaves[each.name] = self.issue(each)
        trusted = {each: frozenset(issuer.id for issuer in self.seen.issuers.get(each, ())) for each in AUTHORITIES}
        holder = HolderSeen(leaves, trusted)
        self.seen = replace(self.seen, holders={**self.seen.holders, write.holder.name: holder})
        if write.holder.name not in self.loaded:
            self.loaded[write.holder.name] = Loaded(holder)
            if write.holder.name == "etcd":
                self.member = trusted[SERVICES]
        elif not self.loaded[write.holder.name].next_at:
            self.loaded[write.holder.name].next_at = self.now + self.random.randrange(1, OVERLAP[SERVICES] - 1)

    def issue(self, each: Leaf) -> LeafSeen:
        able = [known for known in self.seen.issuers[each.authority] if known.signs and known.trusted_at is not None
                and known.trusted_at + OVERLAP[each.authority] <= self.now]
        assert able, f"{each} is issued by what is not trusted yet"
        if not able[-1].since <= self.now < able[-1].until:  # there is no trust in it that could be kept
            able = [known for known in self.seen.issuers[each.authority] if known.signs]
        return LeafSeen(able[-1].id, each.subject, each.names, each.use, self.now, self.now + LEAF_S,
                        next(self.serials))

    # --- the world

    def later(self, seconds: int) -> None:
        self.now += seconds
        for name, loaded in self.loaded.items():
            if loaded.next_at and loaded.next_at <= self.now:
                loaded.holder, loaded.next_at = self.seen.holders[name], 0
        etcd = self.seen.etcd
        if etcd is not None and not etcd.settled:  # the pods that start take the Secret as it is
            self.member = self.seen.holders["etcd"].trusted[SERVICES]
            self.seen = replace(self.seen, etcd=EtcdSeen(etcd.trusted, True))

    def check(self) -> None:
        """Everybody trusts what everybody shows."""
        shown = {each.issuer for loaded in self.loaded.values() for name, each in loaded.holder.leaves.items()
                 if self.authority(name) == SERVICES}
        for name, loaded in self.loaded.items():
            assert shown <= loaded.holder.trusted[SERVICES], f"{name} does not trust {shown}"
            for each in loaded.holder.leaves.values():
                assert self.now < each.until, f"{name}: an expired certificate"
        assert shown <= self.member, f"etcd does not trust {shown}"
        public = {each.issuer for loaded in self.loaded.values() for name, each in loaded.holder.leaves.items()
                  if self.authority(name) == CLIENTS}
        for loaded in self.loaded.values():
            assert public <= loaded.holder.trusted[CLIENTS]

    def authority(self, name: str) -> str:
        return next(each.authority for holder in self.wanted for each in holder.leaves if each.name == name)

    def live(self, seconds: int, pace: int) -> None:
        end = self.now + seconds
        while self.now < end:
            self.settle() if self.random.random() < 0.8 else self.step()
            self.check()
            self.later(self.random.randrange(1, pace))
            self.check()

    def signing(self, authority: str) -> set[str]:
        return {each.issuer for holder in self.seen.holders.values() for name, each in holder.leaves.items()
                if self.authority(name) == authority}


@pytest.fixture
def world() -> Iterator[World]:
    made = World(1)
    made.settle()
    made.check()
    yield made


def test_etcd_and_the_users_come_first_then_the_store_is_closed_then_the_others() -> None:
    world = World(1)
    assert {type(each) for each in world.step().issuers} == {AddIssuer}
    first = world.step()
    assert [each.holder.name for each in first.writes] == ["etcd", "admin"]
    assert first.store is None and set(first.missing) == {"broker", "pid"}
    second = world.step()
    assert second.store == SetUpStore() and not second.writes
    assert [each.holder.name for each in world.step().writes] == ["broker", "pid"]
    assert world.step().empty


def test_nothing_is_written_twice_and_the_next_look_is_in_time(world: World) -> None:
    planned = world.step()
    assert planned.empty and 0 < planned.wait_s <= 3600
    issued = world.now
    world.later(due_at(issued, issued + LEAF_S) - issued - 100)
    assert world.step().wait_s == 100


def test_a_leaf_is_renewed_with_a_third_of_its_time_left(world: World) -> None:
    world.later(LEAF_S * 2 // 3 - 1)
    assert world.step().empty
    world.later(1)
    (admin, *_) = [each for each in world.step().writes if each.holder == ADMIN]
    assert admin.issue == ("user",)


def test_what_a_clock_that_was_ahead_has_made_is_made_again(world: World) -> None:
    """No process takes a certificate, or what an authority has signed, before its time."""
    world.later(-2 * DAY)
    made = len(world.made)
    world.settle()
    assert len(world.made) == made + 2, "one new issuer for each authority, and no more"
    for holder in world.seen.holders.values():
        for each in holder.leaves.values():
            assert each.since <= world.now and each.issuer in world.made[made:]


@pytest.mark.parametrize("seed", range(8))
def test_everybody_can_connect_for_ten_years(seed: int) -> None:
    world = World(seed)
    world.settle()
    world.live(10 * 365 * DAY, 5 * DAY)
    assert len({each for each in world.made if each.startswith(SERVICES)}) >= 2
    assert len({each for each in world.made if each.startswith(CLIENTS)}) >= 2


@pytest.mark.parametrize("authority", AUTHORITIES)
@pytest.mark.parametrize("seed", range(8))
def test_a_new_issuer_is_trusted_before_it_signs_and_the_old_one_leaves_last(seed: int, authority: str) -> None:
    world = World(seed)
    world.settle()
    (old,) = world.signing(authority)
    step = OVERLAP[authority] // 30
    world.seen = replace(world.seen, asked=frozenset({authority}))
    world.step()
    world.seen = replace(world.seen, asked=frozenset())
    new = world.made[-1]
    world.settle()
    began = world.now
    assert all(each.trusted[authority] == {old, new} for each in world.seen.holders.values())
    assert world.signing(authority) == {old}
    while world.signing(authority) == {old}:
        world.live(step, step // 2)
    assert world.now - began >= OVERLAP[authority]
    assert world.signing(authority) == {new}
    began = world.now
    while any(old in each.trusted[authority] for each in world.seen.holders.values()):
        assert world.now - began <= OVERLAP[authority] + 3600 + 5 * step
        world.live(step, step // 2)
    assert world.now - began >= OVERLAP[authority] - 2 * step
    world.live(3600, 300)
    if authority == SERVICES:
        assert world.member == {new}, "etcd still trusts the old one"
    assert [each.id for each in world.seen.issuers[authority]] == [new]


def test_etcd_starts_again_for_a_new_issuer_and_until_then_it_signs_nothing(world: World) -> None:
    world.seen = replace(world.seen, asked=frozenset({SERVICES}))
    world.step()
    world.seen = replace(world.seen, asked=frozenset())
    rolled = [planned.roll for planned in (world.step(), world.step()) if planned.roll is not None]
    assert rolled == [RollEtcd(frozenset(each.id for each in world.seen.issuers[SERVICES]))]
    world.now += 30 * DAY  # the members do not come back
    world.settle()
    assert world.seen.issuers[SERVICES][-1].trusted_at is None


@pytest.mark.parametrize("authority", AUTHORITIES)
def test_a_holder_that_cannot_be_written_holds_a_new_issuer_back(world: World, authority: str) -> None:
    world.seen = replace(world.seen, asked=frozenset({authority}))
    world.step()
    world.seen = replace(world.seen, asked=frozenset())
    pid = world.seen.holders["pid"]
    for _ in range(5):
        world.step()
        world.seen = replace(world.seen, holders={**world.seen.holders, "pid": pid})
        world.later(40 * DAY // 5)
        assert world.seen.issuers[authority][-1].trusted_at is None
    world.settle()
    world.later(1)
    world.settle()
    assert world.seen.issuers[authority][-1].trusted_at in (world.now, world.now - 1)


def test_a_lost_secret_of_the_issuers_breaks_no_connection(world: World) -> None:
    old = {each: world.signing(each) for each in AUTHORITIES}
    world.seen = replace(world.seen, issuers={}, store_ready=False, users_stored=False)
    world.settle()
    for each in AUTHORITIES:
        assert old[each] < {issuer.id for issuer in world.seen.issuers[each]}
        assert world.signing(each) == old[each], "what nobody trusts yet has signed"
    world.live(45 * DAY, DAY // 2)
    for each in AUTHORITIES:
        assert not world.signing(each) & old[each]


def test_a_holder_that_was_deleted_comes_back_and_a_longer_one_gets_what_it_lacks(world: World) -> None:
    world.seen = replace(world.seen, holders={
        name: each for name, each in world.seen.holders.items() if name != "pid"})
    assert [each.holder for each in world.step().writes] == [PID]
    longer = replace_leaves(BROKER, (*BROKER.leaves, leaf("2")))
    world.wanted = [longer if each == BROKER else each for each in WANTED]
    (write,) = world.step().writes
    assert write == Write(longer, ("2",))


def test_other_names_another_use_or_another_user_are_another_certificate(world: World) -> None:
    for changed in (
        leaf("pid")._replace(names=frozenset({"host-pid", "host-new"})), leaf("pid")._replace(subject="CN=other"),
    ):
        world.wanted = [replace_leaves(PID, (changed, PID.leaves[1])) if each == PID else each for each in WANTED]
        (write,) = plan(world.wanted, world.seen, OVERLAP, world.now).writes
        assert write.issue == ("pid",)


def test_settings_or_a_password_that_do_not_fit_are_written_without_a_new_certificate(world: World) -> None:
    admin = replace(world.seen.holders["admin"], complete=False)
    world.seen = replace(world.seen, holders={**world.seen.holders, "admin": admin})
    (write,) = world.step().writes
    assert write == Write(ADMIN, ())


def test_passwords_that_the_store_does_not_have_are_stored(world: World) -> None:
    world.seen = replace(world.seen, users_stored=False)
    assert world.step().store == SetUpStore()


# --- certificates of another system -------------------------------------------------------------------------------


def offers(world: World, issuers: dict[str, str]) -> dict[tuple[str, str], LeafSeen]:
    return {
        (holder.name, each.name): LeafSeen(
            issuers[each.authority], each.subject, each.names, each.use, world.now, world.now + LEAF_S,
            next(world.serials))
        for holder in world.wanted for each in holder.leaves}


class Offered(World):
    """cert-manager issues."""

    def issue(self, each: Leaf) -> LeafSeen:
        assert self.seen.offers is not None
        return next(leaf for (_, name), leaf in self.seen.offers.items() if name == each.name)


def test_what_another_system_issues_is_taken_when_all_trust_its_issuer() -> None:
    world = Offered(3)
    world.seen = replace(world.seen, offers={})
    assert set(world.settle().missing) == {each.name for each in WANTED}
    world.seen = replace(world.seen, offers=offers(world, {SERVICES: "s1", CLIENTS: "c1"}))
    assert world.settle().missing == ()
    world.check()
    world.later(60 * DAY)
    world.seen = replace(world.seen, offers=offers(world, {SERVICES: "s1", CLIENTS: "c1"}))
    (*writes,) = world.step().writes
    assert len(writes) == 4, "a renewed certificate of a trusted issuer is taken at once"
    world.settle()
    world.later(3600)
    world.seen = replace(world.seen, offers=offers(world, {SERVICES: "s2", CLIENTS: "c2"}))
    world.settle()
    assert world.signing(SERVICES) == {"s1"} and world.signing(CLIENTS) == {"c1"}
    world.live(31 * DAY, DAY // 4)
    assert world.signing(SERVICES) == {"s2"} and world.signing(CLIENTS) == {"c2"}
    world.live(31 * DAY, DAY // 4)
    assert [each.id for each in world.seen.issuers[SERVICES]] == ["s2"]


def replace_leaves(holder: Holder, leaves: tuple[Leaf, ...]) -> Holder:
    return holder._replace(leaves=leaves)

"""Which certificates are issued, trusted, renewed and forgotten, and in which order. Pure.

A *holder* is a Secret that pods mount: certificates and keys (*leaves*), and the authorities that its processes trust.
There are two authorities: one of the cluster's own processes, and one of what clients see. An authority has one or more
*issuers*, which are certificates with a key of their own. Three rules keep every connection possible at every moment:

1. An issuer signs only after every holder has trusted it for the authority's *overlap*: the time that files need to
   reach the pods, or for clients outside the time that they have to take the new certificate.
2. An issuer is forgotten only after no leaf has been of it for the overlap.
3. The first issuer signs at once, since nothing runs yet.

The members of etcd read their authorities only when they start. So the workload of etcd is rolled when the issuers
change, and counts as trusting an issuer when that is done.

Holders that are `first` (those of etcd and of the users) are made before the others. The others follow once the users
and rights of etcd are set up, so that no process can use the store before it is closed: without their Secrets, pods
wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

SERVICES: Final = "services"
"""The authority of the cluster's own processes and of etcd."""
CLIENTS: Final = "clients"
"""The authority of what clients see, and of clients' own certificates."""
AUTHORITIES: Final = (SERVICES, CLIENTS)
Use = Literal["server", "client", "both"]
_LOOK_S: Final = 3600
"""Longest time between two looks, in seconds."""


class Leaf(NamedTuple):
    """A certificate that a holder shall have."""

    name: str
    """Its files are NAME.crt and NAME.key."""
    authority: str
    subject: str
    """RFC 4514."""
    names: frozenset[str]
    """Host names, IP addresses and URIs."""
    use: Use = "both"
    signs: bool = False
    """Whether it is an authority of its own, for certificates of this use."""


class Holder(NamedTuple):
    """A Secret as it shall be."""

    name: str
    leaves: tuple[Leaf, ...] = ()
    user: str = ""
    """The user whose password and client settings it holds; empty: none."""
    first: bool = False
    tokens: bool = False
    """Whether it holds the keys with which the API server signs the tokens of service accounts."""


class LeafSeen(NamedTuple):
    """A certificate, whose key is with it. Times are Unix seconds."""

    issuer: str
    """Id of the issuer's key."""
    subject: str
    names: frozenset[str]
    use: Use
    since: int
    until: int
    serial: int
    signs: bool = False


@dataclass(frozen=True, slots=True)
class HolderSeen:
    leaves: Mapping[str, LeafSeen] = field(default_factory=dict)
    trusted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Authority -> its issuers in the file of trusted ones."""
    complete: bool = True
    """Whether the rest is as it shall be: of a user, a password and settings that fit all else."""


class Issuer(NamedTuple):
    """Times are Unix seconds."""

    id: str
    since: int
    until: int
    trusted_at: int | None = None
    """Since when every holder trusts it; None: not all do."""
    unused_at: int | None = None
    """Since when no leaf is of it; None: it is in use, or has not been used yet."""
    signs: bool = True
    """False: it is only trusted, because its key is lost."""


@dataclass(frozen=True, slots=True)
class EtcdSeen:
    trusted: frozenset[str] | None
    """The issuers that the members' pods are marked with; None: they bear no mark yet, and have what their Secret had
    when they started."""
    settled: bool
    """Whether all members run as their workload describes them."""


@dataclass(frozen=True, slots=True)
class Seen:
    issuers: Mapping[str, Sequence[Issuer]] = field(default_factory=dict)
    """Authority -> its issuers, the oldest first."""
    holders: Mapping[str, HolderSeen] = field(default_factory=dict)
    offers: Mapping[tuple[str, str], LeafSeen] | None = None
    """(holder, leaf) -> what another system (cert-manager) has issued for it; None: this operator issues."""
    etcd: EtcdSeen | None = None
    """None: etcd is none of the chart's."""
    store_ready: bool = False
    """Whether etcd has had its users and rights once."""
    users_stored: bool = False
    """Whether the passwords in the holders are those in the store."""
    asked: frozenset[str] = frozenset()
    """Authorities for which a person has asked for a new issuer."""


class AddIssuer(NamedTuple):
    authority: str
    trusted: bool
    """Whether it may sign at once."""
    id: str = ""
    """Of an issuer that another system has; empty: make one."""


class KeepTrusting(NamedTuple):
    """An issuer that holders trust, and that is not known any more, because the Secret of the issuers was lost."""

    authority: str
    id: str


class MarkTrusted(NamedTuple):
    authority: str
    id: str


class MarkUnused(NamedTuple):
    authority: str
    id: str
    unused: bool


class Forget(NamedTuple):
    authority: str
    id: str


IssuerAction = AddIssuer | KeepTrusting | MarkTrusted | MarkUnused | Forget


class Write(NamedTuple):
    """Makes the holder what it shall be."""

    holder: Holder
    issue: tuple[str, ...]
    """Names of the leaves that get a new certificate."""


class RollEtcd(NamedTuple):
    trusted: frozenset[str]


class SetUpStore(NamedTuple):
    """etcd's users and rights, and the passwords of the holders' users."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`issuers` are one write. The rest is planned when there is nothing to write of these."""

    issuers: tuple[IssuerAction, ...] = ()
    writes: tuple[Write, ...] = ()
    roll: RollEtcd | None = None
    store: SetUpStore | None = None
    wait_s: int = _LOOK_S
    """When to look again, if nothing changes."""
    missing: tuple[str, ...] = ()
    """Holders that cannot be made yet."""

    @property
    def empty(self) -> bool:
        return not (self.issuers or self.writes) and self.roll is None and self.store is None


def plan(wanted: Sequence[Holder], seen: Seen, overlap_s: Mapping[str, int], now: int) -> Plan:
    """`overlap_s`: of each authority. `now`: Unix seconds."""
    offered = _offered(wanted, seen)
    actions = tuple(
        action for authority in _authorities(wanted)
        for action in _issuers(authority, seen, offered.get(authority, []), overlap_s[authority], now))
    if actions:
        return Plan(actions)
    signers = {each: signer(seen.issuers.get(each, ()), overlap_s[each], now) for each in AUTHORITIES}
    trusted = {each: frozenset(issuer.id for issuer in seen.issuers.get(each, ())) for each in AUTHORITIES}
    writes, missing = [], []
    for holder in wanted:
        present = seen.holders.get(holder.name)
        if present is None and not holder.first and not seen.store_ready:
            missing.append(holder.name)
            continue
        due = tuple(_due(holder, present, seen, signers, overlap_s, now))
        if any(leaf.name not in due and (present is None or leaf.name not in present.leaves) for leaf in holder.leaves):
            missing.append(holder.name)
            continue
        trusts = present is not None and all(
            present.trusted.get(each, frozenset()) == trusted[each] for each in AUTHORITIES)
        if due or present is None or not trusts or not present.complete:
            writes.append(Write(holder, due))
    roll = None if writes else _roll(seen, trusted[SERVICES])
    first = all(holder.name in seen.holders for holder in wanted if holder.first)
    store = SetUpStore() if first and not writes and not (seen.store_ready and seen.users_stored) else None
    moments = _moments(wanted, seen, overlap_s)
    wait_s = min([_LOOK_S, *(max(1, moment - now) for moment in moments if moment > now)])
    return Plan((), tuple(writes), roll, store, wait_s, tuple(missing))


def signer(issuers: Sequence[Issuer], overlap_s: int, now: int) -> Issuer | None:
    """The newest that all have trusted for long enough. If that one has expired, and so all trust in it, or is not
    valid yet, because a clock was ahead when it was made: the newest."""
    able = [each for each in issuers if each.signs]
    ready = [each for each in able if usable(each, overlap_s, now)]
    found = ready[-1] if ready else None
    return able[-1] if found is not None and not found.since <= now < found.until else found


def usable(issuer: Issuer, overlap_s: int, now: int) -> bool:
    return issuer.trusted_at is not None and issuer.trusted_at + overlap_s <= now


def due_at(since: int, until: int) -> int:
    """When a certificate is replaced: with a third of its time left."""
    return until - (until - since) // 3


# --- issuers ------------------------------------------------------------------------------------------------------


def _authorities(wanted: Iterable[Holder]) -> list[str]:
    used = {leaf.authority for holder in wanted for leaf in holder.leaves}
    return [each for each in AUTHORITIES if each in used]


def _offered(wanted: Iterable[Holder], seen: Seen) -> dict[str, list[str]]:
    """Authority -> the issuers of what another system has issued."""
    found: dict[str, dict[str, None]] = {}
    for holder in wanted:
        for leaf in holder.leaves:
            offer = (seen.offers or {}).get((holder.name, leaf.name))
            if offer is not None:
                found.setdefault(leaf.authority, {})[offer.issuer] = None
    return {authority: list(issuers) for authority, issuers in found.items()}


def _issuers(
    authority: str, seen: Seen, offered: Iterable[str], overlap_s: int, now: int
) -> Iterator[IssuerAction]:
    issuers = seen.issuers.get(authority, ())
    known = sorted({each for holder in seen.holders.values() for each in holder.trusted.get(authority, ())})
    if not issuers:
        yield from (KeepTrusting(authority, each) for each in known if each not in offered)
        if seen.offers is None:
            yield AddIssuer(authority, trusted=not known)
            return
    for each in offered:
        if each not in {issuer.id for issuer in issuers}:
            # With the first holders, there is nothing yet that could not trust it. So it is with one that all trust.
            yield AddIssuer(authority, trusted=not issuers and (not known or each in known), id=each)
    signing = signer(issuers, overlap_s, now)
    newest = next((each for each in reversed(issuers) if each.signs), None)
    if seen.offers is None and (newest is None or (newest == signing and (
        authority in seen.asked or not newest.since <= now < due_at(newest.since, newest.until)
    ))):
        yield AddIssuer(authority, trusted=False)
    used = {leaf.issuer for holder in seen.holders.values() for leaf in holder.leaves.values()}
    last = max((index for index, each in enumerate(issuers) if each.id in used or each == signing), default=0)
    for index, issuer in enumerate(issuers):
        if issuer.trusted_at is None:
            if _all_trust(authority, issuer, seen):
                yield MarkTrusted(authority, issuer.id)
        elif issuer.id in used or issuer == signing or index > last:
            if issuer.unused_at is not None:
                yield MarkUnused(authority, issuer.id, False)
        elif issuer.unused_at is None:
            yield MarkUnused(authority, issuer.id, True)
        elif issuer.unused_at + overlap_s <= now:
            yield Forget(authority, issuer.id)


def _all_trust(authority: str, issuer: Issuer, seen: Seen) -> bool:
    if not all(issuer.id in holder.trusted.get(authority, ()) for holder in seen.holders.values()):
        return False
    if authority != SERVICES or seen.etcd is None:
        return True
    return seen.etcd.settled and (seen.etcd.trusted is not None and issuer.id in seen.etcd.trusted)


# --- holders ------------------------------------------------------------------------------------------------------


def _due(
    holder: Holder, present: HolderSeen | None, seen: Seen, signers: Mapping[str, Issuer | None],
    overlap_s: Mapping[str, int], now: int,
) -> Iterator[str]:
    """Names of the leaves that can and must be replaced."""
    for leaf in holder.leaves:
        found = None if present is None else present.leaves.get(leaf.name)
        if seen.offers is None:
            signing = signers[leaf.authority]
            if signing is not None and (
                found is None or found.issuer != signing.id or not fits(found, leaf)
                or not found.since <= now < due_at(found.since, found.until)
            ):
                yield leaf.name
            continue
        offer = seen.offers.get((holder.name, leaf.name))
        if offer is None or offer == found or not fits(offer, leaf):
            continue
        issuer = next((each for each in seen.issuers.get(leaf.authority, ()) if each.id == offer.issuer), None)
        if issuer is not None and usable(issuer, overlap_s[leaf.authority], now):
            yield leaf.name


def fits(found: LeafSeen, leaf: Leaf) -> bool:
    return (
        found.subject == leaf.subject and found.names >= leaf.names and found.use in (leaf.use, "both")
        and found.signs == leaf.signs)


def _roll(seen: Seen, trusted: frozenset[str]) -> RollEtcd | None:
    etcd = seen.etcd
    if etcd is None or not etcd.settled:
        return None
    if etcd.trusted == trusted or (etcd.trusted is None and len(trusted) == 1):
        return None
    return RollEtcd(trusted)


def _moments(wanted: Sequence[Holder], seen: Seen, overlap_s: Mapping[str, int]) -> Iterator[int]:
    for authority, issuers in seen.issuers.items():
        for issuer in issuers:
            yield due_at(issuer.since, issuer.until)
            for moment in (issuer.trusted_at, issuer.unused_at):
                if moment is not None:
                    yield moment + overlap_s[authority]
    for holder in wanted:
        present = seen.holders.get(holder.name)
        if present is not None:
            yield from (due_at(leaf.since, leaf.until) for leaf in present.leaves.values())

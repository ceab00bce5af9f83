"""Plans one User: its ACLs, quotas, password or certificate, and Secret. Pure.

- Nothing is touched that this resource did not make: each ACL, password and quota in the cluster has an owner, and the
  Secret an owner reference. What an administrator made by hand is neither adopted nor removed. It gets a condition.
- The oldest resource of a user counts. One that is forbidden by the policy of namespaces, or names a reserved
  principal, does not count and has nothing in force: what it had is removed.
- The rights in force are never more than described: permissions that the policy forbids are left out, and where it
  forbids a denial, no permission is in force.
- Denials come before permissions and go after them, and all rights come before the password.
- A Secret never has a password that does not work for longer than it takes to write two objects. A rotation sets the
  new password for the other mechanism, so that the former one goes on for `overlapSeconds`. Where the mechanism is
  pinned, the Secret is written first: if the operator dies in between, clients go on with the former password.
- The finalizer is there while the resource has something in the cluster, except in the operator's own namespace: that
  takes the operator with it when it is deleted, and would never end. There, what is left is removed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hapax.core.access.bindings import Binding
from hapax.core.access.resources import Permission
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax_operator.access_file import Listeners
from hapax_operator.conditions import Condition, Note, conflict, from_millis, outside
from hapax_operator.namespace_policy import NamespacePolicy
from hapax_operator.user_resource import SCRAM, TLS, USER_FINALIZER, UserResource
from hapax_operator.user_secret import (
    Certificate,
    Contents,
    Password,
    SecretSeen,
    with_certificate,
    with_password,
    with_token,
)

_LONGEST_COMMON_NAME: Final = 64
"""Characters (X.520)."""
_NO_LISTENERS: Final = Listeners()
_RENEW: Final = 3
"""A certificate is replaced when a third of its time is left."""
_SKEW_MS: Final = 300_000
"""A certificate is valid from so much earlier on than it says here (`Authority.issue`)."""
_DESCRIPTION: Final = (
    "principal", "secret", "acls", "mechanism", "passwordSince", "formerPasswordUntil", "certificateUntil", "rotated")


# --- the user as it is ------------------------------------------------------------------------------------------------


class PasswordSeen(NamedTuple):
    """A password in the cluster."""

    owner: str
    fits: bool = False
    """Whether it is the one in the Secret. (Only for the Secret's mechanism.)"""


class QuotasSeen(NamedTuple):
    owner: str
    values: Mapping[str, float]


class AuthoritySeen(NamedTuple):
    """The operator's authority for certificates of clients."""

    digest: str
    until_ms: int
    """The end of its own certificate: what it signs is not valid for longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSeen:
    bindings: Mapping[Binding, str] = field(default_factory=dict)
    """Every binding of the principal, and every binding that this resource owns -> its owner."""
    passwords: Mapping[tuple[str, ScramMechanism], PasswordSeen] = field(default_factory=dict)
    """By user and mechanism: those of this user, and those that this resource owns."""
    quotas: Mapping[str, QuotasSeen] = field(default_factory=dict)
    """By user: likewise."""
    default_quotas: Mapping[str, float] = field(default_factory=dict)
    """Those of users who have none of their own."""
    secret: SecretSeen | None = None
    secret_refused: str = ""
    """Why the API server does not let the operator see the Secret; empty: it does."""
    authorises: bool = True
    """Whether the cluster has an authoriser: without one, ACLs do nothing."""
    listeners: Listeners = _NO_LISTENERS
    ca: str | None = ""
    """PEM of the listeners' authority; empty: clients trust it anyway; None: it cannot be read now."""
    authority: AuthoritySeen | None = None
    at_home: bool = False
    """Whether the resource is in the operator's own namespace."""


# --- what to do -------------------------------------------------------------------------------------------------------


class SetBindings(NamedTuple):
    add: tuple[Binding, ...]
    """Denials first."""
    remove: tuple[Binding, ...]
    """Denials last."""


class SetQuotas(NamedTuple):
    user: str
    changes: Mapping[str, float | None]
    """Kafka's names -> values; None: removed."""


class SetPassword(NamedTuple):
    user: str
    mechanism: ScramMechanism
    password: str

    def __repr__(self) -> str:
        return f"SetPassword({self.user!r}, {self.mechanism.sasl_name})"


class RemovePassword(NamedTuple):
    user: str
    mechanism: ScramMechanism


class WriteSecret(NamedTuple):
    contents: Contents
    over: SecretSeen | None
    """The version to change; None: it is made."""


class Issue(NamedTuple):
    """Have a certificate signed, and write it to the Secret."""

    name: str
    days: int
    rotate: str
    over: SecretSeen | None


class DeleteSecret(NamedTuple):
    uid: str


Action = SetBindings | SetQuotas | SetPassword | RemovePassword | WriteSecret | Issue | DeleteSecret


@dataclass(frozen=True, slots=True)
class UserPlan:
    """Actions are carried out in order; then a new plan is made, until it has none."""

    actions: tuple[Action, ...] = ()
    finalizer: bool | None = None
    """True: add it, before any action; False: remove it, after them; None: leave it."""
    conditions: tuple[Condition, ...] = ()
    status: Mapping[str, Any] | None = None
    """As of a TopicPlan."""
    notes: tuple[Note, ...] = ()
    again_at_ms: int | None = None
    """Wall-clock time at which the next plan differs by time alone."""


class _Login(NamedTuple):
    """What is to be done about the credential."""

    actions: tuple[Action, ...]
    condition: Condition
    status: Mapping[str, Any] = {}
    again_at_ms: int | None = None
    notes: tuple[Note, ...] = ()


def owner_of_user(claimants: Iterable[UserResource], policy: NamespacePolicy) -> UserResource | None:
    """The resource that counts."""
    return min(
        (each for each in claimants if not forbidden(each, policy)), key=lambda each: each.meta.age, default=None)


def forbidden(resource: UserResource, policy: NamespacePolicy) -> str:
    """Why the resource may not be; empty: it may."""
    namespace = resource.meta.ref.namespace
    if policy.is_reserved(resource.principal):
        return f"{resource.principal} is a super user or one of the cluster's nodes"
    if resource.login in (SCRAM, TLS) and not policy.owns_user(namespace, resource.name):
        return f"namespace {namespace} may not own the user {resource.name}"
    if resource.quota_user not in (resource.name, f"CN={resource.name}") and not policy.owns_user(
        namespace, resource.quota_user
    ):
        # The cluster's rules for certificates may lead from a name of the namespace to one of another.
        return f"namespace {namespace} may not own {resource.principal}, which a certificate of {resource.name} is"
    return ""


def plan_user(
    resource: UserResource, claimants: Iterable[UserResource], seen: UserSeen, policy: NamespacePolicy, now_ms: int,
    fresh: str,
) -> UserPlan:
    """`claimants`: all resources of the user or its principal, with this one. `fresh`: a password never used before."""
    if resource.meta.deleting:
        return _without(resource, seen, (), None)
    refused = forbidden(resource, policy)
    if refused:
        conditions, notes = outside(resource.status, refused)
        return _without(resource, seen, conditions, dict.fromkeys(_DESCRIPTION), notes)
    first = owner_of_user(claimants, policy)
    assert first is not None
    if first.meta.uid != resource.meta.uid:
        conditions, notes = conflict(
            resource.status, f"user {resource.name} is described by the older resource {first.meta.ref}")
        return _without(resource, seen, conditions, dict.fromkeys(_DESCRIPTION), notes)
    return _planned(resource, seen, policy, now_ms, fresh)


def plan_orphan(owner: str, seen: UserSeen) -> tuple[Action, ...]:
    """Removes what a resource that is gone has left in the cluster."""
    return _removals(owner, seen)


def _removals(owner: str, seen: UserSeen) -> tuple[Action, ...]:
    """Of everything that the resource owns in the cluster: first what lets it in."""
    actions: list[Action] = [
        RemovePassword(*key) for key, each in sorted(seen.passwords.items()) if each.owner == owner]
    gone = [binding for binding, each in seen.bindings.items() if each == owner]
    if gone:
        actions.append(SetBindings((), _denials_last(gone)))
    actions += [
        SetQuotas(name, dict.fromkeys(each.values)) for name, each in seen.quotas.items() if each.owner == owner]
    return tuple(actions)


def _without(
    resource: UserResource, seen: UserSeen, conditions: tuple[Condition, ...], status: Mapping[str, Any] | None,
    notes: tuple[Note, ...] = (),
) -> UserPlan:
    actions = _removals(resource.owner, seen)
    if seen.secret is not None and seen.secret.ours:
        actions = (*actions, DeleteSecret(seen.secret.uid))
    finalizer = False if USER_FINALIZER in resource.meta.finalizers and not actions else None
    return UserPlan(actions, finalizer, conditions, status, () if actions else notes)


def _planned(
    resource: UserResource, seen: UserSeen, policy: NamespacePolicy, now_ms: int, fresh: str
) -> UserPlan:
    rights, rights_told, acls = _rights(resource, seen, policy)
    quotas, quotas_told = _quotas(resource, seen, policy)
    login = _login(resource, seen, now_ms, fresh)
    conditions = [login.condition]
    if rights_told is not None:
        conditions.append(rights_told)
    if quotas_told is not None:
        conditions.append(quotas_told)
    faults = [each for each in conditions if each.status != "True"]
    if faults:
        why = "; ".join(each.message for each in faults)
        ready = Condition("Ready", "False", faults[0].reason, why)
    else:
        ready = Condition("Ready", "True", "InForce", f"{resource.principal} can log in, with its ACLs and quotas")
    actions = (*rights, *quotas, *login.actions)
    if resource.meta.paused:
        actions = ()
        conditions.append(Condition(
            "Paused", "True", "Annotated", "the annotation hapax.dev/pause is set, so nothing is changed"))
    status = {**dict.fromkeys(_DESCRIPTION), "principal": resource.principal, "acls": acls, **login.status}
    has = USER_FINALIZER in resource.meta.finalizers
    finalizer = (False if has else None) if seen.at_home else True if actions and not has else None
    return UserPlan(
        actions, finalizer, (ready, *conditions), status,
        () if resource.meta.paused else login.notes, login.again_at_ms)


# --- what it may do ---------------------------------------------------------------------------------------------------


def in_force(resource: UserResource, policy: NamespacePolicy) -> tuple[tuple[Binding, ...], tuple[Binding, ...]]:
    """The bindings that the policy permits, and those that it does not."""
    namespace = resource.meta.ref.namespace
    permitted = tuple(each for each in resource.bindings if policy.permits(namespace, each))
    refused = tuple(each for each in resource.bindings if each not in permitted)
    if any(each.permission is Permission.DENY for each in refused):
        permitted = tuple(each for each in permitted if each.permission is Permission.DENY)
    return permitted, refused


def _rights(
    resource: UserResource, seen: UserSeen, policy: NamespacePolicy
) -> tuple[tuple[Action, ...], Condition | None, Mapping[str, int] | None]:
    permitted, refused = in_force(resource, policy)
    add = [each for each in permitted if each not in seen.bindings]
    remove = [
        binding for binding, owner in seen.bindings.items() if owner == resource.owner and binding not in permitted]
    actions: tuple[Action, ...] = ()
    if add or remove:
        actions = (SetBindings(_denials_first(add), _denials_last(remove)),)
    if not resource.bindings:
        return actions, None, None
    told = {
        "described": len(resource.bindings), "inForce": len(permitted) - len(add),
        "ofOthers": sum(seen.bindings.get(each, resource.owner) != resource.owner for each in permitted)}
    kind = "AclsInForce"
    if refused:
        closed = any(each.permission is Permission.DENY for each in refused)
        lost = "; so no permission is in force" if closed else ""
        shown = "; ".join(map(str, refused[:3])) + ("; ..." if len(refused) > 3 else "")
        return actions, Condition(
            kind, "False", "OutsidePolicy", f"namespace {resource.meta.ref.namespace} may not permit: {shown}{lost}",
        ), told
    if not seen.authorises:
        return actions, Condition(
            kind, "False", "NoAuthorizer", "authorizer.class.name is not set, so everybody may do everything"), told
    if add or remove:
        return actions, Condition(kind, "False", "Changing", "the ACLs are being changed"), told
    return actions, Condition(kind, "True", "AsDescribed", f"{len(permitted)} ACLs are in force"), told


def _denials_first(bindings: Iterable[Binding]) -> tuple[Binding, ...]:
    return tuple(sorted(bindings, key=lambda each: (each.permission is not Permission.DENY, each)))


def _denials_last(bindings: Iterable[Binding]) -> tuple[Binding, ...]:
    return tuple(sorted(bindings, key=lambda each: (each.permission is Permission.DENY, each)))


def _quotas(
    resource: UserResource, seen: UserSeen, policy: NamespacePolicy
) -> tuple[tuple[Action, ...], Condition | None]:
    kind, namespace = "QuotasInForce", resource.meta.ref.namespace
    actions: list[Action] = [
        SetQuotas(name, dict.fromkeys(each.values)) for name, each in seen.quotas.items()
        if each.owner == resource.owner and (name != resource.quota_user or not resource.quotas)]
    known = seen.quotas.get(resource.quota_user)
    if not resource.quotas:
        return tuple(actions), None
    if known is not None and known.owner != resource.owner:
        return tuple(actions), Condition(
            kind, "False", "ForeignQuotas",
            f"user {resource.quota_user} has quotas that this resource did not make; remove them first")
    wanted, over = {}, []
    for key, value in resource.quotas.items():
        most = policy.most(namespace, key)
        most = seen.default_quotas.get(key) if most is None else most
        if most is not None and value > most:
            over.append(f"{key} is at most {most:g}")
        else:
            wanted[key] = value
    former = {} if known is None else known.values
    changes: dict[str, float | None] = {key: None for key in former if key not in wanted}
    changes |= {key: value for key, value in wanted.items() if former.get(key) != value}
    if changes:
        actions.append(SetQuotas(resource.quota_user, changes))
    if over:
        return tuple(actions), Condition(
            kind, "False", "OutsidePolicy", f"for users of namespace {namespace}, {', '.join(over)}")
    if changes:
        return tuple(actions), Condition(kind, "False", "Changing", "the quotas are being changed")
    return tuple(actions), Condition(kind, "True", "AsDescribed", "the quotas are in force")


# --- how it logs in ---------------------------------------------------------------------------------------------------


def _login(resource: UserResource, seen: UserSeen, now_ms: int, fresh: str) -> _Login:
    foreign = next(
        (key for key, each in seen.passwords.items() if key[0] == resource.name and each.owner != resource.owner), None)
    left = tuple(
        RemovePassword(*key) for key, each in seen.passwords.items()
        if each.owner == resource.owner and (key[0] != resource.name or resource.login != SCRAM))
    if foreign is not None and resource.login == SCRAM:
        return _not_in_force(
            left, "ForeignPassword", f"user {resource.name} has a {foreign[1].sasl_name} password that this resource "
            "did not make; remove it first")
    if seen.secret_refused:
        return _not_in_force(left, "Refused", f"the API server does not let the operator keep the Secret "
                             f"{resource.secret}: {seen.secret_refused}")
    if seen.secret is not None and not seen.secret.ours:
        return _not_in_force(
            left, "ForeignSecret", f"the Secret {resource.secret} exists and belongs to somebody else; name another "
            "one in spec.secretName, or delete it")
    if seen.ca is None:  # a Secret without it would make its clients refuse the cluster
        return _not_in_force(
            left, "NoAuthority", "the authority of the listeners cannot be read, so the Secret stays as it is")
    if resource.login == SCRAM:
        login = _scram(resource, seen, now_ms, fresh)
    elif resource.login == TLS:
        login = _tls(resource, seen, now_ms)
    else:
        login = _workload(resource, seen)
    return login._replace(actions=(*left, *login.actions), status={"secret": resource.secret, **login.status})


def _not_in_force(actions: tuple[Action, ...], reason: str, why: str) -> _Login:
    return _Login(actions, Condition("CredentialInForce", "False", reason, why))


def _in_force(actions: tuple[Action, ...], what: str) -> Condition:
    if actions:
        return Condition("CredentialInForce", "False", "Changing", "the credential or its Secret is being changed")
    return Condition("CredentialInForce", "True", "InSecret", what)


def _scram(resource: UserResource, seen: UserSeen, now_ms: int, fresh: str) -> _Login:
    offered = [each for each in ScramMechanism if each.sasl_name in seen.listeners.mechanisms]
    offered.sort(key=lambda each: seen.listeners.mechanisms.index(each.sasl_name))
    if resource.mechanism is not None:
        offered = [each for each in offered if each is resource.mechanism]
    if not seen.listeners.bootstrap or not offered:
        return _not_in_force((), "NoListener", "no listener that the operator knows takes this way to log in")
    held = {key[1] for key, each in seen.passwords.items() if key[0] == resource.name and each.owner == resource.owner}
    kept = None if seen.secret is None else seen.secret.password()
    if kept is None or kept.rotate != resource.rotate or kept.mechanism not in offered:
        return _new_password(resource, seen, now_ms, fresh, kept, offered, held)
    # Written by a clock that was ahead: the former password's end counts from now, once.
    kept = kept._replace(since_ms=min(kept.since_ms, now_ms))
    actions: list[Action] = []
    current = seen.passwords.get((resource.name, kept.mechanism))
    if current is None or not current.fits:
        actions.append(SetPassword(resource.name, kept.mechanism, kept.text))
    contents = with_password(resource, seen.listeners, seen.ca or "", kept)
    assert seen.secret is not None
    if not contents.are_in(seen.secret):
        actions.append(WriteSecret(contents, seen.secret))
    status: dict[str, Any] = {
        "mechanism": kept.mechanism.sasl_name, "passwordSince": from_millis(kept.since_ms),
        "rotated": kept.rotate or None}
    ends_ms = kept.since_ms + resource.overlap_s * 1000
    former = held - {kept.mechanism}
    again = None
    if former and now_ms >= ends_ms and not actions:
        actions += [RemovePassword(resource.name, each) for each in sorted(former)]
    elif former:
        status["formerPasswordUntil"] = from_millis(ends_ms)
        again = ends_ms
    waiting = tuple(each for each in actions if not isinstance(each, RemovePassword))
    return _Login(
        tuple(actions), _in_force(waiting, f"the password is in the Secret {resource.secret}"), status, again)


def _new_password(
    resource: UserResource, seen: UserSeen, now_ms: int, fresh: str, kept: Password | None,
    offered: list[ScramMechanism], held: set[ScramMechanism],
) -> _Login:
    published = kept.mechanism if kept is not None else next(iter(held)) if len(held) == 1 else None
    mechanism = next((each for each in offered if each is not published), offered[0])
    made = Password(mechanism, fresh, resource.rotate, now_ms)
    secret = WriteSecret(with_password(resource, seen.listeners, seen.ca or "", made), seen.secret)
    password = SetPassword(resource.name, mechanism, fresh)
    if kept is None and not held:
        note = Note("Normal", "PasswordMade", f"user {resource.name} has a password, in the Secret {resource.secret}")
    else:
        asked = kept is not None and kept.rotate != resource.rotate
        why = "spec.rotate has changed" if asked else "the Secret was not as the operator had left it"
        note = Note("Normal", "PasswordRotated", f"user {resource.name} has a new password: {why}")
    actions: tuple[Action, ...] = (secret, password) if mechanism is published else (password, secret)
    return _Login(actions, _in_force(actions, ""), notes=(note,))


def _tls(resource: UserResource, seen: UserSeen, now_ms: int) -> _Login:
    if seen.authority is None:
        return _not_in_force((), "NoAuthority", "the operator has no authority that signs certificates of clients")
    if seen.authority.until_ms <= now_ms:
        return _not_in_force((), "NoAuthority", "the operator's authority for certificates of clients has expired")
    if not seen.listeners.tls_bootstrap:
        return _not_in_force((), "NoListener", "no listener that the operator knows takes this way to log in")
    if len(resource.name) > _LONGEST_COMMON_NAME:
        return _not_in_force(
            (), "NameTooLong", f"a certificate's name has at most {_LONGEST_COMMON_NAME} characters: set "
            "spec.authentication.userName")
    kept = None if seen.secret is None else seen.secret.certificate()
    if kept is None or _outworn(kept, resource, seen.authority, now_ms):
        actions: tuple[Action, ...] = (
            Issue(resource.name, resource.validity_days, resource.rotate, seen.secret),)
        note = Note("Normal", "CertificateIssued", f"user {resource.name} has a certificate, in the Secret "
                    f"{resource.secret}")
        return _Login(actions, _in_force(actions, ""), notes=(note,))
    contents = with_certificate(seen.listeners, seen.ca or "", kept)
    assert seen.secret is not None
    actions = () if contents.are_in(seen.secret) else (WriteSecret(contents, seen.secret),)
    return _Login(
        actions, _in_force(actions, f"the certificate is in the Secret {resource.secret}"),
        {"certificateUntil": from_millis(kept.not_after_ms), "rotated": kept.rotate or None},
        _renewed_at(kept) if now_ms < _renewed_at(kept) else kept.not_after_ms)


def _outworn(kept: Certificate, resource: UserResource, authority: AuthoritySeen, now_ms: int) -> bool:
    return (
        kept.name != resource.name or kept.rotate != resource.rotate or kept.authority != authority.digest
        or kept.not_before_ms > now_ms + _SKEW_MS
        # One that ends with its authority would only be replaced by another such one.
        or (now_ms >= _renewed_at(kept) and kept.not_after_ms < authority.until_ms))


def _renewed_at(kept: Certificate) -> int:
    return kept.not_after_ms - (kept.not_after_ms - kept.not_before_ms) // _RENEW


def _workload(resource: UserResource, seen: UserSeen) -> _Login:
    if not seen.listeners.bootstrap or "OAUTHBEARER" not in seen.listeners.mechanisms:
        return _not_in_force((), "NoListener", "no listener that the operator knows takes this way to log in")
    contents = with_token(seen.listeners, seen.ca or "")
    actions: tuple[Action, ...] = ()
    if seen.secret is None or not contents.are_in(seen.secret):
        actions = (WriteSecret(contents, seen.secret),)
    return _Login(actions, _in_force(
        actions, f"pods of the service account log in with its token; their settings are in the Secret "
        f"{resource.secret}"))

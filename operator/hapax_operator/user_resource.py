"""The `User` resource: one principal, how it logs in, and what it may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hapax.core.access.bindings import Binding, checked_binding
from hapax.core.access.principal_rules import PrincipalRules
from hapax.core.access.principals import Principal, user
from hapax.core.access.resources import CLUSTER_NAME, Pattern, Permission, ResourceType, title
from hapax.core.errors import Refusal
from hapax.core.quota.entities import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax_operator.namespace_policy import OPERATIONS, TYPES
from hapax_operator.resources import USERS, BadResource, Meta, read_meta, spec_of, text_of

SCRAM: Final = "Scram"
TLS: Final = "Tls"
WORKLOAD: Final = "WorkloadIdentity"
KINDS_OF_LOGIN: Final = (SCRAM, TLS, WORKLOAD)

USER_FINALIZER: Final = "hapax.dev/revoke-user"

QUOTAS: Final = {
    "producerByteRate": PRODUCER_BYTE_RATE, "consumerByteRate": CONSUMER_BYTE_RATE,
    "requestPercentage": REQUEST_PERCENTAGE, "controllerMutationRate": CONTROLLER_MUTATION_RATE}
_DEFAULT: Final = PrincipalRules()
_MECHANISMS: Final = {each.sasl_name: each for each in ScramMechanism}
_PATTERNS: Final = {title(each): each for each in (Pattern.LITERAL, Pattern.PREFIXED)}
_PERMISSIONS: Final = {title(each): each for each in (Permission.ALLOW, Permission.DENY)}


@dataclass(frozen=True, slots=True, kw_only=True)
class UserResource:
    meta: Meta
    login: str
    """One of `KINDS_OF_LOGIN`."""
    name: str
    """Of the user; two resources with one name describe the same user."""
    principal: Principal
    bindings: tuple[Binding, ...] = ()
    quotas: Mapping[str, float] = field(default_factory=dict)
    """By Kafka's names."""
    mechanism: ScramMechanism | None = None
    """None: each rotation changes it."""
    overlap_s: int = 600
    """How long a former password goes on, where mechanisms change."""
    validity_days: int = 90
    """Of a certificate."""
    rotate: str = ""
    """Each new value asks for a new password or certificate."""
    secret: str = ""
    """The Secret's name, in the resource's namespace."""
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def quota_user(self) -> str:
        """The principal's name, by which quotas find it."""
        return self.principal.partition(":")[2]

    @property
    def owner(self) -> str:
        """By which what it has in the cluster is found again, also when it is gone."""
        return f"{USERS}/{self.meta.ref.namespace}/{self.meta.ref.name}/{self.meta.uid}"


def read_owner(text: str) -> tuple[str, str, str] | None:
    """Namespace, name and uid of the User that an owner names; None: it names something else."""
    kind, *rest = text.split("/")
    return (rest[0], rest[1], rest[2]) if kind == USERS and len(rest) == 3 else None


def read_user(body: Mapping[str, Any], rules: PrincipalRules = _DEFAULT) -> UserResource:
    """`rules`: those by which certificates become principals. Raises BadResource."""
    meta, spec = read_meta(USERS, body), spec_of(body)
    try:
        return _read(meta, spec, body.get("status") or {}, rules)
    except Refusal as refusal:
        raise BadResource(f"spec.acls: {refusal.reason}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadResource(f"spec cannot be read: {error!r}") from None


def _read(
    meta: Meta, spec: Mapping[str, Any], status: Mapping[str, Any], rules: PrincipalRules
) -> UserResource:
    authentication = spec["authentication"]
    login = authentication["type"]
    if login not in KINDS_OF_LOGIN:
        raise BadResource(f"spec.authentication.type is one of {', '.join(KINDS_OF_LOGIN)}")
    namespace, own_name = meta.ref.namespace, meta.ref.name
    if login == WORKLOAD:
        account = text_of(authentication, "serviceAccountName") or own_name
        name = f"system:serviceaccount:{namespace}:{account}"
    else:
        name = text_of(authentication, "userName") or f"{namespace}.{own_name}"
    mechanism = text_of(authentication, "mechanism")
    made = UserResource(
        meta=meta, login=login, name=name, principal=user(_certified(name, rules) if login == TLS else name),
        mechanism=_MECHANISMS[mechanism] if mechanism else None,
        overlap_s=int(authentication.get("overlapSeconds", 600)),
        validity_days=int(authentication.get("validityDays", 90)), rotate=text_of(spec, "rotate"),
        secret=text_of(spec, "secretName") or own_name, status=status,
        quotas={QUOTAS[key]: float(value) for key, value in (spec.get("quotas") or {}).items()})
    bindings = dict.fromkeys(
        binding for acl in spec.get("acls") or () for binding in _bindings(acl, made.principal))
    return replace(made, bindings=tuple(bindings))


def _certified(name: str, rules: PrincipalRules) -> str:
    """The principal's name of a certificate for the user. Where no rule matches, it is refused at the listener."""
    subject = f"CN={name}"
    return rules.name_of(subject) or subject


def _bindings(acl: Mapping[str, Any], principal: Principal) -> list[Binding]:
    kind = TYPES[acl["type"]]
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else acl["name"]
    return [
        checked_binding(
            kind, name, _PATTERNS[acl.get("pattern", "Literal")], principal, host, OPERATIONS[operation],
            _PERMISSIONS[acl.get("permission", "Allow")])
        for operation in acl["operations"] for host in acl.get("hosts") or ["*"]]

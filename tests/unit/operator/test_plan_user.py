"""Plans for Users: from resources and what the cluster and the Secret have, to actions and conditions."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.core.access.bindings import Binding
from hapax.core.access.principal_rules import PrincipalRules
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax_operator.access_file import Listeners
from hapax_operator.namespace_policy import read_policy
from hapax_operator.plan_user import (
    AuthoritySeen,
    DeleteSecret,
    Issue,
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
    plan_orphan,
    plan_user,
)
from hapax_operator.resources import PAUSE, BadResource
from hapax_operator.user_resource import USER_FINALIZER, UserResource, read_owner, read_user
from hapax_operator.user_secret import Certificate, Contents, Password, SecretSeen, with_certificate, with_password

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
NOW = 1_800_000_000_000
FRESH, FORMER = "f" * 43, "p" * 43
CA = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
LISTENERS = Listeners(bootstrap="hapax:9093", tls_bootstrap="hapax:9094")
TENANT: dict[str, Any] = {
    "names": ["*"], "topics": ["{namespace}.*"], "groups": ["{namespace}.*"], "users": ["{namespace}.*"]}
POLICY = read_policy({"namespaces": [TENANT], "reservedPrincipals": ["User:shop.root", "User:CN=shop.node"]})
ORDERS = {"type": "Topic", "name": "shop.orders", "operations": ["Read", "Write"]}
OWNER = "users/shop/app/uid-app"


def user(name: str = "app", namespace: str = "shop", **spec: Any) -> UserResource:
    metadata = {
        "namespace": namespace, "name": name, "uid": f"uid-{name}", "generation": 1,
        "creationTimestamp": spec.pop("created", "2026-01-01T00:00:00Z"), **spec.pop("metadata", {})}
    status = spec.pop("status", {})
    return read_user({
        "metadata": metadata, "spec": {"authentication": {"type": "Scram", **spec.pop("login", {})}, **spec},
        "status": status})


def binding(
    name: str = "shop.orders", operation: Operation = Operation.READ, permission: Permission = Permission.ALLOW
) -> Binding:
    return Binding(
        ResourceType.TOPIC, name, Pattern.LITERAL, Principal("User:shop.app"), "*", operation, permission)


def kept(
    mechanism: ScramMechanism = SHA_512, text: str = FORMER, rotate: str = "", since_ms: int = NOW, **fields: Any
) -> SecretSeen:
    """A Secret as the operator left it."""
    contents = with_password(user(), LISTENERS, CA, Password(mechanism, text, rotate, since_ms))
    return secret(contents, **fields)


def secret(contents: Contents, *, ours: bool = True, data: dict[str, str] | None = None) -> SecretSeen:
    return SecretSeen("secret-uid", "7", ours, {**contents.data, **(data or {})}, contents.credential)


def seen(**fields: Any) -> UserSeen:
    return UserSeen(**{"listeners": LISTENERS, "ca": CA, **fields})


def alone(resource: UserResource, known: UserSeen, now_ms: int = NOW, policy: Any = POLICY) -> UserPlan:
    return plan_user(resource, [resource], known, policy, now_ms, FRESH)


def told(planned: UserPlan) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in planned.conditions}


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_user_is_called_after_its_namespace_unless_it_says_otherwise() -> None:
    assert (user().name, user().principal, user().secret) == ("shop.app", "User:shop.app", "app")
    assert user(login={"userName": "loader"}, secretName="s").name == "loader"
    certified = user(login={"type": "Tls"})
    assert (certified.name, certified.principal, certified.quota_user) == (
        "shop.app", "User:CN=shop.app", "CN=shop.app")
    workload = user(login={"type": "WorkloadIdentity", "serviceAccountName": "runner"})
    assert workload.principal == "User:system:serviceaccount:shop:runner"
    assert user(login={"type": "WorkloadIdentity"}).name == "system:serviceaccount:shop:app"


def test_the_cluster_s_rules_say_what_a_certificate_s_principal_is() -> None:
    body = {"metadata": {"namespace": "shop", "name": "app", "uid": "u"}, "spec": {"authentication": {"type": "Tls"}}}
    assert read_user(body, PrincipalRules("RULE:^CN=([^,]*)$/$1/U,DEFAULT")).principal == "User:SHOP.APP"


def test_acls_are_one_binding_for_each_operation_and_host() -> None:
    made = user(acls=[
        {**ORDERS, "hosts": ["10.0.0.1", "10.0.0.2"]}, {"type": "Cluster", "operations": ["Describe"]},
        {"type": "Group", "name": "shop.", "pattern": "Prefixed", "operations": ["Read"], "permission": "Deny"},
        ORDERS, ORDERS])
    assert len(made.bindings) == 4 + 1 + 1 + 2
    assert Binding(
        ResourceType.GROUP, "shop.", Pattern.PREFIXED, Principal("User:shop.app"), "*", Operation.READ,
        Permission.DENY) in made.bindings
    assert any(each.kind is ResourceType.CLUSTER and each.name == "kafka-cluster" for each in made.bindings)


@pytest.mark.parametrize("spec", [
    {"login": {"type": "Plain"}}, {"acls": [{"type": "Topic", "operations": ["Read"]}]},
    {"acls": [{**ORDERS, "operations": ["Reed"]}]}, {"quotas": {"bytes": 1}},
    {"acls": [{**ORDERS, "name": "x" * 2000}]},
])
def test_a_body_of_another_definition_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(BadResource):
        user(**spec)


def test_an_owner_names_the_resource() -> None:
    assert user().owner == OWNER
    assert read_owner(OWNER) == ("shop", "app", "uid-app")
    assert read_owner("team/app") is None and read_owner("") is None and read_owner("users/a/b") is None


# --- a password -------------------------------------------------------------------------------------------------------


def test_a_new_user_gets_rights_before_the_password_and_the_password_before_the_secret() -> None:
    planned = alone(user(acls=[ORDERS], quotas={"producerByteRate": 5}), seen())
    assert [type(each) for each in planned.actions] == [SetBindings, SetQuotas, SetPassword, WriteSecret]
    assert planned.actions[2] == SetPassword("shop.app", SHA_512, FRESH)
    assert planned.finalizer is True, "before anything is made"
    assert [each.reason for each in planned.notes] == ["PasswordMade"]
    assert told(planned)["Ready"] == ("False", "Changing")


def test_when_all_is_there_nothing_is_done() -> None:
    resource = user(acls=[ORDERS], quotas={"producerByteRate": 5}, metadata={"finalizers": [USER_FINALIZER]})
    planned = alone(resource, seen(
        bindings=dict.fromkeys(resource.bindings, OWNER),
        quotas={"shop.app": QuotasSeen(OWNER, {"producer_byte_rate": 5})},
        passwords={("shop.app", SHA_512): PasswordSeen(OWNER, True)}, secret=kept()))
    assert (planned.actions, planned.finalizer, planned.notes, planned.again_at_ms) == ((), None, (), None)
    assert set(told(planned).items()) == {
        ("Ready", ("True", "InForce")), ("CredentialInForce", ("True", "InSecret")),
        ("AclsInForce", ("True", "AsDescribed")), ("QuotasInForce", ("True", "AsDescribed"))}
    assert planned.status is not None and planned.status["mechanism"] == "SCRAM-SHA-512"


def test_a_rotation_sets_the_new_password_for_the_other_mechanism_and_the_former_one_goes_on() -> None:
    asked = user(rotate="2", login={"overlapSeconds": 60})
    current = {("shop.app", SHA_512): PasswordSeen(OWNER, True)}
    planned = alone(asked, seen(passwords=current, secret=kept(rotate="1")))
    assert planned.actions[0] == SetPassword("shop.app", SHA_256, FRESH)
    assert isinstance(planned.actions[1], WriteSecret) and planned.actions[1].over is not None
    assert planned.actions[1].contents.data["sasl.mechanism"] == "SCRAM-SHA-256"
    assert [each.reason for each in planned.notes] == ["PasswordRotated"]

    both = {**current, ("shop.app", SHA_256): PasswordSeen(OWNER, True)}
    after = seen(passwords=both, secret=kept(SHA_256, FRESH, "2", NOW))
    planned = alone(asked, after, NOW + 59_999)
    assert (planned.actions, planned.again_at_ms) == ((), NOW + 60_000)
    assert planned.status is not None and planned.status["rotated"] == "2"
    assert planned.status["formerPasswordUntil"] is not None and told(planned)["Ready"][0] == "True"
    planned = alone(asked, after, NOW + 60_000)
    assert planned.actions == (RemovePassword("shop.app", SHA_512),)
    assert told(planned)["Ready"][0] == "True"


def test_a_fixed_mechanism_is_written_to_the_secret_first() -> None:
    """Whoever dies in between leaves clients with a password that works: the former one."""
    asked = user(rotate="2", login={"mechanism": "SCRAM-SHA-512"})
    planned = alone(asked, seen(passwords={("shop.app", SHA_512): PasswordSeen(OWNER, True)}, secret=kept()))
    assert [type(each) for each in planned.actions] == [WriteSecret, SetPassword]
    after = seen(passwords={("shop.app", SHA_512): PasswordSeen(OWNER, False)}, secret=kept(SHA_512, FRESH, "2"))
    assert alone(asked, after).actions == (SetPassword("shop.app", SHA_512, FRESH),)


def test_a_listener_with_one_mechanism_fixes_it() -> None:
    one = Listeners(bootstrap="hapax:9093", mechanisms=("SCRAM-SHA-256",))
    planned = alone(user(), seen(listeners=one))
    assert planned.actions[0] == SetPassword("shop.app", SHA_256, FRESH)


@pytest.mark.parametrize("altered", [
    {"data": {"password": "x" * 43}}, {"data": {"password": "short"}}])
def test_a_secret_whose_password_was_altered_gets_a_new_one(altered: dict[str, Any]) -> None:
    planned = alone(user(), seen(
        passwords={("shop.app", SHA_512): PasswordSeen(OWNER, True)}, secret=kept(**altered)))
    assert planned.actions[0] == SetPassword("shop.app", SHA_256, FRESH)
    assert [each.reason for each in planned.notes] == ["PasswordRotated"]


def test_a_weak_password_is_not_taken_from_a_secret_that_was_forged_with_care() -> None:
    forged = kept(text="secret")
    assert forged.password() is None
    assert alone(user(), seen(
        passwords={("shop.app", SHA_512): PasswordSeen(OWNER, False)}, secret=forged)).actions[0] == SetPassword(
            "shop.app", SHA_256, FRESH)


def test_other_keys_that_were_altered_are_put_right_with_the_same_password() -> None:
    planned = alone(user(), seen(
        passwords={("shop.app", SHA_512): PasswordSeen(OWNER, True)},
        secret=kept(data={"bootstrap.servers": "elsewhere:1", "mine": "stays"})))
    (write,) = planned.actions
    assert isinstance(write, WriteSecret) and write.contents.data["password"] == FORMER
    assert write.contents.data["bootstrap.servers"] == "hapax:9093"


def test_a_secret_that_was_deleted_is_made_again_with_another_password() -> None:
    planned = alone(user(), seen(passwords={("shop.app", SHA_512): PasswordSeen(OWNER, True)}))
    assert planned.actions[0] == SetPassword("shop.app", SHA_256, FRESH)
    assert isinstance(planned.actions[1], WriteSecret) and planned.actions[1].over is None


@pytest.mark.parametrize("current", [{}, {("shop.app", SHA_512): PasswordSeen(OWNER, False)}])
def test_a_password_that_was_changed_in_the_cluster_is_put_right(current: dict[Any, Any]) -> None:
    planned = alone(user(), seen(passwords=current, secret=kept()))
    assert planned.actions == (SetPassword("shop.app", SHA_512, FORMER),)


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
@pytest.mark.parametrize("owner", ["", "users/shop/other/uid-other"])
def test_a_user_that_somebody_made_by_hand_is_not_taken_over(mechanism: ScramMechanism, owner: str) -> None:
    planned = alone(user(), seen(passwords={("shop.app", mechanism): PasswordSeen(owner)}))
    assert planned.actions == ()
    assert told(planned)["Ready"] == told(planned)["CredentialInForce"] == ("False", "ForeignPassword")


def test_a_secret_of_somebody_else_is_left_alone() -> None:
    planned = alone(user(), seen(secret=kept(ours=False)))
    assert planned.actions == () and told(planned)["Ready"] == ("False", "ForeignSecret")


def test_without_the_right_to_keep_secrets_rights_are_in_force_and_the_password_is_not() -> None:
    planned = alone(user(acls=[ORDERS]), seen(secret_refused="403: no"))
    assert [type(each) for each in planned.actions] == [SetBindings]
    assert told(planned)["CredentialInForce"] == ("False", "Refused")


@pytest.mark.parametrize("listeners", [
    Listeners(), Listeners(bootstrap="hapax:9093", mechanisms=("OAUTHBEARER",))])
def test_without_a_listener_there_is_no_password(listeners: Listeners) -> None:
    planned = alone(user(), seen(listeners=listeners))
    assert planned.actions == () and told(planned)["Ready"] == ("False", "NoListener")


# --- rights and quotas ------------------------------------------------------------------------------------------------


def test_denials_come_first_and_go_last() -> None:
    denied, former = binding("shop.a", permission=Permission.DENY), binding("shop.b", permission=Permission.DENY)
    resource = user(acls=[
        ORDERS, {"type": "Topic", "name": "shop.a", "operations": ["Read"], "permission": "Deny"}])
    planned = alone(resource, seen(bindings={former: OWNER, binding("shop.c"): OWNER}))
    change = planned.actions[0]
    assert isinstance(change, SetBindings)
    assert change.add[0] == denied and len(change.add) == 3
    assert change.remove == (binding("shop.c"), former)


def test_acls_of_others_stay_and_one_that_is_wanted_too_is_not_made_again() -> None:
    resource = user(acls=[ORDERS])
    planned = alone(resource, seen(
        bindings={binding("shop.x"): "", binding(): "", binding("shop.y"): "users/a/b/c"},
        passwords={("shop.app", SHA_512): PasswordSeen(OWNER, True)}, secret=kept()))
    assert planned.actions == (SetBindings((binding(operation=Operation.WRITE),), ()),)
    assert planned.status is not None
    assert planned.status["acls"] == {"described": 2, "inForce": 1, "ofOthers": 1}


def test_an_acl_outside_the_policy_is_left_out_and_told() -> None:
    resource = user(acls=[ORDERS, {"type": "Topic", "name": "pay.orders", "operations": ["Read"]}])
    planned = alone(resource, seen())
    change = planned.actions[0]
    assert isinstance(change, SetBindings) and {each.name for each in change.add} == {"shop.orders"}
    assert told(planned)["AclsInForce"] == ("False", "OutsidePolicy")
    (why,) = [each.message for each in planned.conditions if each.type == "AclsInForce"]
    assert "'pay.orders'" in why


def test_where_a_denial_is_outside_the_policy_no_permission_is_in_force() -> None:
    resource = user(acls=[ORDERS, {"type": "Topic", "name": "*", "operations": ["Write"], "permission": "Deny"}])
    assert in_force(resource, POLICY)[0] == ()
    planned = alone(resource, seen(bindings={binding(): OWNER}))
    assert planned.actions[0] == SetBindings((), (binding(),))


def test_without_an_authoriser_acls_are_not_in_force() -> None:
    resource = user(acls=[ORDERS])
    planned = alone(resource, seen(bindings=dict.fromkeys(resource.bindings, OWNER), authorises=False))
    assert told(planned)["AclsInForce"] == ("False", "NoAuthorizer")


def test_quotas_of_others_are_left_alone() -> None:
    planned = alone(user(quotas={"producerByteRate": 5}), seen(quotas={"shop.app": QuotasSeen("", {"x": 1.0})}))
    assert not any(isinstance(each, SetQuotas) for each in planned.actions)
    assert told(planned)["QuotasInForce"] == ("False", "ForeignQuotas")


def test_a_quota_that_is_no_longer_described_is_removed() -> None:
    known = {"shop.app": QuotasSeen(OWNER, {"producer_byte_rate": 5, "request_percentage": 1})}
    planned = alone(user(quotas={"producerByteRate": 6}), seen(quotas=known))
    assert planned.actions[0] == SetQuotas("shop.app", {"producer_byte_rate": 6, "request_percentage": None})
    planned = alone(user(), seen(quotas=known))
    assert planned.actions[0] == SetQuotas("shop.app", {"producer_byte_rate": None, "request_percentage": None})


@pytest.mark.parametrize(("limit", "default", "in_force"), [(None, {}, True), (4, {}, False), (6, {}, True), (
    None, {"producer_byte_rate": 4.0}, False), (6, {"producer_byte_rate": 4.0}, True)])
def test_a_user_gives_itself_no_more_than_the_policy_or_the_default_user_s_quota(
    limit: float | None, default: dict[str, float], in_force: bool
) -> None:
    rule = {**TENANT, **({"quotas": {"producer_byte_rate": limit}} if limit else {})}
    planned = alone(
        user(quotas={"producerByteRate": 5}), seen(default_quotas=default), policy=read_policy({"namespaces": [rule]}))
    assert (SetQuotas("shop.app", {"producer_byte_rate": 5}) in planned.actions) is in_force
    assert told(planned)["QuotasInForce"] == ("False", "Changing" if in_force else "OutsidePolicy")


# --- who may be -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resource", "why"), [
    (user(login={"userName": "pay.app"}), "namespace shop may not own the user pay.app"),
    (user(login={"userName": "admin"}), "may not own the user admin"),
    (user("root"), "User:shop.root is a super user or one of the cluster's nodes"),
    (user("node", login={"type": "Tls"}), "User:CN=shop.node is a super user"),
])
def test_no_namespace_is_another_s_user_or_a_super_user(resource: UserResource, why: str) -> None:
    planned = alone(resource, seen())
    assert planned.actions == () and set(told(planned)) == {"Ready", "OutsidePolicy"}
    assert why in planned.conditions[0].message


def test_what_it_had_before_the_policy_changed_is_removed() -> None:
    resource = user(login={"userName": "loader"}, metadata={"finalizers": [USER_FINALIZER]})
    had = seen(
        passwords={("loader", SHA_256): PasswordSeen(OWNER)}, bindings={binding(): OWNER, binding("x"): ""},
        quotas={"loader": QuotasSeen(OWNER, {"producer_byte_rate": 5})}, secret=kept())
    planned = alone(resource, had)
    assert planned.actions == (
        RemovePassword("loader", SHA_256), SetBindings((), (binding(),)),
        SetQuotas("loader", {"producer_byte_rate": None}), DeleteSecret("secret-uid"))
    assert planned.finalizer is None
    assert alone(resource, seen(bindings={binding("x"): ""})).finalizer is False


def test_of_two_resources_of_one_user_the_older_counts() -> None:
    older, newer = user(created="2026-01-01T00:00:00Z"), user("b", created="2026-01-02T00:00:00Z", login={
        "userName": "shop.app"})
    planned = plan_user(newer, [older, newer], seen(), POLICY, NOW, FRESH)
    assert planned.actions == () and told(planned)["ResourceConflict"] == ("True", "OlderResource")
    assert plan_user(older, [older, newer], seen(), POLICY, NOW, FRESH).actions
    foreign = user("c", "pay", created="2025-01-01T00:00:00Z", login={"userName": "shop.app"})
    assert plan_user(older, [foreign, older], seen(), POLICY, NOW, FRESH).actions, "it may not be, so it does not count"


def test_a_password_and_a_certificate_of_one_name_are_one_user() -> None:
    older, newer = user(), user("b", created="2026-01-02T00:00:00Z", login={"type": "Tls", "userName": "shop.app"})
    assert "ResourceConflict" in told(plan_user(newer, [older, newer], seen(), POLICY, NOW, FRESH))


# --- its end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paused", [False, True])
def test_a_deleted_user_loses_its_password_first_and_the_finalizer_last(paused: bool) -> None:
    resource = user(metadata={
        "finalizers": [USER_FINALIZER], "deletionTimestamp": "2026-02-01T00:00:00Z",
        "annotations": {PAUSE: "true"} if paused else {}})
    denied = binding("shop.b", permission=Permission.DENY)
    planned = alone(resource, seen(
        passwords={("shop.app", SHA_256): PasswordSeen(OWNER), ("shop.app", SHA_512): PasswordSeen(OWNER)},
        bindings={denied: OWNER, binding(): OWNER, binding("shop.x"): ""}, secret=kept(),
        quotas={"shop.app": QuotasSeen("", {"producer_byte_rate": 1})}))
    assert planned.actions == (
        RemovePassword("shop.app", SHA_256), RemovePassword("shop.app", SHA_512),
        SetBindings((), (binding(), denied)), DeleteSecret("secret-uid"))
    assert (planned.finalizer, planned.status) == (None, None)
    assert alone(resource, seen(bindings={binding("shop.x"): ""}, secret=kept(ours=False))).finalizer is False


def test_the_operator_s_own_namespace_can_be_deleted_with_its_users() -> None:
    """The operator goes with it, so no finalizer would ever be removed."""
    planned = alone(user(acls=[ORDERS]), seen(at_home=True))
    assert planned.finalizer is None and planned.actions
    former = user(metadata={"finalizers": [USER_FINALIZER]})
    assert alone(former, seen(at_home=True)).finalizer is False
    assert alone(user(acls=[ORDERS]), seen()).finalizer is True


def test_what_a_resource_without_finalizer_left_is_removed_too() -> None:
    left = UserSeen(passwords={("shop.app", SHA_256): PasswordSeen(OWNER)}, bindings={binding(): OWNER})
    assert plan_orphan(OWNER, left) == (RemovePassword("shop.app", SHA_256), SetBindings((), (binding(),)))


def test_a_paused_user_is_shown_and_not_changed() -> None:
    planned = alone(user(metadata={"annotations": {PAUSE: "true"}}, acls=[ORDERS]), seen())
    assert (planned.actions, planned.finalizer, planned.notes) == ((), None, ())
    assert told(planned)["Paused"] == ("True", "Annotated") and told(planned)["Ready"][0] == "False"


# --- other ways to log in ---------------------------------------------------------------------------------------------

DAY = 86_400_000
AUTHORITY = AuthoritySeen("digest", NOW + 900 * DAY)


def certified(
    rotate: str = "", authority: str = "digest", name: str = "shop.app", since_ms: int = NOW
) -> SecretSeen:
    return secret(with_certificate(LISTENERS, CA, Certificate(
        "chain", "key", name, rotate, since_ms, since_ms + 90 * DAY, authority)))


def test_without_an_authority_a_certificate_is_not_in_force() -> None:
    planned = alone(user(login={"type": "Tls"}, acls=[ORDERS]), seen())
    assert told(planned)["CredentialInForce"] == told(planned)["Ready"] == ("False", "NoAuthority")
    assert [type(each) for each in planned.actions] == [SetBindings]


@pytest.mark.parametrize(("has", "days", "issued"), [
    (None, 0, True), (certified(), 0, False), (certified(), 59, False), (certified(), 60, True),
    (certified(rotate="1"), 0, True), (certified(authority="former"), 0, True), (certified(name="pay.app"), 0, True),
    (certified(since_ms=NOW + DAY), 0, True), (kept(), 0, True)])
def test_when_a_certificate_is_issued(has: SecretSeen | None, days: int, issued: bool) -> None:
    planned = alone(user(login={"type": "Tls"}), seen(secret=has, authority=AUTHORITY), NOW + days * DAY)
    assert planned.actions == ((Issue("shop.app", 90, "", has),) if issued else ())
    if not issued:
        assert planned.again_at_ms == NOW + 60 * DAY
        assert told(planned)["Ready"][0] == "True"


def test_an_authority_that_ends_signs_nothing_beyond_its_end() -> None:
    resource, ends = user(login={"type": "Tls"}), AuthoritySeen("digest", NOW + 90 * DAY)
    late = alone(resource, seen(secret=certified(), authority=ends), NOW + 89 * DAY)
    assert late.actions == () and told(late)["Ready"][0] == "True", "another one would end at the same moment"
    assert late.again_at_ms == NOW + 90 * DAY, "looked at without a pause until then"
    over = alone(resource, seen(secret=certified(), authority=ends), NOW + 90 * DAY)
    assert over.actions == () and told(over)["CredentialInForce"] == ("False", "NoAuthority")


@pytest.mark.parametrize("login", ["Scram", "Tls", "WorkloadIdentity"])
def test_a_secret_keeps_its_authority_while_the_file_of_it_cannot_be_read(login: str) -> None:
    """Else clients would refuse the cluster until the next look."""
    resource = user(login={"type": login})
    for has in (None, kept() if login == "Scram" else certified()):
        planned = alone(resource, seen(secret=has, authority=AUTHORITY, ca=None, passwords={
            ("shop.app", SHA_512): PasswordSeen(OWNER, fits=True)} if login == "Scram" else {}))
        assert planned.actions == () and told(planned)["CredentialInForce"] == ("False", "NoAuthority")


def test_a_clock_that_was_ahead_does_not_keep_a_former_password_and_is_put_right_once() -> None:
    ahead = kept(since_ms=NOW + 400 * DAY)
    both = {("shop.app", SHA_512): PasswordSeen(OWNER, fits=True), ("shop.app", SHA_256): PasswordSeen(OWNER)}
    (write,) = alone(user(), seen(secret=ahead, passwords=both)).actions
    assert isinstance(write, WriteSecret) and write.contents.data["password"] == FORMER
    right = secret(write.contents)
    first, second = (alone(user(), seen(secret=right, passwords=both), NOW + later) for later in (0, 5_000))
    assert first.actions == second.actions == () and first.status == second.status, "each look changes the status"
    assert alone(user(), seen(secret=right, passwords=both), NOW + 600_000).actions == (
        RemovePassword("shop.app", SHA_256),)


def test_a_certificate_s_principal_is_the_namespace_s_too() -> None:
    """Where the cluster's rules for certificates lead from a name to another."""
    def certificate(name: str, rules: str) -> UserResource:
        return read_user({
            "metadata": {"namespace": "shop", "name": name, "uid": f"uid-{name}", "generation": 1,
                         "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"authentication": {"type": "Tls"}, "acls": [ORDERS]}}, PrincipalRules(rules))

    foreign = certificate("pay.app", r"RULE:^CN=shop\.(.*)$/$1/,DEFAULT")
    assert foreign.principal == "User:pay.app"
    planned = alone(foreign, seen(authority=AUTHORITY))
    assert planned.actions == () and told(planned)["Ready"] == ("False", "OutsidePolicy")
    for own in (certificate("app", "DEFAULT"), certificate("App", r"RULE:^CN=(.*)$/$1/L")):
        assert told(alone(own, seen(authority=AUTHORITY)))["AclsInForce"][1] == "Changing", own.principal


def test_a_name_that_no_certificate_can_have_is_told() -> None:
    planned = alone(user("a" * 64, login={"type": "Tls"}), seen(authority=AUTHORITY))
    assert told(planned)["Ready"] == ("False", "NameTooLong")


def test_a_workload_has_settings_and_no_secret() -> None:
    resource = user(login={"type": "WorkloadIdentity"})
    (write,) = alone(resource, seen()).actions
    assert isinstance(write, WriteSecret) and "password" not in write.contents.data
    assert write.contents.data["sasl.mechanism"] == "OAUTHBEARER"
    planned = alone(resource, seen(secret=secret(write.contents)))
    assert planned.actions == () and told(planned)["Ready"] == ("True", "InForce")
    no_tokens = Listeners(bootstrap="hapax:9093", mechanisms=("SCRAM-SHA-512",))
    assert told(alone(resource, seen(listeners=no_tokens)))["Ready"] == ("False", "NoListener")


def test_no_representation_shows_a_password_or_a_key() -> None:
    for shown in (
        repr(alone(user(), seen())), repr(kept()), repr(seen(secret=kept())), repr(kept().password()),
        repr(certified().certificate()), repr(SetPassword("u", SHA_256, FRESH)),
    ):
        assert FRESH not in shown and FORMER not in shown and "'key'" not in shown

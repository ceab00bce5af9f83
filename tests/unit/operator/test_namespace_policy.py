"""Which names a namespace may own and what its Users may be permitted, and how the policy is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.access.bindings import Binding
from hapax.core.access.index import Policy, of_bindings
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Action, Operation, Pattern, Permission, ResourceType
from hapax_operator.namespace_policy import UNRESTRICTED, BadPolicy, NamespacePolicy, read_policy

TOPIC, GROUP, TXN, CLUSTER = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)
LITERAL, PREFIXED = Pattern.LITERAL, Pattern.PREFIXED
READ, WRITE, ALL = Operation.READ, Operation.WRITE, Operation.ALL

OWN = {
    "names": ["*"], "topics": ["{namespace}.*"], "groups": ["{namespace}.*"], "transactionalIds": ["{namespace}.*"],
    "users": ["{namespace}.*"]}
PLATFORM = {
    "names": ["hapax"], "topics": ["*"], "groups": ["*"], "transactionalIds": ["*"], "users": ["*"],
    "grants": [{"type": "Cluster", "operations": ["Describe", "Alter"]}]}


def policy(*rules: dict[str, Any], **more: Any) -> NamespacePolicy:
    return read_policy({"namespaces": list(rules), **more})


def binding(
    kind: ResourceType, name: str, operation: Operation = READ, pattern: Pattern = LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Binding:
    return Binding(kind, name, pattern, Principal("User:shop.app"), "*", operation, permission)


def test_a_namespace_owns_what_its_rules_name() -> None:
    made = policy(OWN, PLATFORM)
    assert made.owns("shop", TOPIC, "shop.orders") and made.owns("shop", GROUP, "shop.")
    assert made.owns("shop", TXN, "shop.a", prefix=True)
    for name in ("shop", "shop-eu.orders", "orders", "", "pay.orders"):
        assert not made.owns("shop", TOPIC, name), name
    assert not made.owns("shop", TXN, "sho", prefix=True) and not made.owns("shop", TXN, "shop", prefix=True)
    assert made.owns("hapax", TOPIC, "pay.orders") and made.owns("hapax", TXN, "", prefix=True)
    assert made.owns_user("shop", "shop.app") and not made.owns_user("shop", "pay.app")
    assert not policy().owns("shop", TOPIC, "shop.orders"), "without a rule nothing is permitted"


def test_a_pattern_without_a_star_is_one_name() -> None:
    made = policy({"names": ["shop"], "topics": ["orders"]})
    assert made.owns("shop", TOPIC, "orders")
    assert not made.owns("shop", TOPIC, "orders", prefix=True) and not made.owns("shop", TOPIC, "orders2")
    assert made.permits("shop", binding(TOPIC, "orders", ALL))
    assert not made.permits("shop", binding(TOPIC, "orders", READ, PREFIXED))


def test_the_cluster_s_own_topics_need_a_pattern_of_their_own() -> None:
    made = policy(PLATFORM, {"names": ["audit"], "topics": ["__hapax_events"]})
    assert not made.owns("hapax", TOPIC, "__consumer_offsets")
    assert not made.permits("hapax", binding(TOPIC, "__consumer_offsets"))
    assert made.permits("audit", binding(TOPIC, "__hapax_events"))


@pytest.mark.parametrize(("wanted", "permitted"), [
    (binding(TOPIC, "shop.orders", ALL), True),
    (binding(TOPIC, "shop.", WRITE, PREFIXED), True),
    (binding(TOPIC, "shop", WRITE, PREFIXED), False),
    (binding(TOPIC, "*"), False),
    (binding(TOPIC, "s", READ, PREFIXED), False),
    (binding(TOPIC, "pay.orders"), False),
    (binding(GROUP, "shop.readers"), True),
    (binding(GROUP, "*"), False),
    (binding(TXN, "shop.loader", WRITE), True),
    (binding(CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION), False),
    (binding(CLUSTER, "kafka-cluster", ALL), False),
    (binding(CLUSTER, "kafka-cluster", Operation.ALTER), False),
    (binding(CLUSTER, "kafka-cluster", Operation.CREATE), False),
    (binding(CLUSTER, "kafka-cluster", Operation.IDEMPOTENT_WRITE), False),
    (binding(ResourceType.USER, "shop.app", ALL), False),
    (binding(TOPIC, "pay.orders", READ, LITERAL, Permission.DENY), False),
])
def test_what_a_tenant_s_users_may_be_permitted(wanted: Binding, permitted: bool) -> None:
    assert policy(OWN, PLATFORM).permits("shop", wanted) is permitted


def test_a_grant_permits_some_operations_on_what_others_own() -> None:
    made = policy(OWN, {"names": ["shop"], "grants": [
        {"type": "Topic", "names": ["pay.public.*"], "operations": ["Read", "Describe"]}]})
    assert made.permits("shop", binding(TOPIC, "pay.public.orders"))
    assert made.permits("shop", binding(TOPIC, "pay.public.", READ, PREFIXED))
    assert not made.permits("shop", binding(TOPIC, "pay.public.orders", WRITE))
    assert not made.permits("shop", binding(TOPIC, "pay.public.orders", ALL))
    assert not made.permits("shop", binding(GROUP, "pay.public.orders"))
    assert not made.permits("pay2", binding(TOPIC, "pay.public.orders"))
    assert not made.owns("shop", TOPIC, "pay.public.orders"), "it can be read and still not be described by a Topic"


@pytest.mark.parametrize("made", [UNRESTRICTED, policy(PLATFORM)])
def test_what_only_nodes_do_is_never_permitted(made: NamespacePolicy) -> None:
    assert made.permits("hapax", binding(CLUSTER, "kafka-cluster", Operation.ALTER))
    assert made.permits("hapax", binding(TOPIC, "*", ALL))
    for operation in (Operation.CLUSTER_ACTION, ALL):
        assert not made.permits("hapax", binding(CLUSTER, "kafka-cluster", operation))


def test_quotas_have_the_highest_limit_of_the_rules() -> None:
    made = policy({**OWN, "quotas": {"producer_byte_rate": 100}}, {
        "names": ["shop"], "quotas": {"producer_byte_rate": 500, "request_percentage": 12.5}})
    assert [made.most(each, "producer_byte_rate") for each in ("shop", "pay")] == [500, 100]
    assert [made.most(each, "request_percentage") for each in ("shop", "pay")] == [12.5, None]


def test_reserved_principals() -> None:
    made = policy(reservedPrincipals=["User:CN=admin,O=x"]).reserving([Principal("User:root")])
    assert made.is_reserved(Principal("User:root")) and made.is_reserved(Principal("User:CN=admin,O=x"))
    assert not made.is_reserved(Principal("User:shop.app"))


@pytest.mark.parametrize(("document", "sentence"), [
    ({}, "must be a list of rules"),
    ({"namespaces": "x"}, "must be a list of rules"),
    ({"namespaces": ["x"]}, "a rule must be an object"),
    ({"namespaces": [{"topics": ["a"]}]}, "has no names of namespaces"),
    ({"namespaces": [{"names": ["a"], "topic": ["a"]}]}, "unknown key 'topic'"),
    ({"namespaces": [{"names": ["a"], "topics": "a"}]}, "topics must be a list of names"),
    ({"namespaces": [{"names": ["a"], "topics": [""]}]}, "topics must be a list of names"),
    ({"namespaces": [{"names": ["a"], "topics": ["a*b"]}]}, "a * before its end"),
    ({"namespaces": [{"names": ["a"], "topics": ["{namespace}*"]}]}, "also covers names of other namespaces"),
    ({"namespaces": [{"names": ["a"], "topics": ["{namespace}-*"]}]}, "also covers names of other namespaces"),
    ({"namespaces": [{"names": ["a"], "quotas": {"bytes": 1}}]}, "unknown key 'bytes'"),
    ({"namespaces": [{"names": ["a"], "quotas": {"producer_byte_rate": 0}}]}, "above 0"),
    ({"namespaces": [{"names": ["a"], "grants": [{"type": "User", "names": ["a"], "operations": ["Read"]}]}]},
     "the type of a grant"),
    ({"namespaces": [{"names": ["a"], "grants": [{"type": "Topic", "names": ["a"], "operations": ["Reed"]}]}]},
     "the operations of a grant"),
    ({"namespaces": [{"names": ["a"], "grants": [{"type": "Topic", "names": ["a"]}]}]}, "the operations of a grant"),
    ({"namespaces": [{"names": ["a"], "grants": [{"type": "Topic", "operations": ["Read"]}]}]}, "a grant has names"),
    ({"namespaces": [{"names": ["a"], "grants": [{"type": "Cluster", "operations": ["ClusterAction"]}]}]},
     "are not for Users"),
    ({"namespaces": [{"names": ["a"], "grants": [{"type": "Cluster", "operations": ["All"]}]}]}, "are not for Users"),
    ({"namespaces": [], "reservedPrincipals": ["root"]}, "reservedPrincipals: a principal is written Type:name"),
])
def test_a_policy_that_cannot_be_meant_is_refused_with_a_sentence(document: Any, sentence: str) -> None:
    with pytest.raises(BadPolicy) as refused:
        read_policy(document)
    assert sentence in str(refused.value)


NAMES = st.text("ab.*_", min_size=1, max_size=4)
KINDS = st.sampled_from([TOPIC, GROUP, TXN])
BINDINGS = st.builds(
    Binding, KINDS, NAMES, st.sampled_from([LITERAL, PREFIXED]), st.just(Principal("User:u")), st.just("*"),
    st.sampled_from([READ, WRITE, ALL]), st.just(Permission.ALLOW))


@given(wanted=BINDINGS, patterns=st.lists(st.text("ab._", max_size=3).flatmap(
    lambda text: st.sampled_from([f"{text}*", text or "*"])), max_size=3), name=NAMES)
def test_what_a_permitted_binding_opens_is_covered(wanted: Binding, patterns: list[str], name: str) -> None:
    """By the decision that nodes make: no resource is opened that the namespace does not own."""
    made = policy({"names": ["n"], "topics": patterns, "groups": patterns, "transactionalIds": patterns})
    if not made.permits("n", wanted) or name.startswith("__"):
        return
    opened = of_bindings([wanted]).decide(Policy(), Principal("User:u"), "h", Action(READ, wanted.kind), name)
    assert not opened.allowed or made.owns("n", wanted.kind, name)

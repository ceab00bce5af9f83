"""Kafka's authoriser cases, from its documentation and the behaviour of StandardAuthorizer, as a table; and every
decision against a model that knows no index."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hapax.core.access.bindings import Binding
from hapax.core.access.index import AccessIndex, Policy, UnknownBindings, of_bindings
from hapax.core.access.principals import Principal
from hapax.core.access.resources import (
    CLUSTER_ACTION,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC,
    DESCRIBE_TOPIC_CONFIGS,
    IMPLIED_BY,
    READ_GROUP,
    READ_TOPIC,
    WRITE_TOPIC,
    Action,
    Operation,
    Pattern,
    Permission,
    ResourceType,
)
from hapax.core.access.rights import Rights
from hapax.core.hosts import plain_host

ALICE, BOB = Principal("User:alice"), Principal("User:bob")
HOME, AWAY = "10.0.0.1", "10.0.0.2"
INTERNAL = "__consumer_offsets"
PLAIN = Policy(literal_only=frozenset({INTERNAL}))
OPEN = PLAIN._replace(allow_without_bindings=True)
SUPER = PLAIN._replace(super_users=frozenset({ALICE}))


def acl(text: str) -> Binding:
    """`allow alice read topic orders`, a name that ends in `..` is a prefix; optionally `from HOST`."""
    permission, who, operation, kind, name, *rest = text.split()
    return Binding(
        ResourceType[kind.upper()], name.removesuffix(".."),
        Pattern.PREFIXED if name.endswith("..") else Pattern.LITERAL, Principal(f"User:{who}"),
        rest[1] if rest else "*", Operation[operation.upper()], Permission[permission.upper()])


class Case(NamedTuple):
    name: str
    acls: str
    """Separated by `;`."""
    action: Action
    resource: str
    allowed: bool
    principal: Principal = ALICE
    host: str = HOME
    policy: Policy = PLAIN


TABLE = [
    Case("nothing is allowed without a binding", "", READ_TOPIC, "orders", False),
    Case("a literal binding", "allow alice read topic orders", READ_TOPIC, "orders", True),
    Case("of another operation", "allow alice read topic orders", WRITE_TOPIC, "orders", False),
    Case("of another name", "allow alice read topic orders", READ_TOPIC, "orders2", False),
    Case("of another type", "allow alice read group orders", READ_TOPIC, "orders", False),
    Case("of another principal", "allow alice read topic orders", READ_TOPIC, "orders", False, BOB),
    Case("names are case-sensitive", "allow alice read topic Orders", READ_TOPIC, "orders", False),
    Case("every user", "allow * read topic orders", READ_TOPIC, "orders", True, BOB),
    Case("every name", "allow alice read topic *", READ_TOPIC, "orders", True),
    Case("a prefix", "allow alice read topic or..", READ_TOPIC, "orders", True),
    Case("a prefix that is the whole name", "allow alice read topic orders..", READ_TOPIC, "orders", True),
    Case("a longer prefix", "allow alice read topic orders2..", READ_TOPIC, "orders", False),
    Case("a star that is a prefix", "allow alice read topic *..", READ_TOPIC, "orders", False),
    Case("a literal name is no prefix", "allow alice read topic or", READ_TOPIC, "orders", False),
    Case("all operations", "allow alice all topic orders", WRITE_TOPIC, "orders", True),
    Case("read implies describe", "allow alice read topic orders", DESCRIBE_TOPIC, "orders", True),
    Case("write implies describe", "allow alice write topic orders", DESCRIBE_TOPIC, "orders", True),
    Case("delete implies describe", "allow alice delete topic orders", DESCRIBE_TOPIC, "orders", True),
    Case("alter implies describe", "allow alice alter topic orders", DESCRIBE_TOPIC, "orders", True),
    Case("create does not", "allow alice create topic orders", DESCRIBE_TOPIC, "orders", False),
    Case("alter configs implies describe configs", "allow alice alter_configs topic orders", DESCRIBE_TOPIC_CONFIGS,
         "orders", True),
    Case("alter configs does not imply describe", "allow alice alter_configs topic orders", DESCRIBE_TOPIC, "orders",
         False),
    Case("describe implies nothing", "allow alice describe topic orders", READ_TOPIC, "orders", False),
    Case("a denial of read denies no describe", "deny alice read topic orders; allow alice describe topic orders",
         DESCRIBE_TOPIC, "orders", True),
    Case("a denial outweighs", "allow alice read topic orders; deny alice read topic orders", READ_TOPIC, "orders",
         False),
    Case("in whatever order", "deny alice read topic orders; allow alice all topic orders", READ_TOPIC, "orders",
         False),
    Case("a denial by prefix outweighs a literal permission",
         "allow alice read topic orders; deny alice read topic or..", READ_TOPIC, "orders", False),
    Case("a literal denial outweighs a permission by prefix",
         "allow alice read topic or..; deny alice read topic orders", READ_TOPIC, "orders", False),
    Case("a denial of every name", "allow alice read topic orders; deny alice all topic *", READ_TOPIC, "orders",
         False),
    Case("a denial of every user", "allow alice read topic orders; deny * read topic orders", READ_TOPIC, "orders",
         False),
    Case("a denial of implied operations", "allow alice read topic orders; deny alice describe topic orders",
         DESCRIBE_TOPIC, "orders", False),
    Case("denied describe, allowed read", "allow alice read topic orders; deny alice describe topic orders",
         READ_TOPIC, "orders", True),
    Case("a host", f"allow alice read topic orders from {HOME}", READ_TOPIC, "orders", True),
    Case("another host", f"allow alice read topic orders from {HOME}", READ_TOPIC, "orders", False, host=AWAY),
    Case("a denied host", f"allow alice read topic orders; deny alice read topic orders from {AWAY}", READ_TOPIC,
         "orders", False, host=AWAY),
    Case("a denial of another host", f"allow alice read topic orders; deny alice read topic orders from {AWAY}",
         READ_TOPIC, "orders", True),
    Case("an IPv6 address in another spelling", "allow alice read topic orders from 2001:DB8:0:0::1", READ_TOPIC,
         "orders", True, host="2001:db8::1"),
    Case("super users need no binding", "", READ_TOPIC, "orders", True, policy=SUPER),
    Case("and no denial stops them", "deny * all topic *", READ_TOPIC, "orders", True, policy=SUPER),
    Case("others do", "", READ_TOPIC, "orders", False, BOB, policy=SUPER),
    Case("without a binding all is open, if so set", "", READ_TOPIC, "orders", True, policy=OPEN),
    Case("a binding of somebody closes it", "allow bob read topic orders", READ_TOPIC, "orders", False, policy=OPEN),
    Case("also by prefix", "allow bob write topic or..", READ_TOPIC, "orders", False, policy=OPEN),
    Case("also of every name", "allow bob write topic *", READ_TOPIC, "orders", False, policy=OPEN),
    Case("a denial of somebody closes it too", "deny bob write topic orders", READ_TOPIC, "orders", False, policy=OPEN),
    Case("a binding of another name does not", "allow bob read topic bills", READ_TOPIC, "orders", True, policy=OPEN),
    Case("nor of another type", "allow bob read group orders", READ_TOPIC, "orders", True, policy=OPEN),
    Case("the cluster", "allow alice cluster_action cluster kafka-cluster", CLUSTER_ACTION, "kafka-cluster", True),
    Case("alter the cluster implies describe", "allow alice alter cluster kafka-cluster", DESCRIBE_CLUSTER,
         "kafka-cluster", True),
    Case("every name does not permit an internal topic", "allow alice read topic *", READ_TOPIC, INTERNAL, False),
    Case("nor does a prefix", "allow alice read topic __..", READ_TOPIC, INTERNAL, False),
    Case("its own name does", f"allow alice read topic {INTERNAL}", READ_TOPIC, INTERNAL, True),
    Case("a denial of every name counts for it", f"allow alice read topic {INTERNAL}; deny alice read topic *",
         READ_TOPIC, INTERNAL, False),
    Case("nor is it open without a binding, if so set", "", READ_TOPIC, INTERNAL, False, policy=OPEN),
    Case("a group may have its name", "allow alice read group *", READ_GROUP, INTERNAL, True),
]


def rules(text: str) -> list[Binding]:
    return [acl(each) for each in text.split(";") if each.strip()]


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_the_table(case: Case) -> None:
    index = of_bindings(rules(case.acls))
    decision = index.decide(case.policy, case.principal, case.host, case.action, case.resource)
    assert decision.allowed is case.allowed, decision
    if decision.rule is not None:
        assert (decision.rule.permission is Permission.ALLOW) is decision.allowed


ANY_TABLE = [
    ("nothing", "", WRITE_TOPIC, False, PLAIN),
    ("one topic", "allow alice write topic a", WRITE_TOPIC, True, PLAIN),
    ("another operation", "allow alice read topic a", WRITE_TOPIC, False, PLAIN),
    ("another type", "allow alice read group a", READ_TOPIC, False, PLAIN),
    ("another user's", "allow bob write topic a", WRITE_TOPIC, False, PLAIN),
    ("another host's", f"allow alice write topic a from {AWAY}", WRITE_TOPIC, False, PLAIN),
    ("all operations", "allow alice all topic a", WRITE_TOPIC, True, PLAIN),
    ("every user's", "allow * write topic a", WRITE_TOPIC, True, PLAIN),
    ("denied by its name", "allow alice write topic a; deny * write topic a", WRITE_TOPIC, False, PLAIN),
    ("a denial of another name", "allow alice write topic a; deny alice write topic b", WRITE_TOPIC, True, PLAIN),
    ("a denial of another host", f"allow alice write topic a; deny * write topic a from {AWAY}", WRITE_TOPIC, True,
     PLAIN),
    ("a denial of another operation", "allow alice all topic a; deny alice write topic a", READ_TOPIC, True, PLAIN),
    ("a denial of all operations", "allow alice all topic a; deny alice all topic a", READ_TOPIC, False, PLAIN),
    ("denied by a prefix", "allow alice read group abcde..; deny alice read group abcd..", READ_GROUP, False, PLAIN),
    ("a shorter prefix is wider", "allow alice read group abc..; deny alice read group abcd..", READ_GROUP, True,
     PLAIN),
    ("literal denied by a prefix", "allow alice read group abcde; deny alice read group abcd..", READ_GROUP, False,
     PLAIN),
    ("a denied name in a prefix", "allow alice read group ab..; deny alice read group ab", READ_GROUP, True, PLAIN),
    ("a denial of every name", "allow alice read group a; allow alice read group *; deny alice read group *",
     READ_GROUP, False, PLAIN),
    ("every name, one prefix denied", "allow alice write topic *; deny alice write topic a..", WRITE_TOPIC, True,
     PLAIN),
    ("a super user", "deny * all topic *", WRITE_TOPIC, True, SUPER),
    ("open without bindings", "", WRITE_TOPIC, True, OPEN),
    ("open, but all denied", "deny * write topic *", WRITE_TOPIC, False, OPEN),
    ("open, but a binding of somebody names every name", "allow bob read topic *", WRITE_TOPIC, False, OPEN),
    ("open, and a binding of somebody names some", "allow bob read topic a..", WRITE_TOPIC, True, OPEN),
    ("open, and every name of another type is named", "allow bob read group *", WRITE_TOPIC, True, OPEN),
]


@pytest.mark.parametrize(("name", "acls", "action", "allowed", "policy"), ANY_TABLE, ids=lambda each: str(each))
def test_some_resource_of_a_type(name: str, acls: str, action: Action, allowed: bool, policy: Policy) -> None:
    assert of_bindings(rules(acls)).decide_any(policy, ALICE, HOME, action).allowed is allowed


# --- against a model ------------------------------------------------------------------------------------------------

NAMES = ("a", "ab", "abc", "b", "*", INTERNAL)
OPERATIONS = (
    Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS)
HOSTS = ("*", HOME, AWAY)
ACTIONS = (READ_TOPIC, WRITE_TOPIC, DESCRIBE_TOPIC, DESCRIBE_TOPIC_CONFIGS, READ_GROUP)

bindings = st.builds(
    Binding, st.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)), st.sampled_from(NAMES),
    st.sampled_from((Pattern.LITERAL, Pattern.PREFIXED)), st.sampled_from((ALICE, BOB, Principal("User:*"))),
    st.sampled_from(HOSTS), st.sampled_from(OPERATIONS), st.sampled_from((Permission.DENY, Permission.ALLOW)))
policies = st.builds(
    Policy, st.sampled_from((frozenset(), frozenset({BOB}))), st.booleans(), st.just(frozenset({INTERNAL})))


def names(binding: Binding, kind: ResourceType, name: str) -> bool:
    if binding.kind is not kind:
        return False
    if binding.pattern is Pattern.PREFIXED:
        return name.startswith(binding.name)
    return binding.name in (name, "*")


def modelled(every: list[Binding], policy: Policy, principal: Principal, host: str, action: Action, name: str) -> bool:
    if principal in policy.super_users:
        return True
    naming = [each for each in every if names(each, action.kind, name)]
    mine = [each for each in naming if each.principal in (principal, "User:*") and each.host in (host, "*")]
    if any(each.permission is Permission.DENY and each.operation in (action.operation, Operation.ALL)
           for each in mine):
        return False
    wanted = {action.operation, Operation.ALL, *IMPLIED_BY.get(action.operation, ())}
    internal = action.kind is ResourceType.TOPIC and name == INTERNAL
    if any(each.permission is Permission.ALLOW and each.operation in wanted
           and (not internal or (each.name, each.pattern) == (name, Pattern.LITERAL)) for each in mine):
        return True
    return policy.allow_without_bindings and not naming and not internal


@settings(max_examples=400, deadline=None)
@given(st.lists(bindings, max_size=8), policies, st.sampled_from((ALICE, BOB)), st.sampled_from((HOME, AWAY)))
def test_decisions_are_those_of_the_model(
    every: list[Binding], policy: Policy, principal: Principal, host: str
) -> None:
    rights = Rights(of_bindings(every), policy, principal, host)
    for action in ACTIONS:
        for name in NAMES:
            if name != "*":
                expected = modelled(every, policy, principal, host, action, name)
                assert rights.may(action, name) is expected
                assert rights.may(action, name) is expected, "remembered"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("klmnop"), st.none() | bindings), max_size=12), policies)
def test_an_index_that_changed_is_the_index_of_what_is_left(
    changes: list[tuple[str, Binding | None]], policy: Policy
) -> None:
    """Also where two keys have the same binding, as after a write by another release."""
    index, kept = AccessIndex(), {}
    for key, binding in changes:
        before = dict(index.bindings())
        following = index.changed({key: binding})
        assert dict(index.bindings()) == before, "an index never changes"
        index = following
        kept.pop(key, None)
        if binding is not None:
            kept[key] = binding
    fresh = AccessIndex(kept)
    assert dict(index.bindings()) == kept
    for action in ACTIONS:
        for name in NAMES:
            assert (
                index.decide(policy, ALICE, HOME, action, name).allowed
                is fresh.decide(policy, ALICE, HOME, action, name).allowed)


def test_before_the_bindings_are_known_only_super_users_pass() -> None:
    index = UnknownBindings()
    assert index.decide(SUPER, ALICE, HOME, READ_TOPIC, "orders").allowed
    assert not index.decide(OPEN, ALICE, HOME, READ_TOPIC, "orders").allowed
    assert not index.decide_any(OPEN, ALICE, HOME, WRITE_TOPIC).allowed


@pytest.mark.parametrize(("spelled", "plain"), [
    ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
    ("fe80::1%eth0", "fe80::1"), ("db.example", "db.example"), ("*", "*"), ("", ""),
])
def test_an_address_has_one_spelling(spelled: str, plain: str) -> None:
    assert plain_host(spelled) == plain


def test_a_client_that_asks_about_many_names_takes_no_more_memory() -> None:
    rights = Rights(of_bindings(rules("allow alice read topic t..")), PLAIN, ALICE, HOME)
    for number in range(10_000):
        assert rights.may(READ_TOPIC, f"t{number}")
    assert len(rights._answers) <= 1024
    assert rights.may(READ_TOPIC, "t" * 1000)
    assert not any(len(name) > 256 for _, name in rights._answers)

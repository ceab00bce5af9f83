from __future__ import annotations

from typing import Any

import pytest

from hapax.core.access.bindings import Binding, Filter, checked_binding, checked_filter
from hapax.core.access.principals import Principal
from hapax.core.access.resources import NOT_ASKED, Operation, Pattern, Permission, ResourceType
from hapax.core.access.rights import Rights, bit_field, operations_asked
from hapax.core.errors import ErrorCode, Refusal
from unit.core.access.test_decisions import ALICE, HOME, PLAIN, acl, of_bindings

GOOD: dict[str, Any] = {
    "kind": 2, "name": "orders", "pattern": 3, "principal": "User:alice", "host": "*", "operation": 3, "permission": 3}
ANY = Filter(ResourceType.ANY, None, Pattern.ANY, None, None, Operation.ANY, Permission.ANY)


def test_a_binding_of_a_request() -> None:
    assert checked_binding(**GOOD) == acl("allow alice read topic orders")


@pytest.mark.parametrize("wrong", [
    {"kind": 0}, {"kind": 1}, {"kind": 99}, {"name": ""}, {"pattern": 0}, {"pattern": 1}, {"pattern": 2},
    {"pattern": 9}, {"principal": "alice"}, {"principal": ""}, {"host": ""}, {"operation": 0}, {"operation": 1},
    {"operation": 77}, {"permission": 0}, {"permission": 1}, {"permission": 8}, {"kind": 4, "name": "orders"},
    {"name": "n" * 1025}, {"principal": "User:" + "n" * 1025}, {"host": "h" * 1025},
], ids=str)
def test_what_no_binding_can_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        checked_binding(**{**GOOD, **wrong})
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert refused.value.reason


@pytest.mark.parametrize("wrong", [{"kind": 0}, {"pattern": 0}, {"operation": 16}, {"permission": 4}], ids=str)
def test_what_no_filter_can_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refusal):
        checked_filter(**{**GOOD, **wrong})


LITERAL = acl("allow alice read topic orders")
PREFIX = acl("deny bob all topic or.. from 10.0.0.1")
STAR = acl("allow * write topic *")
GROUP = acl("allow alice read group orders")
EVERY = [LITERAL, PREFIX, STAR, GROUP]


@pytest.mark.parametrize(("wanted", "found"), [
    (ANY, EVERY),
    (ANY._replace(kind=ResourceType.TOPIC), [LITERAL, PREFIX, STAR]),
    (ANY._replace(name="orders"), [LITERAL, GROUP]),
    (ANY._replace(name="*"), [STAR]),
    (ANY._replace(name="orders", pattern=Pattern.LITERAL), [LITERAL, GROUP]),
    (ANY._replace(name="or", pattern=Pattern.PREFIXED), [PREFIX]),
    (ANY._replace(name="orders", pattern=Pattern.PREFIXED), []),
    (ANY._replace(pattern=Pattern.PREFIXED), [PREFIX]),
    (ANY._replace(name="orders", pattern=Pattern.MATCH), EVERY),
    (ANY._replace(name="bills", pattern=Pattern.MATCH), [STAR]),
    (ANY._replace(name="*", pattern=Pattern.MATCH), [STAR]),
    (ANY._replace(pattern=Pattern.MATCH), EVERY),
    (ANY._replace(principal="User:alice"), [LITERAL, GROUP]),
    (ANY._replace(principal="User:*"), [STAR]),
    (ANY._replace(host="10.0.0.1"), [PREFIX]),
    (ANY._replace(operation=Operation.ALL), [PREFIX]),
    (ANY._replace(permission=Permission.DENY), [PREFIX]),
], ids=str)
def test_filters(wanted: Filter, found: list[Binding]) -> None:
    assert [each for each in EVERY if wanted.matches(each)] == found


def test_a_binding_is_one_line_whatever_it_names() -> None:
    assert "\n" not in str(LITERAL._replace(name="a\nb", principal=Principal("User:x\ny"), host="h\n"))


def test_authorized_operations_are_the_bits_of_what_is_permitted() -> None:
    rights = Rights(of_bindings([LITERAL, acl("allow alice alter_configs topic orders")]), PLAIN, ALICE, HOME)
    permitted = rights.operations(ResourceType.TOPIC, "orders")
    assert permitted == {
        Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
    assert bit_field(permitted) == 1 << 3 | 1 << 8 | 1 << 10 | 1 << 11
    assert bit_field(rights.operations(ResourceType.TOPIC, "bills")) == 0
    assert not rights.operations(ResourceType.CLUSTER)
    assert bit_field(operations_asked(rights, False, ResourceType.TOPIC, "orders")) == NOT_ASKED == -(2**31)


@pytest.mark.parametrize(("kind", "count"), [
    (ResourceType.TOPIC, 8), (ResourceType.GROUP, 5), (ResourceType.CLUSTER, 7)])
def test_without_an_authoriser_every_operation_is_permitted(kind: ResourceType, count: int) -> None:
    assert bit_field(operations_asked(None, True, kind, "x")).bit_count() == count

"""What may be stored and asked for, by Kafka's rules; and which quota holds, against a model that tries Kafka's eight
places one after another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.quota.entities import (
    CLIENT_ID,
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    LONGEST_NAME,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    Match,
    changed,
    checked_change,
    checked_entity,
    checked_filter,
    entity_of,
    entity_text,
)
from hapax.core.quota.index import Limit, QuotaIndex

ALICE = entity_of({USER: "alice"})
HOME = entity_of({IP: "10.0.0.1"})


def code_of(call: object, *args: object) -> ErrorCode:
    with pytest.raises(Refusal) as refused:
        call(*args)  # type: ignore[operator]
    assert refused.value.reason
    return refused.value.code


@pytest.mark.parametrize("parts", [
    [], [("group", "a")], [("", "a")], [(USER, "")], [(CLIENT_ID, "")], [(IP, "")], [(USER, "a"), (USER, "b")],
    [(USER, None), (USER, None)], [(IP, "10.0.0.1"), (USER, "a")], [(IP, None), (CLIENT_ID, "a")],
    [(USER, "a"), (CLIENT_ID, "b"), (IP, "::1")], [(IP, "10.0.0")], [(IP, "some.host")],
    [(USER, "x" * (LONGEST_NAME + 1))],
])
def test_entities_that_no_quota_names(parts: list[tuple[str, str | None]]) -> None:
    assert code_of(checked_entity, parts) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("parts", [
    [(USER, "alice")], [(USER, None)], [(CLIENT_ID, "a")], [(CLIENT_ID, None)], [(USER, "alice"), (CLIENT_ID, None)],
    [(CLIENT_ID, "a"), (USER, None)], [(IP, "10.0.0.1")], [(IP, "fe80::1")], [(IP, None)], [(USER, "x" * LONGEST_NAME)],
])
def test_entities_are_the_same_in_any_order(parts: list[tuple[str, str | None]]) -> None:
    assert checked_entity(parts) == checked_entity(parts[::-1]) == entity_of(dict(parts))


@pytest.mark.parametrize(("spelled", "plain"), [
    ("::ffff:10.0.0.1", "10.0.0.1"), ("0:0:0:0:0:0:0:1", "::1"), ("FE80::0001", "fe80::1"), ("fe80::1%eth0", "fe80::1"),
])
def test_an_address_has_one_spelling(spelled: str, plain: str) -> None:
    """Two would be two quotas of the same connections, of which each node would pick its own."""
    assert checked_entity([(IP, spelled)]) == checked_entity([(IP, plain)]) == entity_of({IP: plain})
    assert checked_filter([(IP, Match.EXACT, spelled)], False).matches(entity_of({IP: plain}))


def test_an_entity_is_one_line_of_text() -> None:
    assert entity_text(entity_of({USER: "a\nb", CLIENT_ID: None})) == r"client-id default, user 'a\nb'"


@pytest.mark.parametrize(("entity", "key", "value"), [
    (ALICE, CONNECTION_CREATION_RATE, 1.0), (HOME, PRODUCER_BYTE_RATE, 1.0), (ALICE, "leader.replication.rate", 1.0),
    (ALICE, "", 1.0), (ALICE, PRODUCER_BYTE_RATE, 0.0), (ALICE, PRODUCER_BYTE_RATE, -1.0),
    (ALICE, PRODUCER_BYTE_RATE, 1.5), (ALICE, CONSUMER_BYTE_RATE, 1e30), (ALICE, CONSUMER_BYTE_RATE, 1e-9),
    (HOME, CONNECTION_CREATION_RATE, 2.0**31), (HOME, CONNECTION_CREATION_RATE, 0.5),
    (ALICE, REQUEST_PERCENTAGE, 0.0), (ALICE, CONTROLLER_MUTATION_RATE, float("nan")),
    (ALICE, CONTROLLER_MUTATION_RATE, float("inf")), (ALICE, PRODUCER_BYTE_RATE, float("inf")),
])
def test_values_that_no_quota_has(entity: Entity, key: str, value: float) -> None:
    assert code_of(checked_change, entity, [(key, value)]) is ErrorCode.INVALID_REQUEST


def test_a_change_sets_removes_and_keeps() -> None:
    change = checked_change(ALICE, [
        (PRODUCER_BYTE_RATE, 1024.0000001), (REQUEST_PERCENTAGE, 0.25), (CONSUMER_BYTE_RATE, None), ("unknown", None)])
    assert change == {
        PRODUCER_BYTE_RATE: 1024.0, REQUEST_PERCENTAGE: 0.25, CONSUMER_BYTE_RATE: None, "unknown": None}
    assert changed({CONSUMER_BYTE_RATE: 1.0, CONTROLLER_MUTATION_RATE: 2.0}, change) == {
        PRODUCER_BYTE_RATE: 1024.0, REQUEST_PERCENTAGE: 0.25, CONTROLLER_MUTATION_RATE: 2.0}
    assert code_of(checked_change, ALICE, [(PRODUCER_BYTE_RATE, None), (PRODUCER_BYTE_RATE, 1.0)]) is (
        ErrorCode.INVALID_REQUEST)


# --- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("components", "code"), [
    ([("", Match.ANY, None)], ErrorCode.INVALID_REQUEST),
    ([("group", Match.ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
    ([(USER, Match.ANY, None), (USER, Match.EXACT, "a")], ErrorCode.INVALID_REQUEST),
    ([(USER, Match.EXACT, None)], ErrorCode.INVALID_REQUEST),
    ([(USER, Match.DEFAULT, "a")], ErrorCode.INVALID_REQUEST),
    ([(USER, Match.ANY, "a")], ErrorCode.INVALID_REQUEST),
    ([(USER, 3, None)], ErrorCode.INVALID_REQUEST),
    ([(IP, Match.ANY, None), (USER, Match.ANY, None)], ErrorCode.INVALID_REQUEST),
])
def test_filters_that_are_refused(components: list[tuple[str, int, str | None]], code: ErrorCode) -> None:
    assert code_of(checked_filter, components, False) is code


def test_filters_select_by_name_default_and_type() -> None:
    both = entity_of({USER: "alice", CLIENT_ID: None})
    stored = [ALICE, both, entity_of({USER: None}), entity_of({CLIENT_ID: "a"}), HOME]

    def selected(*components: tuple[str, int, str | None], strict: bool = False) -> list[Entity]:
        wanted = checked_filter(components, strict)
        return [entity for entity in stored if wanted.matches(entity)]

    assert selected() == stored
    assert selected(strict=True) == []
    assert selected((USER, Match.EXACT, "alice")) == [ALICE, both]
    assert selected((USER, Match.EXACT, "alice"), strict=True) == [ALICE]
    assert selected((USER, Match.DEFAULT, None)) == [entity_of({USER: None})]
    assert selected((USER, Match.ANY, None)) == [ALICE, both, entity_of({USER: None})]
    assert selected((USER, Match.ANY, None), (CLIENT_ID, Match.DEFAULT, None)) == [both]
    assert selected((IP, Match.ANY, None)) == [HOME]
    assert selected((CLIENT_ID, Match.EXACT, "b")) == []


# --- the most specific one wins ---------------------------------------------------------------------------------------

_NAMES = st.sampled_from(["a", "b", None])
_ENTITIES = st.one_of(
    st.builds(lambda user: entity_of({USER: user}), _NAMES),
    st.builds(lambda name: entity_of({CLIENT_ID: name}), _NAMES),
    st.builds(lambda user, name: entity_of({USER: user, CLIENT_ID: name}), _NAMES, _NAMES))
_STORED = st.dictionaries(
    _ENTITIES, st.dictionaries(st.sampled_from(CLIENT_KEYS), st.integers(1, 99).map(float), min_size=1), max_size=12)


def expected(stored: dict[Entity, dict[str, float]], key: str, user: str, client_id: str) -> Limit | None:
    for place, sharing in (
        ({USER: user, CLIENT_ID: client_id}, (user, client_id, False)),
        ({USER: user, CLIENT_ID: None}, (user, client_id, True)),
        ({USER: user}, (user, None, False)),
        ({USER: None, CLIENT_ID: client_id}, (user, client_id, False)),
        ({USER: None, CLIENT_ID: None}, (user, client_id, True)),
        ({USER: None}, (user, None, False)),
        ({CLIENT_ID: client_id}, (None, client_id, False)),
        ({CLIENT_ID: None}, (None, client_id, True)),
    ):
        quotas = stored.get(entity_of(place), {})  # type: ignore[arg-type]
        if key in quotas:
            return Limit(quotas[key], *sharing)
    return None


@given(_STORED, st.sampled_from(["a", "b", "c"]), st.sampled_from(["a", "b", "c", ""]))
def test_each_key_is_that_of_the_most_specific_entity(
    stored: dict[Entity, dict[str, float]], user: str, client_id: str
) -> None:
    index = QuotaIndex(stored)
    for key in CLIENT_KEYS:
        assert index.limit(key, user, client_id) == expected(stored, key, user, client_id)
    assert index.keys() == {key for quotas in stored.values() for key in quotas}
    assert index.limits_clients == bool(stored) and not index.limits_connections


def test_connections_of_an_address() -> None:
    index = QuotaIndex({HOME: {CONNECTION_CREATION_RATE: 5.0}, entity_of({IP: None}): {CONNECTION_CREATION_RATE: 9.0}})
    assert index.connections("10.0.0.1") == (5.0, False)
    assert index.connections("10.0.0.2") == (9.0, True)
    assert QuotaIndex({ALICE: {PRODUCER_BYTE_RATE: 1.0}}).connections("10.0.0.1") is None
    assert index.limits_connections and not index.limits_clients

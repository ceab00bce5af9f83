"""A status is changed by as little as it takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax_operator.status import difference


@pytest.mark.parametrize(("known", "wanted", "patch"), [
    ({}, {"a": None}, {}),
    ({"a": 1}, {"a": 1}, {}),
    ({"a": 1}, {"a": None}, {"a": None}),
    ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": None}}, {"a": {"c": None}}),
    ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
    ({}, {"a": {}}, {"a": {}}),
    ({"a": [1]}, {"a": [2]}, {"a": [2]}),
])
def test_examples(known: dict[str, Any], wanted: dict[str, Any], patch: dict[str, Any]) -> None:
    assert difference(known, wanted) == patch


names = st.sampled_from("abc")
values = st.recursive(st.integers(0, 2), lambda inner: st.dictionaries(names, inner), max_leaves=5)
wishes = st.recursive(st.none() | st.integers(0, 2), lambda inner: st.dictionaries(names, inner), max_leaves=5)


@given(st.dictionaries(names, values), st.dictionaries(names, wishes))
def test_the_patch_leads_there_and_then_nothing_is_left_to_do(known: dict[str, Any], wanted: dict[str, Any]) -> None:
    after = merged(known, difference(known, wanted))
    assert difference(after, wanted) == {}
    assert all(after.get(name) == bare(value) for name, value in wanted.items())
    assert all(after.get(name) == value for name, value in known.items() if name not in wanted)


def merged(known: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(known) if isinstance(known, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def bare(value: Any) -> Any:
    return {name: bare(each) for name, each in value.items() if each is not None} if isinstance(value, dict) else value

"""The state of a component as a hashable value. Equal values are one state, whichever objects they consist of."""

from __future__ import annotations

import types
from array import array
from collections import deque
from collections.abc import Hashable
from enum import Enum
from typing import Any, Final

from hapax.broker.log_maintenance import LogMaintenance
from hapax.broker.record_counter import RecordCounter
from hapax.core.partition.producer_table import ProducerTable
from hapax.runtime.settings import Settings

_ATOMS: Final = (int, str, bytes, bool, float, type(None), Enum, types.FunctionType, types.BuiltinFunctionType, type)

_LEFT_OUT: Final[dict[type, frozenset[str]]] = {
    ProducerTable: frozenset({"_at", "_hand"}),
}
"""Attributes on which no later step depends: the position of the last look-up, and that of the sweep."""

_OPAQUE: Final = (Settings, LogMaintenance, RecordCounter)
"""Types that are constant or irrelevant to the exploration."""



def freeze(value: Any) -> Hashable:
    return _freeze(value, {})


def _freeze(value: Any, above: dict[int, int]) -> Hashable:
    """`above`: the objects through which this one was reached, which makes cycles end."""
    kind = type(value)
    if isinstance(value, _ATOMS):
        return value
    if kind is bytearray:
        return bytes(value)
    if kind is array:
        return value.tobytes()
    if isinstance(value, _OPAQUE):
        return kind.__name__
    if kind is types.MethodType:
        return value.__name__
    if id(value) in above:
        return above[id(value)], "above"
    above[id(value)] = len(above)
    try:
        if isinstance(value, tuple):
            return tuple([_freeze(each, above) for each in value])
        if isinstance(value, (set, frozenset)):
            return frozenset(_freeze(each, above) for each in value)
        if isinstance(value, dict):
            return "dict", tuple([(_freeze(key, above), _freeze(each, above)) for key, each in value.items()])
        parts: list[Hashable] = []
        if isinstance(value, (list, deque)):
            parts += [_freeze(each, above) for each in value]
            if kind in (list, deque):
                return tuple(parts)
        left_out = _LEFT_OUT.get(kind, frozenset())
        for name in _attributes(kind):
            if name not in left_out and hasattr(value, name):
                parts.append(_freeze(getattr(value, name), above))
        inside = getattr(value, "__dict__", None)
        if inside:
            parts += [(name, _freeze(each, above)) for name, each in inside.items() if name not in left_out]
        return kind.__name__, tuple(parts)
    finally:
        del above[id(value)]


_slots: dict[type, tuple[str, ...]] = {}


def _attributes(kind: type) -> tuple[str, ...]:
    """All slots of a class and its bases."""
    found = _slots.get(kind)
    if found is None:
        found = _slots[kind] = tuple(
            name for base in kind.__mro__ for name in _as_tuple(base.__dict__.get("__slots__", ()))
            if name not in ("__dict__", "__weakref__")
        )
    return found


def _as_tuple(slots: str | tuple[str, ...]) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)

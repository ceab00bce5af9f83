"""Finds the error codes in an answer, at every level of its schema: response, topic, partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple


class _Shape(NamedTuple):
    code: str
    """The field with the error code; empty: there is none."""
    arrays: tuple[str, ...]
    """Fields whose elements contain error codes at any depth."""


_CODES: Final = ("error_code", "partition_error_code")
"""Its names; AddPartitionsToTxn has the second one."""
_shapes: dict[type, _Shape] = {}


def errors_in(answer: Any) -> Iterator[int]:
    """Yields every error code except 0 (no error)."""
    shape = _shapes.get(type(answer))
    if shape is None:
        shape = _shapes[type(answer)] = _shape_of(type(answer))
    if shape.code and (code := getattr(answer, shape.code)):
        yield code
    for name in shape.arrays:
        for element in getattr(answer, name) or ():
            yield from errors_in(element)


def _shape_of(message: Any) -> _Shape:
    struct = getattr(message, "_struct", None)
    if struct is None:
        return _Shape("", ())
    arrays = tuple(
        field.name for field in struct.fields.values()
        if field.is_struct_array() and any(_shape_of(field.data_class)))
    return _Shape(next((name for name in _CODES if name in struct.fields), ""), arrays)

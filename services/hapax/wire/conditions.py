"""Conditional appends on the wire: a tagged field of Produce.

The content is a byte 0, the version, and 20 bytes for each partition of the request that has a condition: its place in
the request, counted over all topics from 0 (int32), the scope (int64) and the expected offset (int64), big-endian. See
`hapax.core.partition.values.Condition`. A node that knows the field has the feature in its answer to ApiVersions. Any
other node ignores the field and appends, so clients must not send it there.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.values import Condition

CONDITION_TAG: Final = 10003
"""At the top level of a Produce request, version 9 or later."""
FEATURE: Final = "hapax.conditional.append"

_VERSION: Final = b"\0"
_ONE: Final = struct.Struct(">iqq")
_SCOPE: Final = struct.Struct(">q")


def scope_of(name: bytes) -> int:
    """The number of a scope with a name. Names that share a number, one pair in 2^64, share their conditions too."""
    number: int = _SCOPE.unpack(blake2b(name, digest_size=_SCOPE.size).digest())[0]
    return number or 1


def encode_conditions(conditions: Mapping[int, Condition]) -> bytes:
    """By place in the request."""
    return _VERSION + b"".join(_ONE.pack(place, *condition) for place, condition in conditions.items())


def read_conditions(content: bytes, partitions: int) -> dict[int, Condition]:
    """`partitions`: of the request. Raises Refusal: a write whose condition is not understood must not be made."""
    if content[:1] != _VERSION:
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION, "conditions of a later version")
    if len(content) % _ONE.size != 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"conditions of {len(content)} bytes")
    found = {}
    for place, scope, expected in _ONE.iter_unpack(content[1:]):
        if not 0 <= place < partitions or place in found or expected < -1:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"a condition for place {place} of {partitions}, offset {expected}")
        found[place] = Condition(scope, expected)
    return found

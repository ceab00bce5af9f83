"""ApiVersions: the bytes that clients read before they know anything else of a node."""

from __future__ import annotations

import pytest

from hapax.core.errors import ErrorCode
from hapax.kafka.api import api_versions
from hapax.kafka.registry import all_apis
from hapax.kafka.table import ApiTable

RANGES = [
    # API key, lowest advertised version, highest version
    (0, 0, 13), (1, 4, 18), (2, 1, 11), (3, 0, 13), (8, 2, 10), (9, 1, 10), (10, 0, 6), (11, 0, 9), (12, 0, 4),
    (13, 0, 5), (14, 0, 5), (15, 0, 6), (16, 0, 5), (17, 0, 1), (18, 0, 4), (19, 2, 7), (20, 1, 6), (21, 0, 2),
    (22, 0, 6), (23, 2, 4), (24, 0, 5), (25, 0, 4), (26, 0, 5), (27, 1, 2), (28, 0, 5), (29, 1, 3), (30, 1, 3),
    (31, 1, 3), (32, 1, 4), (33, 0, 2), (34, 1, 2), (35, 1, 5), (36, 0, 2), (37, 0, 3), (42, 0, 2), (43, 0, 2),
    (44, 0, 1), (45, 0, 1), (46, 0, 0), (47, 0, 0), (48, 0, 1), (49, 0, 1), (50, 0, 0), (51, 0, 0), (55, 0, 2),
    (57, 0, 2), (60, 0, 2), (61, 0, 0), (65, 0, 0), (66, 0, 2), (68, 0, 1), (69, 0, 1), (74, 0, 1), (75, 0, 0),
    (10000, 0, 0),
]
_FEATURES = ((b"\x0egroup.version", 1), (b"\x19hapax.conditional.append", 1), (b"\x14transaction.version", 2))


def _expected(version: int, error: int) -> bytes:
    """The response body by hand, from the published schema."""
    def shorts(row: tuple[int, ...]) -> bytes:
        return b"".join(number.to_bytes(2, "big") for number in row)

    code = error.to_bytes(2, "big")
    if version < 3:
        rows = b"".join(shorts(row) for row in RANGES)
        return code + len(RANGES).to_bytes(4, "big") + rows + (bytes(4) if version else b"")
    rows = b"".join(shorts(row) + b"\0" for row in RANGES)
    supported = b"\x04" + b"".join(name + shorts((0, level)) + b"\0" for name, level in _FEATURES)
    finalized = b"\x04" + b"".join(name + shorts((level, level)) + b"\0" for name, level in _FEATURES)
    tags = b"".join((
        b"\x03", b"\x00", bytes((len(supported),)), supported, b"\x01\x08", (1).to_bytes(8, "big"),
        b"\x02", bytes((len(finalized),)), finalized))
    return code + bytes((len(RANGES) + 1,)) + rows + bytes(4) + tags


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION])
def test_every_byte_of_the_answer_is_as_published(version: int, error: ErrorCode) -> None:
    answer = api_versions.response(ApiTable(all_apis()), error)
    assert bytes(answer.encode(version=version)) == _expected(version, error)

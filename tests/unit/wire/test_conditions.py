"""The tagged field of conditional appends."""

from __future__ import annotations

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.values import Condition
from hapax.kafka.api.produce import decode_request
from hapax.wire.conditions import CONDITION_TAG, encode_conditions, read_conditions, scope_of
from hapax.wire.messages import ProduceRequest, set_unknown_tag

CONDITIONS = {0: Condition(-(2**63), 2**63 - 1), 3: Condition(0, 0), 4: Condition(7)}


def test_conditions_are_read_as_written() -> None:
    assert read_conditions(encode_conditions(CONDITIONS), 5) == CONDITIONS


@pytest.mark.parametrize("version", [9, 13])
def test_the_field_reaches_the_broker(version: int) -> None:
    message = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1, topic_data=[])
    set_unknown_tag(message, CONDITION_TAG, b"content")
    set_unknown_tag(message, CONDITION_TAG + 1, b"other")
    assert decode_request(memoryview(message.encode(version=version)), version).conditions == b"content"


@pytest.mark.parametrize(("content", "code"), [
    (b"", ErrorCode.UNSUPPORTED_VERSION),
    (b"\1" + encode_conditions(CONDITIONS)[1:], ErrorCode.UNSUPPORTED_VERSION),
    (encode_conditions(CONDITIONS)[:-1], ErrorCode.INVALID_REQUEST),
    (encode_conditions({5: Condition(1, 1)}), ErrorCode.INVALID_REQUEST),
    (encode_conditions({-1: Condition(1, 1)}), ErrorCode.INVALID_REQUEST),
    (encode_conditions({1: Condition(1, -2)}), ErrorCode.INVALID_REQUEST),
    (encode_conditions({1: Condition(1, 1)}) + encode_conditions({1: Condition(1, 1)})[1:], ErrorCode.INVALID_REQUEST),
])
def test_a_condition_that_is_not_understood_is_refused(content: bytes, code: ErrorCode) -> None:
    with pytest.raises(Refusal) as refused:
        read_conditions(content, 5)
    assert refused.value.code == code


def test_scopes_have_numbers_that_stay() -> None:
    assert scope_of(b"account-1") == 2685048146664998452
    assert scope_of(b"account-2") != scope_of(b"account-1")

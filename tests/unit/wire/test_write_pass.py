"""A coordinator's pass for a partition: only the cluster's nodes can make one, and none of its bytes can be changed."""

from __future__ import annotations

import pytest

from hapax.core.partition.verification import Admission
from hapax.core.types import RegistrationEpoch
from hapax.wire.write_pass import read_pass, sign

SESSION = b"0123456789abcdef"
REGISTRATION = RegistrationEpoch(77)
ADMISSION = Admission("app", b"t" * 16, 3, 5, 1, 9, 4, 2, 1_000)
PASS = sign(ADMISSION, REGISTRATION, SESSION)


def session_of(registration: RegistrationEpoch) -> bytes | None:
    return {REGISTRATION: SESSION}.get(registration)


def test_a_pass_is_read_as_it_was_signed() -> None:
    assert read_pass(PASS, "app", session_of) == ADMISSION


@pytest.mark.parametrize("place", range(len(PASS)))
def test_no_byte_of_it_can_be_changed(place: int) -> None:
    changed = bytearray(PASS)
    changed[place] ^= 1
    assert read_pass(bytes(changed), "app", session_of) is None


def test_it_is_for_one_transactional_id() -> None:
    assert read_pass(PASS, "other", session_of) is None


def test_it_is_worth_nothing_once_its_coordinator_is_gone() -> None:
    assert read_pass(PASS, "app", lambda registration: None) is None


@pytest.mark.parametrize("content", [b"", PASS[:-1], PASS + b"\0"])
def test_what_has_another_length_is_none(content: bytes) -> None:
    assert read_pass(content, "app", session_of) is None

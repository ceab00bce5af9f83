"""Which SCRAM credentials may be stored: Kafka's rules, and ours for names and salts."""

from __future__ import annotations

from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.sasl.exchange import name_fault
from hapax.core.sasl.scram_keys import ScramMechanism

LEAST_ITERATIONS: Final = 4096
MOST_ITERATIONS: Final = 16384
"""Kafka's bounds."""
LONGEST_SALT: Final = 1024
"""Bytes."""


def known_mechanism(number: int) -> ScramMechanism:
    """Raises Refusal."""
    try:
        return ScramMechanism(number)
    except ValueError:
        raise Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism") from None


def check_credential(user: str, iterations: int, salt: bytes) -> None:
    """Raises Refusal."""
    if fault := name_fault(user):
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, fault)
    if iterations < LEAST_ITERATIONS:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too few iterations: at least {LEAST_ITERATIONS}")
    if iterations > MOST_ITERATIONS:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too many iterations: at most {MOST_ITERATIONS}")
    if not 1 <= len(salt) <= LONGEST_SALT:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"the salt has between 1 and {LONGEST_SALT} bytes")

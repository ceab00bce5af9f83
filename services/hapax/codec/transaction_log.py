"""Records of `__transaction_state`: Kafka's TransactionLogKey v0 and TransactionLogValue v0-v1, Hapax's additions in
tagged fields from 10000 on.
"""

from __future__ import annotations

from hapax.core.transaction_record import Record, Transaction


def encode_key(transactional_id: str) -> bytes:
    raise NotImplementedError


def decode_key(data: bytes) -> str | None:
    """None: a key of another version, which a reader skips."""
    raise NotImplementedError


def encode_value(transaction: Transaction) -> bytes:
    """Always version 1."""
    raise NotImplementedError


def decode_value(transactional_id: str, data: bytes | None) -> Record:
    """None is a tombstone. Raises ValueError where the bytes are not a value of a known version."""
    raise NotImplementedError

"""A coordinator's answer about one partition of a multi-writer transaction, carried to the partition by the writer.

A member that joins names the partition that it will write first. The record by which it joins registers the partition,
and the answer contains a pass for it, which goes with the member's Produce requests in a tagged field. With a pass the
partition's leader need not ask the coordinator before the member's first batch: the pass says what the answer would
say, by whom, and since when. So it is judged as an answer is (`hapax.core.partition.verification`).

The coordinator signs it with the session of its registration, which only nodes of the cluster know. So a client can
neither make a pass nor change one.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from hapax.core.partition.verification import Admission
from hapax.core.types import RegistrationEpoch

WRITE_PASS_TAG: Final = 10001
"""Tagged field at the top level of a Produce request."""

_VERSION: Final = 0
_CONTENT: Final = struct.Struct(">bq16siqhqiiq")
"""Version, registration epoch, topic id, partition, producer id, producer epoch, serial, shard, shard epoch, issued."""
_MAC_BYTES: Final = 16


def sign(admission: Admission, registration: RegistrationEpoch, session: bytes) -> bytes:
    """The content of the tagged field."""
    content = _CONTENT.pack(
        _VERSION, registration, admission.topic_id, admission.partition, admission.producer_id,
        admission.producer_epoch, admission.serial, admission.shard, admission.shard_epoch, admission.issued_ms)
    return content + _mac(content, admission.transactional_id, session)


def read_pass(
    content: bytes, transactional_id: str, session_of: Callable[[RegistrationEpoch], bytes | None]
) -> Admission | None:
    """`transactional_id`: the request's. `session_of`: a live node's session by its registration epoch. None: no live
    coordinator has signed this for the transactional id."""
    if len(content) != _CONTENT.size + _MAC_BYTES:
        return None
    signed = content[: _CONTENT.size]
    version, registration, topic_id, partition, producer_id, epoch, serial, shard, shard_epoch, issued_ms = (
        _CONTENT.unpack(signed))
    session = session_of(RegistrationEpoch(registration)) if version == _VERSION else None
    if session is None or not hmac.compare_digest(
        content[_CONTENT.size :], _mac(signed, transactional_id, session)
    ):
        return None
    return Admission(
        transactional_id, topic_id, partition, producer_id, epoch, serial, shard, shard_epoch, issued_ms)


def _mac(content: bytes, transactional_id: str, session: bytes) -> bytes:
    return hmac.digest(session, content + transactional_id.encode(), sha256)[:_MAC_BYTES]

"""Fingerprints of a micro-batch tell whether two batches with one number are the same work.

The best fingerprint is Spark's plan: the offset log states the range that the batch reads of each source, and a
replayed batch has the same file. It also tells whether the preceding, committed batch is the one that this checkpoint
knows. If the driver cannot read the checkpoint (an object store, HDFS), the fingerprint is a hash of the written
records, in any order.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa

OFFSETS: Final = "offsets"
"""Start and end of the batch, and the topic."""
END: Final = "end"
"""The end alone, which the next batch knows, too."""
RECORDS: Final = "records"


def records_in(run: str) -> str:
    """The kind for records that a run of a query commits. A run executes each batch once, so equal records of this kind
    are two writes in one batch, never a replayed batch."""
    return f"{RECORDS} in {run}"


Fingerprints = tuple[tuple[str, bytes], ...]
Digest = tuple[int, int]
"""Sums over records, modulo 2^64."""

_Words = npt.NDArray[np.uint64]

_LONG: Final = 512
"""Values of at least this many bytes are hashed one by one, because hashing few long values by columns is slow."""
_ODD: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
_MASK: Final = (1 << 64) - 1


def local_checkpoint(location: str | None) -> Path | None:
    """The folder of `checkpointLocation`, if it is a local folder with the files of a query."""
    if location is None:
        return None
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    folder = Path(unquote(parts.path) if parts.scheme else location)
    return folder if (folder / "metadata").is_file() else None


class Plan(NamedTuple):
    """Spark's plan of a batch. It is read before the batch is written, so a later change of the checkpoint does not
    change the identity of the batch."""

    query: str
    batch: int
    fingerprints: Fingerprints
    followed: Fingerprints
    """Of the batch before."""


def plan_of(location: str | None, topic: str | None, batch: int | None = None) -> Plan | None:
    """Of a batch, or of the newest one, in a checkpoint; None where that cannot be read here."""
    folder = local_checkpoint(location)
    if folder is None:
        return None
    try:
        query = str(json.loads((folder / "metadata").read_text())["id"])
        offsets = folder / "offsets"
        if batch is None:
            batch = max(int(each.name) for each in offsets.iterdir() if each.name.isdecimal())
        plan = (offsets / str(batch)).read_bytes()
        before = (offsets / str(batch - 1)).read_bytes() if batch else b""
    except (OSError, ValueError, KeyError, TypeError):
        return None
    digest = hashlib.sha256()
    for part in (before, plan, (topic or "").encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    return Plan(
        query, batch, ((OFFSETS, digest.digest()), (END, hashlib.sha256(plan).digest())),
        ((END, hashlib.sha256(before).digest()),) if batch else (),
    )


class RecordDigest:
    """A fingerprint of records in any order: the sum of their hashes. Different sets of records have different sums,
    except with a probability of 2^-64."""

    def __init__(self, topic: str | None) -> None:
        self._seed = _of_bytes((topic or "").encode())
        self._sums = [0, 0]

    def add(self, rows: pa.RecordBatch) -> None:
        hashes = np.full(rows.num_rows, self._seed, np.uint64)
        for name, column in sorted(zip(rows.schema.names, rows.columns, strict=True), key=lambda pair: pair[0]):
            hashes = _mixed(hashes ^ _of_bytes(name.encode())) + _column(column)
        hashes = _mixed(hashes)
        for lane, odd in enumerate(_ODD[1:]):
            total = int(np.sum(_mixed(hashes * np.uint64(odd)), dtype=np.uint64))
            self._sums[lane] = (self._sums[lane] + total) & _MASK

    @property
    def digest(self) -> Digest:
        return self._sums[0], self._sums[1]


def together(digests: list[Digest]) -> bytes:
    """Of the records of all of them."""
    return b"".join((sum(d[lane] for d in digests) & _MASK).to_bytes(8, "big") for lane in range(2))


def _of_bytes(data: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little"))


def _mixed(words: _Words) -> _Words:
    """A bijection in which each bit of the input changes about half of the output's (splitmix64)."""
    words = words + np.uint64(_ODD[0])
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _column(column: pa.Array) -> _Words:
    kind = column.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):  # spark.sql.execution.arrow.useLargeVarTypes
        return _texts(column.cast(pa.binary()))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(column)
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        numbers = column.cast(pa.int64(), safe=False) if pa.types.is_integer(kind) else column.cast(pa.int64())
        hashes = _mixed(np.asarray(numbers.fill_null(0)).astype(np.int64).view(np.uint64))
    else:  # headers: rare, row by row
        encoded = [repr(_plain(each)).encode() for each in column.to_pylist()]
        return np.array([_of_bytes(each) for each in encoded], np.uint64)
    if column.null_count:
        hashes[np.asarray(column.is_null())] = 0
    return hashes


def _plain(headers: list[dict[str, Any]] | None) -> list[tuple[Any, ...]] | None:
    return None if headers is None else [tuple(h.values()) if h else () for h in headers]


def _texts(column: pa.Array) -> _Words:
    """Eight bytes of all values at a time."""
    count = len(column)
    borders = np.frombuffer(column.buffers()[1], np.int32, count + 1, column.offset * 4).astype(np.int64)
    lengths = np.diff(borders)
    null = np.asarray(column.is_null()) if column.null_count else None
    if null is not None:
        lengths = np.where(null, 0, lengths)
    hashes = _mixed(lengths.view(np.uint64) + np.uint64(1))
    if count and column.buffers()[2] is not None:
        first, last = int(borders[0]), int(borders[-1])
        octets = np.zeros(last - first + 8, np.uint8)
        octets[: last - first] = np.frombuffer(column.buffers()[2], np.uint8, last - first, first)
        words: _Words = np.ndarray((last - first + 1,), "<u8", octets.data, strides=(1,))
        starts = borders[:-1] - first
        left = np.flatnonzero((lengths > 0) & (lengths <= _LONG))
        at = 0
        while len(left):
            taken = words[starts[left] + at]
            rest = lengths[left] - at
            short = rest < 8
            if short.any():
                unused = (np.uint64(8) - rest[short].view(np.uint64)) * np.uint64(8)
                taken[short] = (taken[short] << unused) >> unused
            hashes[left] = _mixed(hashes[left] ^ taken)
            at += 8
            left = left[rest > 8]
        for place in np.flatnonzero(lengths > _LONG):
            start = int(starts[place])
            hashes[place] ^= _of_bytes(octets[start : start + int(lengths[place])].tobytes())
    if null is not None:
        hashes[null] = 0
    return hashes

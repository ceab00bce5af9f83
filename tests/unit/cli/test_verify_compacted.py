"""Replicas are compacted each for itself: what may differ between them, and what may not."""

from __future__ import annotations

import pytest

from hapax.cli.verify.replicas import _same_records
from hapax.codec.batch import read_header
from hapax.codec.control import encode_control
from hapax.codec.raw_records import raw_records, rewritten
from hapax.codec.records import encode_records
from hapax.core.control import Marker
from hapax.log.walk import Batch

NOW = 1_700_000_000_000


def batch(data: bytes | bytearray) -> Batch:
    return Batch(0, read_header(data), bytes(data))


def compacted(of: Batch, horizon_ms: int, keep: slice = slice(None)) -> Batch:
    data, found = raw_records(of.data, of.header)
    return batch(rewritten(of.header, data, found[keep], horizon_ms))


@pytest.mark.parametrize("compression", [0, 4])
def test_horizons_and_removed_records_may_differ(compression: int) -> None:
    whole = batch(encode_records(
        [(NOW, b"a", None, ()), (NOW + 1, b"b", b"x", ()), (NOW + 2, b"c", b"y", ())], compression=compression))
    early, late = compacted(whole, NOW + 10), compacted(whole, NOW + 5000, slice(1, 3))
    for mine in (whole, early, late):
        for its in (whole, early, late):
            assert _same_records(mine, its)
    other = batch(encode_records([(NOW + 1, b"a", None, ()), (NOW + 1, b"b", b"z", ())], compression=compression))
    assert not _same_records(early, other)


def test_markers_may_differ_in_their_horizon_only() -> None:
    commit, abort = (batch(encode_control(Marker(7, 1, decided, 0, 1, 0), NOW)) for decided in (True, False))
    assert _same_records(commit, compacted(commit, NOW + 10))
    assert _same_records(compacted(commit, NOW + 5), compacted(commit, NOW + 10))
    assert not _same_records(commit, compacted(abort, NOW + 10))
    assert not _same_records(commit, batch(encode_records([(NOW, b"a", None, ())])))

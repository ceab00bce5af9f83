"""The store's port on etcd, where a real etcd cannot be told when to do what (else: integration/test_etcd_port.py)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from aetcd.rpc import kv_pb2, rpc_pb2

from hapax.codec.metadata import Keys
from hapax.runtime.cluster import ClusterView
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.ports import MetadataCompacted, MetadataUnavailable

KEYS = Keys("c")


class Paged(EtcdStore):
    """Three pages of one key each; the history is compacted before the second page, for so many listings."""

    def __init__(self, compactions: int) -> None:
        super().__init__(["127.0.0.1:1"])
        self.compactions = compactions
        self.revision = 10

    async def _read(self, request: Any) -> Any:
        if request.revision == 0:
            self.revision += 1
        elif self.compactions:
            self.compactions -= 1
            raise MetadataCompacted("range: etcdserver: mvcc: required revision has been compacted")
        assert request.revision in (0, self.revision), "all pages are of one state"
        names = [f"{KEYS.prefix}x/{number}".encode() for number in range(3)]
        left = [name for name in names if name >= request.key]
        return rpc_pb2.RangeResponse(
            header=rpc_pb2.ResponseHeader(revision=self.revision), more=len(left) > 1,
            kvs=[kv_pb2.KeyValue(key=left[0], value=b"1", mod_revision=5)])


async def test_a_listing_starts_again_when_the_history_is_compacted_between_two_pages() -> None:
    store = Paged(compactions=2)
    kvs, revision = await store.list(KEYS.prefix)
    assert ([kv.key[-1] for kv in kvs], revision) == (["0", "1", "2"], 13)


async def test_a_listing_that_is_always_overtaken_says_that_the_store_is_away() -> None:
    with pytest.raises(MetadataUnavailable, match="compacted"):
        await Paged(compactions=100).list(KEYS.prefix)


async def test_a_node_reads_its_image_however_often_the_history_is_compacted_meanwhile() -> None:
    view = ClusterView(Paged(compactions=7), "c", random.Random(1))
    await view.start()
    assert view.revision >= 13
    await view.close()

"""Members of etcd that come back at another IP address, as pods do."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from aetcd.rpc import rpc_pb2

from hapax.runtime.etcd import EtcdStore
from hapax.runtime.ports import MetadataUnavailable
from unit.runtime.name_server import Names


class Member(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """A member that holds nothing. It answers Range only."""

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != "/etcdserverpb.KV/Range":
            return None

        async def answer(request: bytes, context: Any) -> bytes:
            response: bytes = rpc_pb2.RangeResponse(
                header=rpc_pb2.ResponseHeader(revision=7, raft_term=2)).SerializeToString()
            return response

        return grpc.unary_unary_rpc_method_handler(answer)

    async def serve(self, host: str, port: int) -> tuple[Any, int]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self,))
        bound = server.add_insecure_port(f"{host}:{port}")
        await server.start()
        return server, bound


async def _answers(store: EtcdStore, limit_s: float) -> bool:
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while loop.time() < end:
        try:
            await store.get("k")
            return True
        except MetadataUnavailable:
            await asyncio.sleep(0.1)
    return False


@pytest.mark.parametrize(("members", "gone_s"), [(1, 1.0), (2, 1.0), (2, 30.0)])
async def test_a_member_that_comes_back_at_another_ip_address_is_found(members: int, gone_s: float) -> None:
    """Before the leases end. gRPC's own resolver would ask again after half a minute, or two minutes."""
    loop = asyncio.get_running_loop()
    _, names = await loop.create_datagram_endpoint(Names, local_addr=("127.0.0.1", 0))
    names.address = "127.0.0.2"
    server, port = await Member().serve("127.0.0.2", 0)
    store = EtcdStore(
        [f"dns://127.0.0.1:{names.port}/etcd-{each}.test:{port}" for each in range(members)], timeout_s=1.0)
    assert await _answers(store, 10)
    await server.stop(None)
    names.address = "" if gone_s > 5 else "127.0.0.2"  # a short absence: the name has its old address meanwhile
    assert not await _answers(store, gone_s)
    server, _ = await Member().serve("127.0.0.3", port)
    names.address = "127.0.0.3"
    assert await _answers(store, 5)
    await store.close()
    await server.stop(None)
    names.close()

"""Bugs in the calls between services, and in how a client handles their failures."""

from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import Mutant, unit

_ADMIN: Final = unit("client/test_admin.py")
_CLOSING: Final = unit("client/test_closing.py")
_CHANNELS: Final = unit("runtime/test_rpc_channels.py")

MUTANTS: Final = (
    Mutant(
        "a call that timed out before it was sent is sent all the same", "what the caller gave up is not done late",
        "runtime/rpc_stream.py",
        "        self._unsent.pop(call_id, None)\n",
        "        pass\n",
        (_CHANNELS,),
    ),
    Mutant(
        "a channel that is closed while it opens cancels its callers",
        "a caller hears of a failure, not of its own end",
        "runtime/rpc.py",
        "                raise RpcError(\"UNAVAILABLE\", CHANNEL_CLOSED) from None\n            raise\n",
        "                pass\n            raise\n",
        (_CHANNELS,),
    ),
    Mutant(
        "a call that is too large for a frame ends its connection", "other calls fail with it, each time",
        "runtime/rpc_links.py",
        "        if len(request) > LARGEST:\n",
        "        if False:\n",
        (unit("runtime/test_rpc.py"),),
    ),
    Mutant(
        "what a gRPC server says first is lost between two releases", "a channel that waits for it in vain",
        "runtime/former_server.py",
        "        outer.other, inner.other = inner, outer\n        try:\n"
        "            port = int(self._grpc.address.rpartition(\":\")[2])\n"
        "            async with asyncio.timeout(_CONNECT_S):\n"
        "                await asyncio.get_running_loop().create_connection(lambda: inner, _INSIDE, port)\n",
        "        try:\n"
        "            port = int(self._grpc.address.rpartition(\":\")[2])\n"
        "            async with asyncio.timeout(_CONNECT_S):\n"
        "                await asyncio.get_running_loop().create_connection(lambda: inner, _INSIDE, port)\n"
        "            outer.other, inner.other = inner, outer\n",
        (unit("runtime/test_rpc_former.py"),),
    ),
    Mutant(
        "a pipe between two releases passes over its first pause", "its bytes are held in memory",
        "runtime/former_server.py",
        "        outer.resume_reading()\n        inner.write(begin)  # which may pause it again\n",
        "        inner.write(begin)\n        outer.resume_reading()\n",
        (unit("runtime/test_rpc_former.py"),),
    ),
    Mutant(
        "a change that found no controller is taken for done", "a failure is told", "client/admin.py",
        "            except RpcError:\n                in_doubt = True\n",
        "            except (RpcError, RetriableError):\n                in_doubt = True\n",
        (_ADMIN,),
    ),
    Mutant(
        "a change whose connection was refused is taken for done", "a failure is told", "client/admin.py",
        "            controller = await self._controller()\n            try:\n",
        "            try:\n                controller = await self._controller()\n",
        (_ADMIN,),
    ),
    Mutant(
        "a producer that has ended asks to be called again", "a hang: the program repeats the call for ever",
        "client/errors.py",
        "    if trouble.kind is ErrorKind.FATAL and code in _RETRIABLE:\n",
        "    if False:\n",
        (unit("client/test_errors.py"),),
    ),
    Mutant(
        "a commit whose coordinator failed ends the producer", "its outcome is unknown, and the call is idempotent",
        "client/errors.py",
        '_SERVER_FAILED: Final = ("INTERNAL", "UNKNOWN")\n',
        "_SERVER_FAILED: Final[tuple[str, ...]] = ()\n",
        (unit("client/test_tokens.py"),),
    ),
    Mutant(
        "the groups of a shard without an owner are left out", "a list is whole, or an error",
        "coordinator/administration.py",
        '            self._shards.check_owned("group")\n',
        "",
        (unit("coordinator/test_transactions.py"),),
    ),
    Mutant(
        "a call that waits for metadata outlives its client", "a hang", "client/cluster.py",
        "        _settle(self._rounds)\n",
        "",
        (_CLOSING,),
    ),
    Mutant(
        "the metadata round that runs while the client closes never ends", "a hang", "client/cluster.py",
        "            finally:\n                _settle(rounds)\n",
        "            else:\n                _settle(rounds)\n",
        (_CLOSING,),
    ),
    Mutant(
        "a closed client connects again", "a leaked connection", "client/cluster.py",
        "            self._check_open()\n            try:\n                return await Peer.connect(\n",
        "            try:\n                return await Peer.connect(\n",
        (_CLOSING,),
    ),
    Mutant(
        "a client follows an address to another cluster", "rule 22: addresses are given out again",
        "client/cluster.py",
        "            await self._check_cluster(peer, timeout_ms)\n",
        "",
        (unit("client/test_other_cluster.py"),),
    ),
    Mutant(
        "an abort whose answer was lost aborts the next transaction", "rule 9: a marker decides one transaction",
        "client/admin.py",
        "            meant = producer.transaction_start_offset\n",
        "",
        (_ADMIN,),
    ),
    Mutant(
        "shards without an owner count as healthy", "an outage is told", "client/health.py",
        "        None, shards - len(serving))\n",
        "        None, 0 * shards * len(serving))\n",
        (unit("client/test_health.py"),),
    ),
)

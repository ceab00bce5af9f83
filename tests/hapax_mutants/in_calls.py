"""Bugs in the calls between services, and in what a client makes of their failures."""

from __future__ import annotations

from typing import Final

from hapax_mutants.mutant import Mutant, unit

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
)

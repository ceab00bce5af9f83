"""A service's listeners are opened together, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.runtime.call_listeners import HOT, listen_for_calls
from hapax.runtime.settings import Settings


class Listener:
    def __init__(self) -> None:
        self.address, self.closed = "127.0.0.1:1", False

    async def close(self, grace: float = 0.0) -> None:
        self.closed = True


class Network:
    """One on which an address is taken: of the listener that is opened after `free` others."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.opened: list[Listener] = []

    async def serve_rpc(self, *_: Any, **__: Any) -> Listener:
        if len(self.opened) == self.free:
            raise OSError("cannot listen")
        self.opened.append(Listener())
        return self.opened[-1]

    serve_frames = serve_rpc


@pytest.mark.parametrize("free", range(4))
async def test_an_address_that_is_taken_leaves_no_listener_open(free: int) -> None:
    network: Any = Network(free)
    settings = Settings(rpc_hot_path="frames")
    handlers: Any = dict.fromkeys(HOT)
    nothing: Any = None
    if free == 3:
        calls = await listen_for_calls(
            network, settings, lambda: "", internal=handlers, public={}, access=None, scram=nothing, ports=nothing)
        assert [each.closed for each in network.opened] == [False] * 3
        await calls.close()
    else:
        with pytest.raises(OSError, match="cannot listen"):
            await listen_for_calls(
                network, settings, lambda: "", internal=handlers, public={}, access=None, scram=nothing, ports=nothing)
    assert len(network.opened) == free and all(each.closed for each in network.opened)

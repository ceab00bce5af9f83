"""A node's source of producer ids: blocks from any live PID allocator, fetched ahead of need."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from hapax.core.producer.pid_blocks import PidBlock, PidBlocks, StaleBlock
from hapax.core.types import NodeId, ProducerId
from hapax.rpc.gen.hapax.internal.v1 import pid_pb2
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Network, Randomness, RpcError, Task

log = telemetry.logger("producer-ids")

ALLOCATE_BLOCK: Final = "/hapax.internal.v1.PidAllocator/AllocateBlock"

_CALL_TIMEOUT_S: Final = 2.0
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0


class ProducerIdsUnavailable(Exception):
    """No PID allocator answered in time: COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE to a client."""


class ProducerIds:
    """`await ids.next()` is a new producer id. `start()` fetches the first block ahead of need."""

    def __init__(
        self, network: Network, view: ClusterView, node_id: NodeId, random: Randomness, block_size: int = 1000
    ) -> None:
        self._network = network
        self._view = view
        self._node_id = node_id
        self._random = random
        self._block_size = block_size
        self._blocks = PidBlocks(prefetch_below=max(1, block_size // 4))
        self._waiters: deque[asyncio.Future[ProducerId]] = deque()
        self._fetcher: Task | None = None

    def start(self) -> None:
        self._fetch_if_wanted()

    async def close(self) -> None:
        await supervision.end(self._fetcher)
        for waiter in self._waiters:
            waiter.cancel()

    def take(self) -> ProducerId | None:
        """An id if one is stored; None: wait for `next`."""
        self._blocks.drop_below(self._view.producer_id_floor)
        producer_id = None if self._waiters else self._blocks.take()
        self._fetch_if_wanted()
        return producer_id

    async def next(self, timeout: float = 5.0) -> ProducerId:
        """Raises ProducerIdsUnavailable after `timeout` seconds."""
        producer_id = self.take()
        if producer_id is not None:
            return producer_id
        waiter: asyncio.Future[ProducerId] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            raise ProducerIdsUnavailable(f"no block of producer ids in {timeout} s") from None

    def _fetch_if_wanted(self) -> None:
        if self._blocks.wants_block and self._fetcher is None:
            self._fetcher = supervision.keep(self._fetch, "producer-ids", self._random)
            self._fetcher.add_done_callback(self._fetched)

    def _fetched(self, fetcher: Task) -> None:
        self._fetcher = None
        if not fetcher.cancelled():
            self._fetch_if_wanted()

    async def _fetch(self) -> None:
        """Fetches blocks until enough ids are stored and no caller waits."""
        delay = _BACKOFF_FIRST_S
        attempt = 0
        while self._blocks.wants_block or self._waiters:
            # As it is when the question is asked: before the answer comes, the counter has moved past this very block,
            # and a log may show ids of a later one.
            in_use = self._view.rollback_guard.producer_id
            block = await self._ask(attempt, in_use)
            attempt += 1
            if block is None or not self._add(block, in_use):
                await asyncio.sleep(delay * (0.5 + self._random.random()))
                delay = min(2 * delay, _BACKOFF_MAX_S)
                continue
            delay = _BACKOFF_FIRST_S

    async def _ask(self, attempt: int, in_use: int) -> PidBlock | None:
        allocators = self._view.nodes("pid")
        if not allocators:
            log.debug("no PID allocator is registered")
            return None
        # Each node begins with another allocator, and goes on to the next after a failure.
        allocator = allocators[(self._node_id + attempt) % len(allocators)]
        request = pid_pb2.AllocateBlockRequest(
            node_id=self._node_id, size=self._block_size, in_use_below=in_use + 1)
        try:
            answer = await self._network.rpc_channel(allocator.rpc_address).call(
                ALLOCATE_BLOCK, request.SerializeToString(), _CALL_TIMEOUT_S)
        except RpcError as error:
            log.warning("no block of producer ids", allocator=allocator.rpc_address, error=error)
            return None
        response = pid_pb2.AllocateBlockResponse.FromString(answer)
        return PidBlock(ProducerId(response.first), response.size)

    def _add(self, block: PidBlock, in_use: int) -> bool:
        """False: the block was refused."""
        try:
            self._blocks.add(block, in_use)
        except StaleBlock as stale:
            log.error(str(stale))
            return False
        self._view.rollback_guard.note_producer_id(block.end - 1)
        self._blocks.drop_below(self._view.producer_id_floor)
        while self._waiters and self._blocks.remaining:
            waiter = self._waiters.popleft()
            if not waiter.done():
                producer_id = self._blocks.take()
                assert producer_id is not None
                waiter.set_result(producer_id)
        return True

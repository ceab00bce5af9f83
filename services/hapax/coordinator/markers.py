"""Sends transaction markers: the markers of many transactions for one broker share a call.

There is one queue per destination. Markers that come during a call are collected for the next one. Every marker is
tried once here. Failed markers go back to the transaction's shard, which knows whether they are still needed and sends
them again after a pause (`retry_after`). All markers of one transaction for one broker stay in one call, so that those
of one partition are one append (rule 6). Markers for offsets go to the owner of the group's shard (rule 2). Where that
is this process, the same handler is called without a network call.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from hapax.codec.metadata import OFFSETS_TOPIC
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import TransactionPartition
from hapax.core.transaction.requests import Marker, MarkerResult, SendMarkers
from hapax.core.types import NodeId, ShardEpoch, ShardId
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2, common_pb2, coordinator_pb2
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.runtime.ports import Network, Randomness, RpcError

log = telemetry.logger("markers")

WRITE_MARKERS: Final = "/hapax.internal.v1.PartitionBroker/WriteMarkers"
WRITE_OFFSETS_MARKERS: Final = "/hapax.internal.v1.GroupCoordinator/WriteOffsetsMarkers"

MAX_CALLS: Final = 2
"""Maximum of concurrent calls to one destination."""
MAX_PER_CALL: Final = 500
"""Maximum of transactions in one call."""
MAX_MARKERS_PER_CALL: Final = 2_000
"""Maximum of markers times partitions in one call, so that one call does not block either event loop for long. A single
partition with more markers is one call."""
CALL_TIMEOUT_S: Final = 10.0
_RETRY_FIRST_S: Final = 0.02
_RETRY_MAX_S: Final = 1.0
_MARKERS_A_SECOND: Final = 20_000


def retry_after(attempt: int, random: Randomness, markers: int = 1) -> float:
    """Seconds before markers are sent again after the `attempt`-th failure (from 0). The maximum grows with the number
    of markers, because each attempt costs the event loop time for each marker."""
    most = _RETRY_MAX_S * max(1.0, markers / _MARKERS_A_SECOND)
    longest: float = min(_RETRY_FIRST_S * (1 << min(attempt, 10)), most)
    return longest * (0.5 + random.random() / 2)


class MarkerOwner(Protocol):
    """The transaction shard that the markers belong to."""

    @property
    def shard(self) -> ShardId: ...
    @property
    def epoch(self) -> ShardEpoch: ...
    @property
    def serving(self) -> bool: ...

    def markers_answered(self, sent: SendMarkers, epoch: ShardEpoch, results: Sequence[MarkerResult]) -> None: ...


class MarkerWaiter:
    """Takes the place of a shard where one call waits for the answer to its markers."""

    def __init__(self, shard: ShardId, epoch: ShardEpoch) -> None:
        self.shard = shard
        self.epoch = epoch
        self.serving = True
        self.answer: asyncio.Future[Sequence[MarkerResult]] = asyncio.get_running_loop().create_future()

    def markers_answered(self, sent: SendMarkers, epoch: ShardEpoch, results: Sequence[MarkerResult]) -> None:
        """Keeps the first destination's answer. Use it for one partition only."""
        if not self.answer.done():
            self.answer.set_result(results)


class _Item(NamedTuple):
    """The markers of one transaction for one destination."""

    owner: MarkerOwner
    epoch: ShardEpoch
    sent: SendMarkers
    """The markers for this destination alone."""

    def wanted(self) -> bool:
        return self.owner.serving and self.owner.epoch == self.epoch


LocalOffsetsMarkers = Callable[
    [coordinator_pb2.WriteOffsetsMarkersRequest], Awaitable[coordinator_pb2.WriteOffsetsMarkersResponse]
]


_Address = tuple[str, bool]
"""The RPC address of a broker (False), or of a coordinator for offsets (True)."""
_Share = tuple[_Address, int]
"""The address and the number of one of the calls that a transaction's markers for it are divided into."""


@dataclass(slots=True)
class _Queue:
    """One destination: a broker, or a coordinator for offsets."""

    items: list[_Item] = field(default_factory=list)
    calls: int = 0
    scheduled: bool = False


class MarkerSender:
    def __init__(
        self, network: Network, view: ClusterView, node_id: NodeId, local_offsets_markers: LocalOffsetsMarkers,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._network = network
        self._view = view
        self._node_id = node_id
        self._local = local_offsets_markers
        self._on_fault = on_fault
        self._queues: dict[tuple[str, bool], _Queue] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        await supervision.end(*self._calls)

    def send(self, owner: MarkerOwner, sent: SendMarkers) -> None:
        """Sends the markers once. `owner.markers_answered` is called once for each destination, never from within."""
        only = self._only_destination(sent)
        if only is not None:
            self._enqueue(only, _Item(owner, owner.epoch, sent))
            return
        shares, nowhere = self._shares(sent)
        for (address, _), markers in shares.items():
            self._enqueue(address, _Item(owner, owner.epoch, replace(sent, markers=tuple(markers))))
        if nowhere:
            self._loop.call_soon(owner.markers_answered, sent, owner.epoch, nowhere)

    def _enqueue(self, address: _Address, item: _Item) -> None:
        queue = self._queues.setdefault(address, _Queue())
        queue.items.append(item)
        self._schedule(address, queue)

    def _only_destination(self, sent: SendMarkers) -> _Address | None:
        """Where one call takes all of it: most transactions have one writer, whose partitions have one leader. None:
        it must be divided."""
        if len(sent.markers) != 1 or len(sent.markers[0].partitions) > MAX_MARKERS_PER_CALL:
            return None
        only: _Address | None = None
        for partition in sent.markers[0].partitions:
            address = self._destination(partition)
            if isinstance(address, ErrorCode) or (only is not None and address != only):
                return None
            only = address
        return only

    def _shares(self, sent: SendMarkers) -> tuple[dict[_Share, list[Marker]], list[MarkerResult]]:
        """Divides the markers into shares, and answers those without a destination. All markers of a partition are in
        one share."""
        counts = Counter(partition for marker in sent.markers for partition in marker.partitions)
        places: dict[TransactionPartition, _Share | ErrorCode] = {}
        filled: dict[_Address, tuple[int, int]] = {}
        for partition, count in counts.items():
            address = self._destination(partition)
            if isinstance(address, ErrorCode):
                places[partition] = address
                continue
            share, size = filled.get(address, (0, 0))
            if size and size + count > MAX_MARKERS_PER_CALL:
                share, size = share + 1, 0
            filled[address] = share, size + count
            places[partition] = address, share
        some_nowhere = any(isinstance(place, ErrorCode) for place in places.values())
        shares: dict[_Share, list[Marker]] = {}
        nowhere: list[MarkerResult] = []
        divided: dict[int, dict[_Share, tuple[TransactionPartition, ...]]] = {}
        for marker in sent.markers:
            if id(marker.partitions) not in divided:  # members often write to the same partitions
                divided[id(marker.partitions)] = _divide(marker.partitions, places)
            for place, partitions in divided[id(marker.partitions)].items():
                shares.setdefault(place, []).append(replace(marker, partitions=partitions))
            if some_nowhere:
                nowhere += [
                    MarkerResult(marker.producer_id, partition.by_id, error)
                    for partition in marker.partitions
                    if isinstance(error := places[partition], ErrorCode)
                ]
        return shares, nowhere

    def holds(self, owner: MarkerOwner, transactional_id: str) -> bool:
        """Whether markers of the transaction wait in a queue. It looks at all waiting markers."""
        return any(
            item.owner is owner and item.sent.transactional_id == transactional_id
            for queue in self._queues.values() for item in queue.items)

    async def send_once(self, waiter: MarkerWaiter, sent: SendMarkers) -> None:
        """Sends one marker for one partition and returns when it is stored. Raises Refusal."""
        self.send(waiter, sent)
        for result in await waiter.answer:
            if result.error:
                raise Refusal(result.error, "the partition's leader did not store the marker")

    def _destination(self, partition: TransactionPartition) -> _Address | ErrorCode:
        """(address, whether it is for offsets), or the error code where there is no destination."""
        if self._view.is_deleted(partition.topic_id):
            return ErrorCode.UNKNOWN_TOPIC_ID
        node: NodeView | None
        offsets = partition.topic == OFFSETS_TOPIC
        if offsets:
            node = self._view.group_shard_owner(partition.partition)
        else:
            node = self._view.leader_of(partition.topic_id, partition.partition)
        if node is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE if offsets else ErrorCode.LEADER_NOT_AVAILABLE
        if offsets and node.node_id == self._node_id:
            return "", True
        return node.hot_address, offsets

    def _schedule(self, address: _Address, queue: _Queue) -> None:
        if not queue.scheduled and queue.calls < MAX_CALLS:
            queue.scheduled = True
            self._loop.call_soon(self._start, address, queue)

    def _start(self, address: _Address, queue: _Queue) -> None:
        queue.scheduled = False
        taken = _fitting(queue.items)
        items = [item for item in queue.items[:taken] if item.wanted()]
        del queue.items[:taken]
        if items:
            queue.calls += 1
            call = supervision.vital(self._call(address, queue, items), "markers", self._on_fault)
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        elif not queue.items and not queue.calls:
            self._queues.pop(address, None)
        if queue.items:
            self._schedule(address, queue)

    async def _call(self, address: _Address, queue: _Queue, items: list[_Item]) -> None:
        rpc_address, offsets = address
        try:
            answers = await (self._call_group(rpc_address, items) if offsets else self._call_broker(rpc_address, items))
        except RpcError as error:
            log.info("markers not answered", to=rpc_address, transactions=len(items), error=error)
            answers = [_failed(item, ErrorCode.NETWORK_EXCEPTION) for item in items]
        finally:
            queue.calls -= 1
        for item, results in zip(items, answers, strict=True):
            if item.wanted():
                item.owner.markers_answered(item.sent, item.epoch, results)
        if queue.items:
            self._schedule(address, queue)
        elif not queue.calls:
            self._queues.pop(address, None)

    async def _call_broker(self, address: str, items: list[_Item]) -> list[list[MarkerResult]]:
        request = broker_pb2.WriteMarkersRequest(markers=[
            broker_pb2.Marker(
                producer_id=marker.producer_id, producer_epoch=marker.producer_epoch, commit=marker.commit,
                coordinator_epoch=item.epoch, serial=item.sent.serial, first_offset=item.sent.first_offset,
                partitions=[common_pb2.TopicPartition(topic_id=p.topic_id, partition=p.partition)
                            for p in marker.partitions],
                shard=item.owner.shard, transaction_version=item.sent.transaction_version,
                last_offset=item.sent.last_offset,
            )
            for item in items
            for marker in item.sent.markers
        ])
        channel = self._network.rpc_channel(address)
        answer = await channel.call(WRITE_MARKERS, request.SerializeToString(), CALL_TIMEOUT_S)
        response = broker_pb2.WriteMarkersResponse.FromString(answer)
        return _results(items, [[p.error for p in result.partitions] for result in response.results])

    async def _call_group(self, address: str, items: list[_Item]) -> list[list[MarkerResult]]:
        request = coordinator_pb2.WriteOffsetsMarkersRequest(markers=[
            coordinator_pb2.OffsetsMarker(
                producer_id=marker.producer_id, producer_epoch=marker.producer_epoch, commit=marker.commit,
                coordinator_epoch=item.epoch, serial=item.sent.serial,
                group_shards=[p.partition for p in marker.partitions], shard=item.owner.shard,
            )
            for item in items
            for marker in item.sent.markers
        ])
        if address:
            channel = self._network.rpc_channel(address)
            answer = await channel.call(WRITE_OFFSETS_MARKERS, request.SerializeToString(), CALL_TIMEOUT_S)
            response = coordinator_pb2.WriteOffsetsMarkersResponse.FromString(answer)
        else:
            response = await self._local(request)
        return _results(items, [[p.error for p in result.partitions] for result in response.results])


def _divide(
    partitions: tuple[TransactionPartition, ...], places: dict[TransactionPartition, _Share | ErrorCode]
) -> dict[_Share, tuple[TransactionPartition, ...]]:
    found: dict[_Share, list[TransactionPartition]] = {}
    for partition in partitions:
        place = places[partition]
        if not isinstance(place, ErrorCode):
            found.setdefault(place, []).append(partition)
    return {place: tuple(each) for place, each in found.items()}


def _fitting(items: list[_Item]) -> int:
    """How many of the items fit into one call."""
    size = 0
    for number, item in enumerate(items[:MAX_PER_CALL]):
        size += sum(len(marker.partitions) for marker in item.sent.markers)
        if number and size > MAX_MARKERS_PER_CALL:
            return number
    return min(len(items), MAX_PER_CALL)


def _results(items: Sequence[_Item], errors: Sequence[Sequence[int]]) -> list[list[MarkerResult]]:
    """`errors`: one code per partition for each marker, in the order of the request."""
    markers = [marker for item in items for marker in item.sent.markers]
    if [len(of_marker) for of_marker in errors] != [len(marker.partitions) for marker in markers]:
        raise RpcError("INTERNAL", "the answer does not fit the markers that were sent")
    answered = iter(errors)
    return [
        [
            MarkerResult(marker.producer_id, partition.by_id, ErrorCode(error))
            for marker in item.sent.markers
            for partition, error in zip(marker.partitions, next(answered), strict=True)
        ]
        for item in items
    ]


def _failed(item: _Item, code: ErrorCode) -> list[MarkerResult]:
    return [
        MarkerResult(marker.producer_id, p.by_id, code)
        for marker in item.sent.markers
        for p in marker.partitions
    ]

"""What clients may change per second (`controller_mutation_rate`, KIP-599), counted where all changes come together:
a client that asks every node in turn has one quota. Another controller that takes over starts with full buckets."""

from __future__ import annotations

import asyncio
from typing import Final

from hapax.controller.fenced import Fence
from hapax.core.errors import Refusal
from hapax.core.quota.entities import CONTROLLER_MUTATION_RATE
from hapax.core.quota.meter import TokenBucket, Windows
from hapax.core.quota.meters import Meters, Owner
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.runtime.cluster import ClusterView
from hapax.runtime.settings import Settings


class Mutations:
    def __init__(self, view: ClusterView, settings: Settings, fence: Fence) -> None:
        self._view = view
        self._fence = fence
        self._time = asyncio.get_running_loop().time
        windows = Windows(
            settings.controller_quota_window_num, settings.controller_quota_window_size_seconds * 1000)
        self._most_debt_ms: Final = windows.number * windows.size_ms
        """Clients that do not know the error are served on credit, but not without an end: they could make a new
        connection for each call."""
        self._buckets: Meters[TokenBucket] = Meters(
            TokenBucket, windows, settings.quota_meters_max, settings.quota_client_ids_max)

    def take(self, request: pb.TakeMutationsRequest) -> pb.TakeMutationsResponse:
        """Each change is taken, however large, unless the client owes something already."""
        try:
            self._fence()
        except Refusal as refusal:
            return pb.TakeMutationsResponse(error=refusal.code, reason=refusal.reason)
        limit = self._view.quotas.index.limit(CONTROLLER_MUTATION_RATE, request.user, request.client_id)
        if limit is None:
            return pb.TakeMutationsResponse(refused=[False] * len(request.partitions))
        now_ms = int(self._time() * 1000)
        bucket = self._buckets.of(
            Owner(CONTROLLER_MUTATION_RATE, limit.user, limit.client_id), now_ms,
            request.user if limit.by_default else None)
        allowed_ms = 0 if request.strict else self._most_debt_ms
        refused = []
        for partitions in request.partitions:
            refused.append(bucket.wait_ms(limit.rate, now_ms) > allowed_ms)
            if not refused[-1]:
                bucket.take(partitions, limit.rate, now_ms)
        wait_ms = 0 if request.strict and not any(refused) else bucket.wait_ms(limit.rate, now_ms)
        return pb.TakeMutationsResponse(refused=refused, wait_ms=wait_ms, rate=limit.rate)


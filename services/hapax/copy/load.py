"""The records of one transaction on the target."""

from __future__ import annotations

from collections.abc import Iterable

from hapax.client.records import DeliveryReport
from hapax.copy.batches import Outgoing
from hapax.copy.writer import Batch
from hapax.core.copy.translate import Run, Runs
from hapax.core.types import TopicPartition


class Load:
    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.sizes: dict[TopicPartition, tuple[int, int]] = {}
        """Share -> (records, bytes)."""
        self._spans: list[tuple[TopicPartition, tuple[tuple[int, int], ...]]] = []

    def add(self, share: TopicPartition, target: TopicPartition, outgoing: Outgoing) -> None:
        self.batches.append((target, outgoing.data, outgoing.records))
        records, size = self.sizes.get(share, (0, 0))
        self.sizes[share] = records + outgoing.records, size + len(outgoing.data)
        self._spans.append((share, outgoing.spans))

    def runs(self, reports: Iterable[DeliveryReport]) -> dict[TopicPartition, list[Run]]:
        """`reports`: of each batch's first record."""
        found: dict[TopicPartition, Runs] = {}
        for (share, spans), report in zip(self._spans, reports, strict=True):
            target = report.offset
            for source, records in spans:
                found.setdefault(share, Runs()).add(Run(source, target, records))
                target += records
        return {share: list(runs) for share, runs in found.items()}

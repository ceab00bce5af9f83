"""Copies the positions of consumer groups: each one as the exact offset of the same record in the target.

What was copied where is kept in a topic of the copy on the target: one record for each partition and transaction, in
that transaction. So it is as complete as the copy, and every process of the copy can continue with it.

A position is committed on the target if the record before it has been copied, if it is newer than the group's own
position there, and if no member of the group is active there: a group that has moved to the target goes on by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import re2

from hapax.client.admin import Admin, NewTopic
from hapax.client.consumer import Consumer
from hapax.client.coordination import OffsetAndMetadata
from hapax.client.errors import HapaxError, RetriableError
from hapax.client.partitioner import partition_of
from hapax.codec.records import encode_records
from hapax.copy.own_topic import records_of, worded
from hapax.copy.settings import GROUP_PREFIX, CopySettings
from hapax.copy.writer import Batch
from hapax.core.copy.translate import Run, Runs, decode, encode
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import PartitionIndex, TopicPartition

log = logging.getLogger("hapax.copy")

_PURPOSE: Final = "what was copied where"
_PARTITIONS: Final = 8
_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": str(7 * 24 * 3600 * 1000)}
"""A group that is further behind is copied once it has come nearer."""
_ADVANCE_MS: Final = 10_000
"""How long a group whose coordinator does not answer, or which has an open transaction, holds the other groups."""
_ACTIVE: Final = frozenset({
    ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH})


class Copied(NamedTuple):
    """A share whose groups' positions this process copies."""

    source: TopicPartition
    target: TopicPartition
    position: int
    """Up to where the source is copied."""


class GroupPositions:
    def __init__(self, settings: CopySettings, source: Admin, target: Admin, reader: Consumer) -> None:
        """`reader`: of the target, read_committed."""
        self._source = source
        self._target = target
        self._reader = reader
        self._matches = re2.compile(settings.groups)
        self.topic = f"{settings.group}.offsets"
        self._replication_factor = settings.replication_factor
        self._runs: dict[TopicPartition, Runs] = {}
        """By partition of the target."""
        self._active: set[str] = set()
        self.committed = 0

    async def prepare(self) -> None:
        """Creates the copy's own topic. Raises HapaxError."""
        with worded(self.topic, _PURPOSE):
            await self._target.create_topics(
                [NewTopic(self.topic, _PARTITIONS, self._replication_factor, _CONFIG)], exist_ok=True)

    async def load(self, shares: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Reads what was copied where, by former processes too, and returns the shares of which that is known now. Of
        the others, an open transaction hides a part: without it, positions would be translated to later records.
        Raises HapaxError."""
        wanted: dict[TopicPartition, list[TopicPartition]] = {}
        for share in shares:
            wanted.setdefault(self.partition_of(share), []).append(share)
        known = await asyncio.gather(*(self._load(partition, found) for partition, found in wanted.items()))
        return {share for found in known for share in found}

    async def _load(self, partition: TopicPartition, shares: Iterable[TopicPartition]) -> list[TopicPartition]:
        """`partition`: of the copy's own topic, for all these shares."""
        keys = {_key(share): share for share in shares}
        found = {share: Runs() for share in keys.values()}
        try:
            with worded(self.topic, _PURPOSE):
                async for key, value in records_of(self._target, self._reader, partition):
                    share = keys.get(key or b"")
                    if share is not None and value is not None:
                        found[share] = _with(found[share], value)
        except RetriableError as error:
            log.warning("where records were copied to could not be read, next attempt follows: %s", error)
            return []
        self._runs.update(found)
        return list(found)

    def forget(self, share: TopicPartition) -> None:
        self._runs.pop(share, None)

    def batch(self, runs: Mapping[TopicPartition, Iterable[Run]], now_ms: int) -> list[Batch]:
        """What has to be written in the transaction that copies these records. A share without a run starts over."""
        records: dict[TopicPartition, list[Any]] = {}
        for share, found in runs.items():
            records.setdefault(self.partition_of(share), []).append((now_ms, _key(share), encode(found), ()))
        return [(partition, encode_records(found), len(found)) for partition, found in records.items()]

    def copied(self, runs: Mapping[TopicPartition, Sequence[Run]]) -> None:
        """The transaction is committed. A share without a run starts over."""
        for share, found in runs.items():
            known = self._runs.setdefault(share, Runs()) if found else Runs()
            for run in found:
                known.add(run)
            self._runs[share] = known

    async def copy(self, shares: Mapping[TopicPartition, Copied]) -> None:
        """Commits the positions that have moved. `shares`: by partition of the source. Raises the first HapaxError,
        once all groups have had their turn."""
        failure: HapaxError | None = None
        for group in await self._source.group_ids():
            if group.startswith(GROUP_PREFIX) or not self._matches.fullmatch(group):
                continue
            try:
                await self._copy_group(group, shares)
            except HapaxError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _copy_group(self, group: str, shares: Mapping[TopicPartition, Copied]) -> None:
        wanted = {}
        for partition, position in (await self._source.committed_offsets(group)).items():
            share = shares.get(partition)
            if share is None:
                continue
            translated = self.translate(share.target, position.offset, share.position)
            if translated is not None:
                wanted[share.target] = OffsetAndMetadata(translated, position.metadata)
        if wanted:
            await self._commit(group, wanted)

    async def _commit(self, group: str, wanted: dict[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            moved = await self._target.advance_group_offsets(group, wanted, timeout_ms=_ADVANCE_MS)
        except HapaxError as error:
            if error.code not in _ACTIVE:
                raise
            if group not in self._active:
                log.info("group %r is active on the target, so its positions are not copied", group)
            self._active.add(group)
            return
        if moved:
            self._active.discard(group)
            self.committed += moved

    def partition_of(self, share: TopicPartition) -> TopicPartition:
        """Of the copy's own topic, for what was copied of a share."""
        return TopicPartition(self.topic, PartitionIndex(partition_of(_key(share), _PARTITIONS)))

    def translate(self, share: TopicPartition, offset: int, position: int) -> int | None:
        """As `Runs.translate`. None also for a share that was not loaded."""
        return self._runs[share].translate(offset, position) if share in self._runs else None


def _key(share: TopicPartition) -> bytes:
    return f"{share.topic}/{share.partition}".encode()


def _with(runs: Runs, value: bytes) -> Runs:
    """No run: the copy of the partition has started over, and what was copied before was another topic."""
    try:
        found = list(decode(value))
    except (ValueError, Refusal):
        log.warning("a record of the copy's own topic cannot be read, so some positions of groups are not copied")
        found = []  # earlier positions cannot be translated over the gap
    if not found:
        return Runs()
    for run in found:
        runs.add(run)
    return runs

"""The partitions that this process copies: what the group has assigned, where each begins, and which are in trouble.

A *share* is a partition of the target, or with `--by-key` of a topic that stands for the source's. The group assigns
shares, and keeps the position in the source's partition under the share's name.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from hapax.client.coordination import OffsetAndMetadata
from hapax.client.errors import FatalError, HapaxError, RetriableError, from_code
from hapax.client.metadata import Topic
from hapax.client.offsets import PartitionOffsets
from hapax.copy.clients import Clients
from hapax.copy.epochs import epoch_ends
from hapax.copy.groups import Copied, GroupPositions
from hapax.copy.metrics import CopyCounts, PartitionCount, State
from hapax.copy.reader import Reader, Reading
from hapax.copy.saved import Saved, SavedPositions
from hapax.copy.settings import CopySettings
from hapax.copy.topics import Topics, id_of
from hapax.core.copy.position import (
    NO_EPOCH,
    Chosen,
    Kind,
    Position,
    Source,
    Trouble,
    choose,
    is_of_a_copy,
    is_of_former,
    judge,
)
from hapax.core.copy.topics import Wanted
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime import supervision

log = logging.getLogger("hapax.copy")

_PAUSE_S = 1.0
"""Before positions that could not be read are read again."""
_TOGETHER_MS: Final = 30_000
"""How long shares wait for one whose position cannot be read. Then they begin without it."""
_LOOK_UP_S: Final = 10.0
"""Longest wait for the answers about a share. A leader that does not answer must not hold the others for longer."""
_LOOK_UPS: Final = 256
"""Shares that are looked up at the same time. It bounds the memory, and is more than a leader that has just died has of
a copy: each of its shares takes a place until it is given up."""
_NEVER: Final = -1
_WAITING_MS: Final = 10_000
"""Time after which people are told of a share whose position could not be read."""
_AGAIN_MS: Final = 10_000
"""Interval at which a partition in trouble is tried again, by a copy that follows."""


class _Start(NamedTuple):
    begin: Callable[[], None]
    """Begins to read the share's partition, or puts it in trouble."""
    reads: bool


class Known(NamedTuple):
    """How far a share is copied."""

    chosen: Chosen
    """Which place has told it."""
    position: OffsetAndMetadata | None
    """None: nothing was copied."""
    unclaimed: bool
    """Not both places have it."""
    former: bool = False
    """A place has the position of a topic that had another id; with by_key, of any of the topic's shares: a position
    for the present topic, though of a new partition, would say that what is there was copied since it was made."""


class TargetIds(NamedTuple):
    """Ids of topics on the target; empty: unknown."""

    share: str
    data: str = ""
    """With by_key: of the one that has the records."""


class Shares:
    def __init__(
        self, settings: CopySettings, clients: Clients, topics: Topics, reader: Reader, saved: SavedPositions,
        groups: GroupPositions | None, metrics: CopyCounts, news: Callable[[], None],
    ) -> None:
        """`news` is called after each change."""
        self._settings = settings
        self._clients = clients
        self._topics = topics
        self._reader = reader
        self._saved = saved
        self._groups = groups
        self._metrics = metrics
        self._news = news
        self.owned: set[TopicPartition] = set()
        """Those that the group has assigned to this process."""
        self.pending: set[TopicPartition] = set()
        """Owned shares whose positions are to be read."""
        self.troubles: dict[TopicPartition, tuple[Trouble, int]] = {}
        """Of owned shares that are not copied, with the time of the next attempt."""
        self.unclaimed: dict[TopicPartition, bool] = {}
        """Shares that are read, and whose position is to be committed because the group or the copy's own topic does
        not have it. True: nothing was copied of them before."""
        self.unread: dict[TopicPartition, OffsetAndMetadata] = {}
        """Of shares in trouble: positions that are to be committed for the same reason."""
        self._compared: set[TopicPartition] = set()
        """Shares in trouble whose position both places have. The copy's own topic is not read for each of their
        attempts."""
        self.others: dict[TopicPartition, int] = {}
        """Positions of shares that this process does not read, when they were last looked up."""
        self.sources: dict[TopicPartition, TopicPartition] = {}
        """Share -> partition of the source, of the whole copy."""
        self.target_ids: dict[TopicPartition, TargetIds] = {}
        """Of each share's topics, when the position was read."""
        self.counts: dict[TopicPartition, PartitionCount] = {}
        self._admitting: asyncio.Task[None] | None = None
        self._tenures: Counter[TopicPartition] = Counter()
        """How often a share has begun or ended, or has lost its position. A position that was read before the last such
        event may be older than what was copied since, here or by another process."""
        self._pending_since: dict[TopicPartition, int] = {}
        self._waits_since = _NEVER
        """When the shares began to wait for one whose position cannot be read."""

    async def close(self) -> None:
        await supervision.end(self._admitting)

    # --- what there is --------------------------------------------------------------------------------------------

    def map(self, wanted: Iterable[Wanted]) -> set[TopicPartition]:
        """Adds the shares of these topics. Returns the new ones."""
        before = set(self.sources)
        for each in wanted:
            for number in range(each.partitions):
                share = TopicPartition(self._topics.share_topic(each), PartitionIndex(number))
                self.sources[share] = TopicPartition(each.source, PartitionIndex(number))
            self._clients.reading.follow([each.source])
        new = set(self.sources) - before
        self.pending |= new & self.owned
        return new

    def subscribe(self) -> None:
        """Joins the group for the topics that there are."""
        topics = sorted({share.topic for share in self.sources})
        if topics:
            self._clients.group.subscribe(topics, on_assigned=self.assigned, on_revoked=self.revoked)

    def reading(self, share: TopicPartition) -> Reading | None:
        source = self.sources.get(share)
        return None if source is None else self._reader.readings.get(source)

    def readings(self) -> dict[TopicPartition, Reading]:
        """Of the owned shares that are read, in order."""
        return {share: reading for share in sorted(self.owned) if (reading := self.reading(share)) is not None}

    def writing_to(self, partition: TopicPartition) -> list[TopicPartition]:
        """The owned shares whose records go to a partition of the target."""
        if partition in self.owned:
            return [partition]
        return [share for share in sorted(self.owned)
                if share in self.sources and self._topics.data_topic(share.topic) == partition.topic]

    def copied(self) -> dict[TopicPartition, Copied]:
        """By partition of the source: up to where the owned shares are copied."""
        return {
            reading.partition: Copied(reading.partition, share, reading.position)
            for share, reading in self.readings().items() if share not in self.unclaimed}

    @property
    def settled(self) -> bool:
        """Whether each owned share is read or in trouble."""
        return self._admitting is None and not self.pending

    @property
    def awaited(self) -> set[TopicPartition]:
        """Owned shares that will be read in a moment."""
        return {share for share in self.pending & self.owned if share not in self.troubles}

    # --- the group ------------------------------------------------------------------------------------------------

    def assigned(self, shares: list[TopicPartition]) -> None:
        self._clients.group.pause(*shares)
        for share in shares:
            self._clients.group.seek(share, 0)  # so that the consumer looks no position up
        self._tenures.update(shares)
        self.owned.update(shares)
        self.pending.update(shares)
        log.info("assigned: %s", listed(shares))

    def revoked(self, shares: list[TopicPartition]) -> None:
        """Runs between two transactions, so nothing is under way."""
        self._tenures.update(shares)
        self.owned.difference_update(shares)
        for share in shares:
            self._forget(share)
        log.info("given up: %s", listed(shares))

    def _forget(self, share: TopicPartition) -> None:
        self.pending.discard(share)
        self.troubles.pop(share, None)
        self.unclaimed.pop(share, None)
        self.unread.pop(share, None)
        self._compared.discard(share)
        if self._groups is not None:
            self._groups.forget(share)
        source = self.sources.get(share)
        if source is not None:
            self._reader.drop(source)

    def read_positions_again(self) -> None:
        self._tenures.update(self.owned)
        for share in self.owned:
            source = self.sources.get(share)
            if source is not None and source in self._reader.readings:
                self._reader.drop(source)
                self.pending.add(share)
        self.unclaimed.clear()
        self._compared.clear()

    def save_again(self) -> None:
        """The copy's own topic was made again, and lacks positions: also those that are just being read."""
        self._tenures.update(self.owned)
        for share in self.readings():
            self.unclaimed.setdefault(share, False)
        self.pending.update(self.owned & self.troubles.keys())
        self._compared.clear()

    def has_former(self, target_ids: Mapping[str, str]) -> bool:
        """Whether a topic of the target was deleted and made again since its position was read. `target_ids`: by name,
        as they are now."""
        return any(
            known and target_ids.get(topic, known) != known for share, ids in self.target_ids.items()
            for topic, known in zip((share.topic, self._topics.data_topic(share.topic)), ids, strict=True)
            if self.reading(share) is not None)

    def admit_soon(self) -> None:
        now = self._clients.reading.now()
        for share, (_, again) in list(self.troubles.items()):
            if self._settings.follow and again <= now and share in self.owned:
                self.pending.add(share)
        self.pending = {each for each in self.pending if each in self.sources}
        self._pending_since = {each: self._pending_since.get(each, now) for each in self.pending}
        if self.pending and self._admitting is None:
            self._admitting = supervision.once(
                self._admit(sorted(self.pending)), "copy-positions", expected=(HapaxError,))
            self._admitting.add_done_callback(self._admitted)

    def _admitted(self, done: asyncio.Task[None]) -> None:
        self._admitting = None
        self._news()

    async def _admit(self, shares: list[TopicPartition]) -> None:
        """Reads the positions of owned shares, and begins to read the source there. What fails is tried again.

        All of them begin together: a cut knows nothing of a partition that is not read yet, and would divide the
        transactions that have written to it too."""
        tenures, began = {share: self._tenures[share] for share in shares}, self._clients.reading.now()
        refuses = Kind.TARGET_REFUSES
        try:
            committed = await self._clients.group.committed(shares)
            saved = await self._read_saved(shares, committed)
            ids = await self._target_ids(shares)
            refuses = Kind.SOURCE_REFUSES
            topics = await self._clients.reading.existing({self.sources[each].topic for each in shares})
        except FatalError as error:
            for share in self.pending.intersection(shares) & self.owned:
                self.put_in_trouble(share, Trouble(refuses, f"{name_of(self.sources[share])}: {error}"))
            return
        except HapaxError as error:
            log.warning("positions could not be read, next attempt follows: %s", error)
            await asyncio.sleep(_PAUSE_S)
            return
        positions = None if saved is None else saved.positions
        known = {share: self._known(share, committed, positions, ids.get(share)) for share in shares}
        places = asyncio.Semaphore(_LOOK_UPS)

        async def beginning(share: TopicPartition) -> _Start | None:
            """None: it is not known yet."""
            if known[share].chosen is Chosen.HALF:
                return self._stopped(share, self._half_made_again(share))
            if share not in ids and self.sources[share].topic in topics:
                log.warning("%s: the target does not show its topic, next attempt follows", name_of(share))
                return None
            async with places:
                try:
                    return await self._look_up(share, known[share], topics.get(self.sources[share].topic))
                except (RetriableError, TimeoutError) as error:
                    log.warning(
                        "%s: the position could not be read, next attempt follows: %s", name_of(share),
                        f"no answer for {_LOOK_UP_S:g} s" if isinstance(error, TimeoutError) else error)
                    return None
                except HapaxError as error:
                    return self._stopped(
                        share, Trouble(Kind.SOURCE_REFUSES, f"{name_of(self.sources[share])}: {error}"))

        found = dict(zip(shares, await asyncio.gather(*map(beginning, shares)), strict=True))
        await self._load_groups(found)
        if any(self._tenures[share] != tenure for share, tenure in tenures.items()):
            return  # another process may have had a share meanwhile, and have moved its position
        waits = None in found.values()
        if not waits:
            self._waits_since = _NEVER
        elif self._waits_since == _NEVER:
            self._waits_since = began
        if not waits or self._clients.reading.now() - self._waits_since >= _TOGETHER_MS:
            for share, start in found.items():
                if start is not None and share in self.owned and share in self.pending:
                    self.target_ids[share] = ids.get(share, TargetIds(""))
                    start.begin()
                    position = known[share].position
                    if not start.reads and known[share].unclaimed and position is not None:
                        self.unread[share] = position
                    elif not start.reads and (saved is None or saved.hidden is None):
                        self._compared.add(share)
        if waits:
            self._news()  # the others begin now
            await asyncio.sleep(_PAUSE_S)

    async def _read_saved(
        self, shares: Iterable[TopicPartition], committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Saved | None:
        """None: they are not needed. Raises HapaxError."""
        missing = any(share not in committed for share in shares)
        if not missing and all(share in self._compared for share in shares):
            return None
        found = await self._saved.read()
        if found.hidden is not None and missing:
            raise found.hidden
        return found

    def _known(
        self, share: TopicPartition, committed: Mapping[TopicPartition, OffsetAndMetadata],
        saved: Mapping[TopicPartition, OffsetAndMetadata] | None, ids: TargetIds | None,
    ) -> Known:
        """`saved`: None: not read. `ids`: None: the target does not show the share's topics."""
        group, own = committed.get(share), None if saved is None else saved.get(share)
        if ids is None:
            return Known(Chosen.NONE if group is None else Chosen.GROUP, group, unclaimed=False)
        chosen = choose(None if group is None else group[:2], None if own is None else own[:2], *ids)
        if chosen is Chosen.SAVED and own is not None:
            log.warning(
                "%s: group %r %s, which is put back: %d", name_of(share), self._settings.group,
                "has lost its position" if group is None else
                f"has gone back to an earlier position ({group.offset}) than topic {self._saved.topic!r} has",
                own.offset)
        elif chosen is Chosen.NONE and group is not None:
            log.warning(
                "%s was deleted and made again on the target, so it is copied from the beginning", name_of(share))
        position = {Chosen.GROUP: group, Chosen.SAVED: own}.get(chosen)
        differs = position is None or group != position or (saved is not None and own != position)
        former = chosen is Chosen.NONE and any(
            is_of_former(*each[:2], ids.share) for place in (committed, saved or {}) for other, each in place.items()
            if other == share or (self._settings.by_key and other.topic == share.topic))
        return Known(chosen, position, differs and (position is None or is_of_a_copy(*position[:2])), former)

    async def _load_groups(self, found: dict[TopicPartition, _Start | None]) -> None:
        """Reads once, for all shares that are to be read, what was copied where. A share of which that cannot be known
        yet becomes None in `found`."""
        if self._groups is None:
            return
        reads = {share for share, start in found.items() if start is not None and start.reads}
        try:
            known = await self._groups.load(reads)
        except FatalError as error:
            found.update({share: self._stopped(share, Trouble(
                Kind.TARGET_REFUSES, f"{name_of(self.sources[share])}: {error}")) for share in reads})
            return
        except HapaxError as error:
            log.warning("where records were copied to could not be read, next attempt follows: %s", error)
            known = set()
        found.update(dict.fromkeys(reads - known))

    async def _target_ids(self, shares: Iterable[TopicPartition]) -> dict[TopicPartition, TargetIds]:
        """Of the shares whose topics the target shows. A node may not have heard of one that was just created, and one
        that was deleted is made again in a moment: a position without their ids would go on in a new topic as if it was
        the former one. Raises HapaxError."""
        topics = {share: (share.topic, self._topics.data_topic(share.topic)) for share in shares}
        ids = {each.name: id_of(each.topic_id) for each in await self._clients.target.list_topics(
            {name for names in topics.values() for name in names})}
        return {
            share: TargetIds(ids.get(own, ""), ids.get(data, "") if self._settings.by_key else "")
            for share, (own, data) in topics.items() if own in ids and data in ids}

    def _half_made_again(self, share: TopicPartition) -> Trouble:
        data = self._topics.data_topic(share.topic)
        return Trouble(
            Kind.TARGET_MADE_AGAIN,
            f"{name_of(self.sources[share])}: of the topics {data!r}, which has the records, and {share.topic!r}, which"
            " stands for the source's, one was deleted and made again on the target. So it does not have what was"
            " copied, or would have it twice. To copy from the beginning, end the copy, delete both topics on the"
            " target, and start it again")

    def _stopped(self, share: TopicPartition, trouble: Trouble) -> _Start:
        return _Start(partial(self.put_in_trouble, share, trouble), reads=False)

    async def _look_up(self, share: TopicPartition, known: Known, topic: Topic | None) -> _Start:
        """Raises HapaxError, TimeoutError."""
        source, committed = self.sources[share], known.position
        if topic is None or source.partition not in topic.partitions:
            return self._stopped(share, Trouble(
                Kind.GONE, f"{name_of(source)}: the source does not have it any more. What was copied stays in the"
                " target; if the topic is made again, delete it in the target to copy the new one"))
        if topic.partitions[source.partition].node_id < 0:
            raise from_code(ErrorCode.LEADER_NOT_AVAILABLE, f"{name_of(source)} in the source")
        async with asyncio.timeout(_LOOK_UP_S):
            offsets = (await self._clients.source.listed_offsets([source]))[source]
            if committed is None:
                offset, epoch = offsets.first, NO_EPOCH
                trouble = await self._unused(share, name_of(source), former=known.former)
            else:
                offset = committed.offset
                epoch, trouble = await self._judged(share, committed, topic, offsets, known.chosen)
        skips = trouble is not None and trouble.go_on_at > offset and self._settings.skip_lost
        if trouble is not None and not skips:
            return self._stopped(share, trouble)
        return _Start(partial(
            self._begin, share, offset, epoch, trouble, topic, offsets, unclaimed=known.unclaimed,
            first=committed is None), reads=True)

    def _begin(
        self, share: TopicPartition, offset: int, epoch: int, skipped: Trouble | None, topic: Topic,
        offsets: PartitionOffsets, *, unclaimed: bool, first: bool,
    ) -> None:
        """`offset`, `epoch`: of the position. `skipped`: what is left out. `first`: nothing was copied before."""
        if skipped is not None:
            self.count(share).lose(skipped.go_on_at - offset)
            log.error("%s (left out, as --on-lost skip says)", skipped.message)
            offset = skipped.go_on_at
        self.pending.discard(share)
        self.troubles.pop(share, None)
        self.unread.pop(share, None)
        if unclaimed:
            self.unclaimed[share] = first
        reading = self._reader.add(self.sources[share], offset, topic.topic_id, epoch)
        reading.caught_up_ms = self._clients.reading.now()
        self.count(share).position = offset
        reading.high_watermark, reading.last_stable = offsets.high_watermark, offsets.last_stable

    async def _judged(
        self, share: TopicPartition, committed: OffsetAndMetadata, topic: Topic, offsets: PartitionOffsets,
        chosen: Chosen = Chosen.GROUP,
    ) -> tuple[int, Trouble | None]:
        """(leader epoch of the position, what is wrong with it). `topic`, `offsets`: the source as it is now."""
        source = self.sources[share]
        try:
            position = Position.read(committed.offset, committed.metadata)
        except ValueError as error:
            where = (
                f"topic {self._saved.topic!r} on the target has a position for it, but {error}. Copy with the version"
                " of hapax that has written it, or choose another --name and target topics of its own"
                if chosen is Chosen.SAVED else
                f"group {self._settings.group!r} on the target has a committed offset, but {error}. Choose another"
                " --name, or delete the group's offsets")
            return NO_EPOCH, Trouble(Kind.NOT_OURS, f"{name_of(share)}: {where}")
        ends = await epoch_ends(
            self._clients.reading, {source: position.epoch} if position.epoch >= 0 else {},
            self._clients.reading.options["default.api.timeout.ms"])
        now = Source(
            self._clients.reading.cluster_id or "", str(topic.topic_id) if topic.topic_id.int else "", offsets.first,
            offsets.high_watermark, ends.get(source, -1))
        return position.epoch, judge(name_of(source), position, source.topic, now)

    async def copied_by_others(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether the group's positions of shares that this process does not read have reached their ends. One that
        does not fit the source is a trouble of its share, also before the group has assigned it. Raises HapaxError."""
        committed = await self._clients.group.committed(list(ends))
        self.others = {share: position.offset for share, position in committed.items()}
        if not all(share in committed and committed[share].offset >= end for share, end in ends.items()):
            return False
        topics = await self._clients.reading.existing({self.sources[share].topic for share in ends})
        for share in ends:
            source = self.sources[share]
            topic = topics.get(source.topic)
            if topic is None or source.partition not in topic.partitions:
                continue  # it is gone, and everything of it was copied
            offsets = (await self._clients.source.listed_offsets([source]))[source]
            _, trouble = await self._judged(share, committed[share], topic, offsets)
            if trouble is not None and trouble.kind is not Kind.LOST:
                self.put_in_trouble(share, trouble)
        return True

    async def _unused(self, share: TopicPartition, name: str, *, former: bool) -> Trouble | None:
        """A partition of the target without a position must hold nothing: who knows what of the source it has. With
        by_key its records are spread over partitions that may hold others' too, so only the position tells. `former`:
        there is a position of a topic of this name with another id. That topic was deleted, or the target was restored
        from a backup: then the present one has what was copied, though both have new ids. Raises HapaxError."""
        by_key = self._settings.by_key
        if (self._settings.into_existing or by_key) and not former:
            return None
        held = await self._data_partitions(share) if by_key else [share]
        ends = await self._clients.target.listed_offsets(held)
        full = next((each for each in held if ends[each].high_watermark), None)
        if full is None or (by_key and await self._has_begun(share)):
            return None
        where = f"{name_of(full)} on the target already holds offsets up to {ends[full].high_watermark}"
        if former and (self._settings.into_existing or by_key):
            return Trouble(
                Kind.NOT_EMPTY,
                f"{name}: {where}, and the positions of this copy are of a former topic of that name: the target was"
                " restored from a backup, or others have written since the topic was made again. Copying from the"
                " beginning could double what it has. Choose another --name and --prefix, or delete the topic on the"
                f" target{f' and {share.topic!r}' if by_key else ''}")
        return Trouble(
            Kind.NOT_EMPTY,
            f"{name}: {where}, and neither group"
            f" {self._settings.group!r} nor topic {self._saved.topic!r} has a position for it: it was not filled by"
            " this copy, or both were deleted. Copying would double what it has. Delete the topic on the target, choose"
            " another --prefix, or give --into-existing to copy everything behind what is there")

    async def _data_partitions(self, share: TopicPartition) -> list[TopicPartition]:
        """Raises HapaxError; RetriableError where the node that answers has not heard of the topic."""
        data = self._topics.data_topic(share.topic)
        listed = await self._clients.target.list_topics([data])
        if not listed:
            raise RetriableError(
                f"the target does not show topic {data!r}", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return [TopicPartition(data, PartitionIndex(each.partition)) for topic in listed for each in topic.partitions]

    async def _has_begun(self, share: TopicPartition) -> bool:
        """By key: whether this copy has filled the present topic. A position of one of its shares is committed before
        their first record is written."""
        shares = [each for each in self.sources if each.topic == share.topic]
        ids = (await self._target_ids([share])).get(share)
        committed = await self._clients.group.committed(shares)
        return ids is not None and any(
            is_of_a_copy(*each[:2]) and Position.read(*each[:2]).data_id == ids.data for each in committed.values())

    def put_in_trouble(self, share: TopicPartition, trouble: Trouble) -> None:
        former = self.troubles.get(share)
        self.pending.discard(share)
        self._compared.discard(share)
        self.troubles[share] = trouble, self._clients.reading.now() + _AGAIN_MS
        self._reader.drop(self.sources[share])
        if former is None or former[0].message != trouble.message:
            log.error("%s", trouble.message)

    def count(self, share: TopicPartition) -> PartitionCount:
        found = self.counts.get(share)
        if found is None:
            found = self.counts[share] = PartitionCount(self._metrics, self.sources[share])
        return found

    def waiting(self) -> set[TopicPartition]:
        """Shares whose positions are to be read, and could not be for a while. Their lag is not known."""
        long_ago = self._clients.reading.now() - _WAITING_MS
        return {share for share, since in self._pending_since.items() if share in self.pending and since <= long_ago}

    def lags(self) -> Iterable[tuple[TopicPartition, int, float]]:
        """Partition of the source, its lag in offsets, and in seconds."""
        now = self._clients.reading.now()
        for reading in self._reader.readings.values():
            behind = max(reading.high_watermark - reading.position, 0) if reading.high_watermark >= 0 else 0
            yield reading.partition, behind, 0.0 if reading.caught_up_ms == now else (now - reading.caught_up_ms) / 1000

    def state(self) -> State:
        kinds = Counter(trouble.kind.value for trouble, _ in self.troubles.values())
        return State(len(self.owned), self._reader.bytes, kinds)


def name_of(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def listed(shares: Iterable[TopicPartition]) -> str:
    names = sorted(name_of(each) for each in shares)
    return ", ".join(names[:8]) + (f", … ({len(names)})" if len(names) > 8 else "")

"""The admin client's calls for consumer groups: their offsets, their lag, and resets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from hapax.client.cluster import COORDINATORS, ClusterClient
from hapax.client.coordination import OffsetAndMetadata, Offsets, encode_offsets
from hapax.client.errors import HapaxError, RetriableError, from_code
from hapax.client.membership import Identity
from hapax.client.offsets import OffsetAdmin
from hapax.core.errors import ErrorCode
from hapax.core.group.subscription import PROTOCOL_TYPE
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime.ports import RpcError
from hapax.wire import messages
from hapax.wire.reasons import reason_of

_SERVICE: Final = "/hapax.v1.Groups/"
_DESCRIBE_SHARDS: Final = "/hapax.v1.Shards/DescribeShards"
_LOOK_AGAIN: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_BY_ID: Final = 10
"""The first version of OffsetCommit that names topics by id."""
_BY_EPOCH: Final = 9
_BY_INSTANCE: Final = 7
"""The first versions of OffsetCommit for members of the consumer protocol, and for static members."""
_BATCHED_LEAVE: Final = 3
"""The first version of LeaveGroup that names static members."""
_STABLE: Final = 7
"""The first version of OffsetFetch that tells of open transactions."""
_OFFSETS_OF_GROUPS: Final = 8
"""The first version of OffsetFetch that names several groups."""
_OFFSETS_BY_NAME: Final = 9
"""Its last version that names topics by name."""
_FRESH_MS: Final = 5_000
"""Age of offsets up to which others are compared with them."""
NO_MEMBER: Final = Identity(-1, "", None)
_COUNTED_AT_ONCE: Final = 32 << 20
"""Bytes of logs that all brokers together read in one round of counting."""


class GroupInfo(NamedTuple):
    group: str
    committed: int
    """Partitions with a committed offset."""
    pending: int
    """Partitions with an offset in an open transaction."""
    members: int
    protocol: str = ""
    """`classic` or `consumer`; `simple` for a group that only has offsets."""
    state: str = ""
    """The state as Kafka's ListGroups names it, for example `Stable`."""


class GroupMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    epoch: int
    """In a classic group the generation of the group."""
    assigned: tuple[TopicPartition, ...]
    """In a consumer group also the partitions that it is about to give up."""


class GroupDescription(NamedTuple):
    group: str
    protocol: str
    """The same values as in GroupInfo."""
    state: str
    shard: int
    members: tuple[GroupMember, ...]
    lag: Mapping[TopicPartition, Lag] | None = None
    """In each partition with a committed offset. None if it was not asked for."""


class GroupOffset(NamedTuple):
    offset: int
    """Offset of the next record to read; -1 if none is committed."""
    metadata: str
    leader_epoch: int
    committed_ms: int
    pending: bool
    """Whether an open transaction will commit another offset."""


class ShardInfo(NamedTuple):
    kind: str
    """`txn` or `group`."""
    shard: int
    owner: int
    epoch: int
    serving: bool
    loaded_records: int
    entries: int
    """Transactional ids or groups in the shard."""


class Lag(NamedTuple):
    """A group's lag in one partition."""

    committed: int
    first: int
    last_stable: int
    high_watermark: int
    records: int
    """Offsets up to the high watermark that are in the log, including markers and aborted records."""
    readable: int | None
    """Records up to the last stable offset that a read_committed consumer will receive: without markers and aborted
    records. None if they were not counted."""
    counted_to: int
    """Records below this offset were counted. It is below `last_stable` if the limit of bytes was reached."""


class GroupAdmin(OffsetAdmin):
    """The part of `Admin` for groups. Only `alter_group_offsets` also works with other Kafka clusters."""

    async def list_groups(self, prefix: str = "") -> list[GroupInfo]:
        """All groups with members or offsets, ordered by name. Raises RetriableError while a shard is taken over."""
        from hapax.rpc.gen.hapax.v1 import groups_pb2 as pb

        request = pb.ListGroupsRequest(prefix=prefix).SerializeToString()

        async def attempt() -> list[GroupInfo]:
            found: dict[str, GroupInfo] = {}  # two coordinators may list a shard that moves
            for _, payload in await self._of_coordinators(_SERVICE + "ListGroups", request):
                answer = pb.ListGroupsResponse.FromString(payload)
                if answer.error:
                    raise from_code(answer.error, "listing groups", answer.reason)
                found |= {
                    g.group_id: GroupInfo(
                        g.group_id, g.committed, g.pending, g.members, g.protocol, g.state) for g in answer.groups}
            return sorted(found.values())

        return await self._cluster.within(self._timeout, "listing groups", attempt)

    async def describe_group(self, group: str, *, count_bytes: int | None = None) -> GroupDescription:
        """`count_bytes`: also the group's lag, as `group_lag` finds it; 0: in offsets only. Raises FatalError with
        GROUP_ID_NOT_FOUND if there is no such group."""
        answer = await self._describe(group)
        described = GroupDescription(group, answer.protocol, answer.state, answer.shard, tuple(
            GroupMember(
                each.member_id, each.instance_id or None, each.client_id, each.client_host, each.epoch,
                tuple(sorted(_partition(one) for one in each.assigned)))
            for each in answer.described))
        if count_bytes is None:
            return described
        offsets = {_partition(each): each.offset for each in answer.offsets if each.offset >= 0}
        return described._replace(lag=await self._lag(offsets, count_bytes))

    async def _describe(self, group: str) -> Any:
        from hapax.rpc.gen.hapax.v1 import groups_pb2 as pb

        return await self._of_group(
            group, "DescribeGroup", pb.DescribeGroupRequest(group_id=group).SerializeToString(),
            pb.DescribeGroupResponse.FromString, "describing")

    async def group_offsets(self, group: str) -> dict[TopicPartition, GroupOffset]:
        """Raises FatalError with GROUP_ID_NOT_FOUND if there is no such group."""
        answer = await self._describe(group)
        return {
            _partition(each): GroupOffset(
                each.offset, each.metadata, each.leader_epoch, each.committed_ms, each.pending)
            for each in answer.offsets
        }

    async def alter_group_offsets(self, group: str, offsets: Offsets) -> None:
        """Commits offsets for a group without members. Raises HapaxError."""
        if offsets:
            await self._cluster.within(
                self._timeout, "committing offsets", lambda: commit_once(self._cluster, group, offsets))

    async def group_ids(self) -> list[str]:
        """The groups of any Kafka cluster, in order: those with members of either protocol, and those that only have
        offsets. Raises HapaxError rather than leave out those of a coordinator that does not answer."""
        Message = messages.ListGroupsRequest

        async def attempt() -> list[str]:
            answers = await asyncio.gather(*(self._groups_of(node, Message()) for node in sorted(self._cluster.nodes)))
            return sorted({each.group_id for answer in answers for each in answer})

        return await self._cluster.within(self._timeout, "listing groups", attempt)

    async def _groups_of(self, node: int, message: Any) -> list[Any]:
        peer = await self._cluster.peer(node)
        answer = await peer.call(message, version=peer.capabilities.pick(type(message), at_most=4))
        if answer.error_code:
            raise from_code(answer.error_code, f"listing the groups of node {node}")
        return [each for each in answer.groups if each.protocol_type in ("", PROTOCOL_TYPE)]

    async def committed_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """All committed offsets of a group of any Kafka cluster, without those of open transactions. Empty if there is
        no such group. Raises HapaxError."""
        return await self._cluster.within(
            self._timeout, "committed offsets", lambda: self._committed_once(group, stable=False))

    async def advance_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_ms: int | None = None
    ) -> int:
        """Commits those offsets that are higher than the group's own, for a group without members. Returns their
        number. Before each attempt the group's own are read again, and open transactions that will commit some are
        waited for (Kafka 2.5 or newer): the group may go on by itself. Kafka has no call that compares and writes in
        one step, so an attempt whose reading took long is not used. `timeout_ms`: instead of default.api.timeout.ms.
        Raises HapaxError."""
        limit = self._timeout if timeout_ms is None else timeout_ms

        async def attempt() -> int:
            began = self._cluster.now()
            own = await self._committed_once(group, stable=True)
            moved = {each: new for each, new in offsets.items() if each not in own or own[each].offset < new.offset}
            if moved and self._cluster.now() - began > _FRESH_MS:
                raise RetriableError(
                    f"reading the offsets of group {group!r} took more than {_FRESH_MS} ms",
                    code=ErrorCode.REQUEST_TIMED_OUT)
            if moved:
                await commit_once(self._cluster, group, moved)
            return len(moved)

        return await self._cluster.within(limit, "advancing offsets", attempt) if offsets else 0

    async def _committed_once(self, group: str, *, stable: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """`stable`: raises RetriableError where an open transaction will commit an offset."""
        Message = messages.OffsetFetchRequest
        peer = await self._cluster.coordinator_peer("group", group)
        version = peer.capabilities.pick(Message, at_most=_OFFSETS_BY_NAME, at_least=_STABLE if stable else 2)
        if version >= _OFFSETS_OF_GROUPS:
            wanted = Message.OffsetFetchRequestGroup(group_id=group, member_id=None, member_epoch=-1, topics=None)
            answer = (await peer.call(
                Message(require_stable=stable, groups=[wanted]), version=version)).groups[0]
        else:
            answer = await peer.call(
                Message(group_id=group, require_stable=stable, topics=None), version=version)
        what = f"committed offsets of group {group!r}"
        check_group(self._cluster, group, answer.error_code, what)
        found = {}
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    raise from_code(each.error_code, what)
                if not each.error_code and each.committed_offset >= 0:
                    found[TopicPartition(topic.name, PartitionIndex(each.partition_index))] = OffsetAndMetadata(
                        each.committed_offset, each.metadata or "", each.committed_leader_epoch)
        return found

    async def remove_group_member(self, group: str, member_id: str, instance_id: str) -> None:
        """Removes a static member from a group of the classic protocol (KIP-345), so that others get its partitions
        before its session ends. A member that has taken its place since keeps them. Raises HapaxError."""
        Message = messages.LeaveGroupRequest
        member = Message.MemberIdentity(member_id=member_id, group_instance_id=instance_id, reason="it has ended")

        async def attempt() -> None:
            peer = await self._cluster.coordinator_peer("group", group)
            answer = await peer.call(
                Message(group_id=group, member_id="", members=[member]),
                version=peer.capabilities.pick(Message, at_least=_BATCHED_LEAVE))
            code = answer.error_code or next((each.error_code for each in answer.members), 0)
            if code in _LOOK_AGAIN:
                self._cluster.forget_coordinator("group", group)
            if code not in (0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                raise from_code(code, f"removing a member of group {group!r}")

        await self._cluster.within(self._timeout, "removing a member", attempt)

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> int:
        """Deletes a group's offsets; with None all of them, and so the group. Returns the number of deleted offsets.
        Raises RetriableError with UNSTABLE_OFFSET_COMMIT, without a retry, if an open transaction will commit one of
        them."""
        from hapax.rpc.gen.hapax.v1 import groups_pb2 as pb

        chosen = [pb.OffsetName(topic=each.topic, partition=each.partition) for each in partitions or ()]
        answer = await self._of_group(
            group, "DeleteOffsets",
            pb.DeleteOffsetsRequest(group_id=group, all=partitions is None, partitions=chosen).SerializeToString(),
            pb.DeleteOffsetsResponse.FromString, "deleting offsets of", final=ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if answer.error:
            raise from_code(answer.error, f"deleting offsets of group {group!r}", answer.reason)
        return int(answer.deleted)

    async def describe_shards(self, *, partial: bool = False) -> list[ShardInfo]:
        """The shards of all coordinators, as reported by their owners. Raises RetriableError if a coordinator does not
        answer; `partial`: its shards are left out instead."""
        from hapax.rpc.gen.hapax.v1 import groups_pb2 as pb

        async def attempt() -> list[ShardInfo]:
            answers = await self._of_coordinators(
                _DESCRIBE_SHARDS, pb.DescribeShardsRequest().SerializeToString(), partial=partial)
            return sorted(
                ShardInfo(s.kind, s.shard, node, s.epoch, s.serving, s.loaded_records, s.entries)
                for node, payload in answers for s in pb.DescribeShardsResponse.FromString(payload).shards)

        return await self._cluster.within(self._timeout, "describing shards", attempt)

    async def group_lag(
        self, group: str, *, count_bytes: int = 0, topics: Iterable[str] = ()
    ) -> dict[TopicPartition, Lag]:
        """A group's lag in all partitions for which it has committed an offset, or in those of some topics.

        `count_bytes`: approximate bytes of their logs that brokers read to count the records that a read_committed
        consumer will receive; 0: no counting. Partitions that no longer exist are left out.
        """
        wanted = set(topics)
        offsets = {
            partition: found.offset for partition, found in (await self.group_offsets(group)).items()
            if found.offset >= 0 and (not wanted or partition.topic in wanted)
        }
        return await self._lag(offsets, count_bytes)

    async def _lag(self, offsets: Mapping[TopicPartition, int], count_bytes: int) -> dict[TopicPartition, Lag]:
        lags: dict[TopicPartition, Lag] = {}
        starts, readable, left = dict(offsets), dict.fromkeys(offsets, 0), count_bytes
        while starts:
            answers = await self.count_records(starts, min(left, _COUNTED_AT_ONCE))
            for each, (end, count) in answers.items():
                start = min(max(offsets[each], end.first), end.high_watermark)
                readable[each] += count.records
                left -= count.read_bytes
                lags[each] = Lag(
                    offsets[each], end.first, end.last_stable, end.high_watermark, end.high_watermark - start,
                    readable[each] if count_bytes else None, count.counted_to if count_bytes else start)
            starts = {
                each: count.counted_to for each, (end, count) in answers.items()
                if left > 0 and count.counted_to < end.last_stable}
        return dict(sorted(lags.items()))

    async def _of_coordinators(
        self, method: str, request: bytes, *, partial: bool = False
    ) -> list[tuple[int, bytes]]:
        """(node, answer) of all live coordinators; `partial`: of those that answer. Raises RetriableError,
        NotHapaxError, RpcError."""
        addresses, _ = await self._cluster.rpc_addresses(fresh=True)  # a new node may have shards already
        nodes = [node for node in sorted(addresses) if node in COORDINATORS]
        if not nodes and not partial:
            raise from_code(ErrorCode.COORDINATOR_NOT_AVAILABLE, "finding the coordinators")
        seconds = self._options["request.timeout.ms"] / 1000

        async def ask(node: int) -> bytes | None:
            try:
                return await self._cluster.channel(addresses[node]).call(method, request, seconds)
            except RpcError:
                if partial:
                    return None
                raise

        answers = await asyncio.gather(*map(ask, nodes))
        return [(node, answer) for node, answer in zip(nodes, answers, strict=True) if answer is not None]

    async def _of_group(
        self, group: str, method: str, request: bytes, decode: Callable[[bytes], Any], doing: str,
        final: ErrorCode = ErrorCode.NONE,
    ) -> Any:
        """Repeats the call until the answer has no error, or the error `final`, which is returned without a retry."""
        what = f"{doing} group {group!r}"

        async def attempt() -> Any:
            node = await self._cluster.coordinator("group", group)
            address = await self._cluster.rpc_address(node)
            try:
                if address is None:
                    raise from_code(
                        ErrorCode.COORDINATOR_NOT_AVAILABLE, what, f"coordinator {node} is not registered")
                answer = decode(await self._cluster.channel(address).call(
                    _SERVICE + method, request, self._options["request.timeout.ms"] / 1000))
                if answer.error not in (0, final):
                    raise from_code(answer.error, what, answer.reason)
            except RpcError:
                self._cluster.forget_coordinator("group", group)
                raise
            except HapaxError as error:
                if error.code in _LOOK_AGAIN:
                    self._cluster.forget_coordinator("group", group)
                raise
            return answer

        return await self._cluster.within(self._timeout, what, attempt)


async def commit_once(
    cluster: ClusterClient, group: str, offsets: Offsets, topic_ids: Mapping[str, Any] | None = None,
    member: Identity = NO_MEMBER, *, with_epoch: bool = False,
) -> None:
    """Sends one OffsetCommit. `topic_ids`: uuid.UUID by name; if the ids of all topics are known, the request names
    topics by id. `member`: by default the commit belongs to no membership. `with_epoch`: the member uses the consumer
    protocol. Raises HapaxError, PeerError."""
    Message = messages.OffsetCommitRequest
    Partition = Message.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    topics = encode_offsets(offsets, Partition)
    ids = topic_ids or {}
    peer = await cluster.coordinator_peer("group", group)
    at_most = _BY_ID if all(name in ids for name in topics) else _BY_ID - 1
    least = _BY_EPOCH if with_epoch else _BY_INSTANCE if member.instance_id is not None else 0
    version = peer.capabilities.pick(Message, at_most=at_most, at_least=least)
    response = await peer.call(
        Message(
            group_id=group,
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            retention_time_ms=-1,
            topics=[
                Message.OffsetCommitRequestTopic(name=name, topic_id=ids.get(name), partitions=parts)
                for name, parts in topics.items()
            ],
        ),
        version=version,
    )
    names = {topic_id: name for name, topic_id in ids.items()}
    for topic in response.topics:
        name = names.get(topic.topic_id, "") if version >= _BY_ID else topic.name
        for p in topic.partitions:
            if p.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
                cluster.refresh_soon()  # so that the next attempt knows which positions belong to a former topic
            check_group(cluster, group, p.error_code, f"committing {name}-{p.partition_index}", reason_of(response))


def check_group(cluster: ClusterClient, group: str, code: int, what: str, reason: str = "") -> None:
    """Raises HapaxError for an error code. `reason`: the coordinator's. If the coordinator has moved, the next call
    looks it up again."""
    if code:
        if code in _LOOK_AGAIN:
            cluster.forget_coordinator("group", group)
        raise from_code(code, what, reason)


# --- where to put a group ---------------------------------------------------------------------------------------------


class ResetTo(NamedTuple):
    """The target of a reset. Exactly one field is set."""

    earliest: bool = False
    latest: bool = False
    time_ms: int | None = None
    """To the first record at or after this time in ms; to the end if there is none."""
    offset: int | None = None
    shift: int | None = None
    """Move by this many offsets from the committed one."""


_NOTHING: Final = (-1, -1)


class Move(NamedTuple):
    """The change that a reset makes in one partition."""

    partition: TopicPartition
    before: int
    """-1 if nothing is committed."""
    after: int
    before_ms: int = -1
    """When `before` was committed, in ms."""


async def plan_reset(admin: GroupAdmin, group: str, partitions: Iterable[TopicPartition], to: ResetTo) -> list[Move]:
    """The offsets that a reset would commit, never outside the range of the log. Raises HapaxError."""
    wanted = sorted(set(partitions))
    committed = await _committed(admin, group)
    before = {partition: offset for partition, (offset, _) in committed.items()}
    ends = await admin.partition_offsets(wanted)
    aims: Mapping[TopicPartition, int]
    if to.earliest:
        aims = {each: ends[each].first for each in wanted}
    elif to.latest:
        aims = {each: ends[each].high_watermark for each in wanted}
    elif to.time_ms is not None:
        found = await admin.list_offsets(dict.fromkeys(wanted, to.time_ms))
        aims = {each: found[each][0] if found[each][0] >= 0 else ends[each].high_watermark for each in wanted}
    elif to.offset is not None:
        aims = dict.fromkeys(wanted, to.offset)
    else:
        assert to.shift is not None
        aims = {
            each: (before[each] if before.get(each, -1) >= 0 else ends[each].first) + to.shift for each in wanted}
    return [
        Move(each, offset, min(max(aims[each], ends[each].first), ends[each].high_watermark), at_ms)
        for each in wanted for offset, at_ms in [committed.get(each, _NOTHING)]]


async def carry_out_reset(admin: GroupAdmin, group: str, moves: Iterable[Move]) -> None:
    """Raises HapaxError."""
    await admin.alter_group_offsets(group, {each.partition: OffsetAndMetadata(each.after) for each in moves})


async def finish_reset(admin: GroupAdmin, group: str, moves: Iterable[Move]) -> bool:
    """Completes a reset whose earlier attempt has an unknown outcome. Returns False and does nothing if offsets were
    committed since, by the group or by another client. Raises HapaxError."""
    wanted = list(moves)
    now = await _committed(admin, group)
    found = {each: now.get(each.partition, _NOTHING) for each in wanted}
    open_moves = [each for each in wanted if found[each] == (each.before, each.before_ms)]
    if any(found[each][0] != each.after for each in wanted if each not in open_moves):
        return False
    await carry_out_reset(admin, group, open_moves)
    return True


async def _committed(admin: GroupAdmin, group: str) -> dict[TopicPartition, tuple[int, int]]:
    """Partition -> (offset, when it was committed)."""
    try:
        return {each: (found.offset, found.committed_ms) for each, found in (await admin.group_offsets(group)).items()}
    except HapaxError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return {}


def _partition(each: Any) -> TopicPartition:
    return TopicPartition(each.topic, PartitionIndex(each.partition))


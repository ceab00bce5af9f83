"""Fetch (1): reads records.

kafka.protocol decodes the requests of clients; those of followers are decoded by hand. The response is encoded by hand,
because its records are ranges of files that are sent without a copy. Tests compare the encoding with kafka.protocol's,
byte for byte, in every version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from hapax.codec.varint import read_uvarint, uvarint
from hapax.core.access.resources import CLUSTER_ACTION, CLUSTER_NAME, READ_TOPIC
from hapax.core.access.rights import Rights
from hapax.core.errors import ErrorCode
from hapax.core.fetch_sessions import FULL, SESSIONLESS
from hapax.core.types import RegistrationEpoch
from hapax.kafka.needs import Need, checked_by_guard, proves_node, rights_of
from hapax.kafka.quotas import Quotas, told_in_message
from hapax.kafka.table import ApiRow, ApiTable, RawHandler, RequestContext, Role
from hapax.runtime.access import Access
from hapax.runtime.ports import Chunk, FileRange
from hapax.wire import messages
from hapax.wire.internal_writes import proof
from hapax.wire.messages import id_bytes, unknown_tag
from hapax.wire.peer import INTERNAL_WRITE_TAG
from hapax.wire.replica_fetch import (
    ANSWERED_TAG,
    FETCH_VERSION,
    PARTITION,
    REPLICA,
    SYNCED_END_TAG,
    TOP,
)

if TYPE_CHECKING:
    from hapax.core.partition.aborted_index import AbortedTransaction

ROW: Final = ApiRow(
    key=1, name="Fetch", versions=(4, 18), flexible_from=12,
    answered_by=Role.LEADER, elsewhere=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    need=Need(
        "Read Topic each; with a replica id ClusterAction Cluster",
        lambda asking, request: checked_by_guard(request), nodes_pass=True))

FIRST_FLEXIBLE: Final = 12
FIRST_WITH_RACK: Final = 11
FIRST_WITH_TOPIC_IDS: Final = 13
_READ_COMMITTED: Final = 1

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_TOP_7 = struct.Struct(">ihi")
_PARTITION_4 = struct.Struct(">ihqq")
_PARTITION_5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">bbiqb")
_LEADER = struct.Struct(">bbiib")
_I64 = struct.Struct(">q")
_SYNCED_HEAD: Final = b"\1" + uvarint(SYNCED_END_TAG) + b"\x08"
_PROOF_SIZE: Final = len(proof(RegistrationEpoch(0), bytes(16)))
_ANSWERED_HEAD: Final = uvarint(ANSWERED_TAG) + b"\x04"
_LAST_FIELDS: Final = 1 + len(uvarint(INTERNAL_WRITE_TAG)) + 1 + _PROOF_SIZE + len(_ANSWERED_HEAD) + 4
"""Size of the proof and of the number of the last answer, with the end of the preceding field."""


Topic = str | bytes
"""Its name; from version 13 on its id (16 bytes)."""


class FetchPartition(NamedTuple):
    """A partition in a request."""

    topic: Topic
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    """The leader epoch that the client knows; -1: not given."""
    last_fetched_epoch: int
    """The leader epoch of the record before `offset`; -1: not given."""
    synced_end: int = -1
    """From a follower: it has synced all records below this offset."""
    log_start_offset: int = -1
    """From a follower: its log durably begins here."""


class FetchRequest(NamedTuple):
    replica_id: int
    """-1: a consumer. A follower must prove its id (rule 17)."""
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    committed: bool
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[tuple[str | bytes, int]]
    proof: bytes = b""
    """From a node of the cluster: proof of its registration (`internal_writes.read_proof`)."""
    answered: int | None = None
    """From a follower: the number of the last answer that it has read; -1: none; None: not given."""
    rack: str = ""
    """From a consumer: where it runs."""
    refused: tuple[FetchedPartition, ...] = ()
    """Answers for partitions that the client may not read, which are no longer among `partitions`."""
    unreadable: Callable[[Iterable[Topic]], Collection[Topic]] | None = None
    """Which topics the client may not read by now: a request that waited is judged again (rule 24). None: it may read
    everything."""
    throttled: bool = False
    """The client has exceeded its quota, or its login has ended meanwhile: it is answered at once, without records."""


class FetchedPartition(NamedTuple):
    """A partition in the response."""

    topic: str | bytes
    partition: int
    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    """None with read_uncommitted."""
    records: FileRange | None = None
    diverging: tuple[int, int] | None = None
    """(epoch, its end offset): from there on, the client's log differs from this one."""
    leader: tuple[int, int] | None = None
    """(node id, leader epoch) of the leader, where the client asked another node."""
    preferred: int = -1
    """The node from which the consumer should read instead (KIP-392)."""


class FetchResult(NamedTuple):
    error: int
    session_id: int
    partitions: Sequence[FetchedPartition]
    """The partitions of a topic are adjacent."""


class PartitionReader(Protocol):
    def fetch(self, ctx: RequestContext, request: FetchRequest) -> object:
        """The response as chunks (`encode_response`), or DEFERRED."""
        ...

    def may_continue(self, session_id: int, rights: object, may_read: Callable[[Topic], bool | None]) -> bool:
        """Whether a client may read every topic of this session. Remembered for the `rights`, which never change,
        unless `may_read` knows no such topic (None): it may become one. True also where there is no such session."""
        ...


def register(table: ApiTable, reader: PartitionReader) -> None:
    def handle(ctx: RequestContext, body: memoryview) -> object:
        version = ctx.api_version
        request = decode_follower(body) if version == FETCH_VERSION else None
        request = request or decoded(ctx.api.decode(body, version), version)
        return reader.fetch(ctx, limited(table.quotas, ctx, request) if table.quotas.enforced else request)

    def guard(access: Access) -> RawHandler:
        def guarded(ctx: RequestContext, body: memoryview) -> object:
            version = ctx.api_version
            request = decode_follower(body) if version == FETCH_VERSION else None
            request = request or decoded(ctx.api.decode(body, version), version)
            if table.quotas.enforced:
                request = limited(table.quotas, ctx, request)
            return _checked(access, reader, ctx, request)

        return guarded

    table.on_raw(ROW, handle, guard)


def limited(quotas: Quotas, ctx: RequestContext, request: FetchRequest) -> FetchRequest:
    """What the client's quota leaves of the request. A replica that shows no live node's proof gets no records."""
    if request.proof:
        quotas.notice_node(ctx, request.proof)
    if request.replica_id >= 0:
        ctx.uncharged = True
        return request
    limit = quotas.fetch(ctx)
    if limit is None:
        return request
    wait_ms, most_bytes = limit
    return request._replace(max_bytes=min(request.max_bytes, most_bytes), throttled=wait_ms > 0)


def throttled(version: int, chunks: tuple[Chunk, ...] | Any, throttle_ms: int) -> Any:
    """Every version begins with the time. A node that leads nothing answers with a message."""
    if type(chunks) is not tuple:
        return told_in_message(version, chunks, throttle_ms)
    head = chunks[0]
    assert isinstance(head, bytearray)
    _I32.pack_into(head, 0, throttle_ms)
    return chunks


def _checked(access: Access, reader: PartitionReader, ctx: RequestContext, request: FetchRequest) -> object:
    """A session holds only topics that its client may read. Where that ends, so does the session: the client then asks
    for everything without one, and gets an error for each partition that it may not read."""
    if request.proof and proves_node(access, ctx, request.proof):
        return reader.fetch(ctx, request)
    rights = rights_of(access, ctx)
    if request.replica_id >= 0:
        if rights.may_in_cluster(CLUSTER_ACTION):
            return reader.fetch(ctx, request)
        access.note_refusal(rights, CLUSTER_ACTION, CLUSTER_NAME, ROW.name)
        return _answered_at_once(ctx, 0, [_no_right(partition) for partition in request.partitions])

    unreadable = partial(_unreadable, access, ctx)
    hidden = unreadable(partition.topic for partition in request.partitions)
    for topic in hidden:
        name = access.name_of_topic(topic) if isinstance(topic, bytes) else topic
        access.note_refusal(rights, READ_TOPIC, name or "", ROW.name)
    request = request._replace(unreadable=unreadable)
    if request.session_epoch not in (FULL, SESSIONLESS):
        if hidden or not reader.may_continue(
            request.session_id, rights, lambda topic: _may_read(access, rights, topic)
        ):
            return _answered_at_once(ctx, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    elif hidden:
        request = without(request, hidden)
        for answer in request.refused:
            ctx.api.failed(answer.error)
        if not request.partitions:
            return encode_response(ctx.api_version, FetchResult(0, 0, request.refused))
        request = request._replace(session_epoch=SESSIONLESS)
    return reader.fetch(ctx, request)


def _may_read(access: Access, rights: Rights, topic: Topic) -> bool | None:
    """None: this node knows no topic with that id, and has nothing to give of it."""
    name = access.name_of_topic(topic) if isinstance(topic, bytes) else topic
    return None if name is None else rights.may(READ_TOPIC, name)


def _unreadable(access: Access, ctx: RequestContext, topics: Iterable[Topic]) -> dict[Topic, None]:
    """Those that the client may not read now, each once."""
    rights = rights_of(access, ctx)
    return {topic: None for topic in dict.fromkeys(topics) if _may_read(access, rights, topic) is False}


def without(request: FetchRequest, hidden: Collection[Topic]) -> FetchRequest:
    """The request without topics that its client may not read, for which it has the answers."""
    kept: list[FetchPartition] = []
    answers = list(request.refused)
    for partition in request.partitions:
        if partition.topic in hidden:
            answers.append(_no_right(partition))
        else:
            kept.append(partition)
    return request._replace(partitions=kept, refused=tuple(answers))


def _no_right(partition: FetchPartition) -> FetchedPartition:
    return failed(partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _answered_at_once(ctx: RequestContext, error: int, partitions: Sequence[FetchedPartition]) -> tuple[Chunk, ...]:
    for code in (error, *(partition.error for partition in partitions)):
        if code:
            ctx.api.failed(code)
    return encode_response(ctx.api_version, FetchResult(error, 0, partitions))


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    response = messages.FetchResponse
    topic_response = response.FetchableTopicResponse
    partition_response = topic_response.PartitionData
    return response(throttle_time_ms=0, error_code=0, session_id=0, responses=[
        topic_response(topic=topic.topic, topic_id=topic.topic_id, partitions=[
            partition_response(
                partition_index=partition.partition, error_code=code, high_watermark=-1, last_stable_offset=-1,
                log_start_offset=-1, aborted_transactions=None, preferred_read_replica=-1, records=b"")
            for partition in topic.partitions
        ])
        for topic in request.topics
    ])


def decode_follower(body: memoryview) -> FetchRequest | None:
    """Decodes a request of a follower's session (`replica_fetch.encode_request`), of which each write causes several.
    None: the request has another form, which the library decodes."""
    try:
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = TOP.unpack_from(body)
        if session_id == 0 or isolation:
            return None
        partitions: list[FetchPartition] = []
        topics, at = read_uvarint(body, TOP.size)
        for _ in range(topics - 1):
            topic = bytes(body[at : at + 16])
            count, at = read_uvarint(body, at + 16)
            for _ in range(count - 1):
                index, epoch, offset, last_epoch, start, most = PARTITION.unpack_from(body, at)
                at += PARTITION.size
                if body[at : at + len(_SYNCED_HEAD)] != _SYNCED_HEAD:
                    return None
                (synced_end,) = _I64.unpack_from(body, at + len(_SYNCED_HEAD))
                at += len(_SYNCED_HEAD) + _I64.size
                partitions.append(FetchPartition(topic, index, offset, most, epoch, last_epoch, synced_end, start))
            at += 1
        if body[at:at + 3] != b"\1\1\3" or body[at + 3] != 1 or len(body) != at + 5 + REPLICA.size + _LAST_FIELDS:
            return None  # for example with forgotten partitions, which are rare
        replica_id, _ = REPLICA.unpack_from(body, at + 5)
        last = len(body) - 4
        if body[last - len(_ANSWERED_HEAD) : last] != _ANSWERED_HEAD:
            return None
        (answered,) = _I32.unpack_from(body, last)
        last -= len(_ANSWERED_HEAD)
        shown = bytes(body[last - _PROOF_SIZE : last])
    except (struct.error, IndexError, ValueError):
        return None
    return FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, False, session_id, session_epoch, partitions, [], shown,
        answered)


def decoded(message: messages.FetchRequest, version: int) -> FetchRequest:
    """Converts the library's message."""
    by_id = version >= FIRST_WITH_TOPIC_IDS
    if version < 15:
        replica_id = message.replica_id
    else:
        replica_id = -1 if message.replica_state is None else message.replica_state.replica_id
    partitions = []
    for topic in message.topics:
        key = id_bytes(topic.topic_id) if by_id else topic.topic
        for p in topic.partitions:
            partitions.append(FetchPartition(
                key, p.partition, p.fetch_offset, p.partition_max_bytes,
                p.current_leader_epoch if version >= 9 else -1,
                p.last_fetched_epoch if version >= FIRST_FLEXIBLE else -1,
                -1 if replica_id < 0 else _synced_end(p),
                p.log_start_offset if version >= 5 else -1,
            ))
    forgotten = []
    if version >= 7:
        for topic in message.forgotten_topics_data:
            key = id_bytes(topic.topic_id) if by_id else topic.topic
            forgotten += [(key, p) for p in topic.partitions]
    return FetchRequest(
        replica_id, message.max_wait_ms, message.min_bytes, message.max_bytes,
        message.isolation_level == _READ_COMMITTED,
        message.session_id if version >= 7 else 0, message.session_epoch if version >= 7 else -1,
        partitions, forgotten, unknown_tag(message, INTERNAL_WRITE_TAG) or b"",
        None if replica_id < 0 else _answered(message),
        message.rack_id or "" if version >= FIRST_WITH_RACK else "",
    )


def _answered(message: messages.FetchRequest) -> int | None:
    content = unknown_tag(message, ANSWERED_TAG)
    return None if content is None else int.from_bytes(content, "big", signed=True)


def _synced_end(partition: Any) -> int:
    """The synced end that a follower reports; where it reports none, the offset that it asks for."""
    content = unknown_tag(partition, SYNCED_END_TAG)
    return int(partition.fetch_offset if content is None else int.from_bytes(content, "big", signed=True))


# --- response -----------------------------------------------------------------------------------------------------


def encode_response(version: int, result: FetchResult) -> tuple[Chunk, ...]:
    """The body as chunks. Records stay ranges of files; the bytes between them are joined."""
    flexible = version >= FIRST_FLEXIBLE
    chunks: list[Chunk] = []
    head = bytearray(_TOP_7.pack(0, result.error, result.session_id) if version >= 7 else bytes(4))
    topics = _grouped(result.partitions)
    head += _count(len(topics), flexible)
    for partitions in topics:
        _put_topic(head, partitions[0].topic, flexible)
        head += _count(len(partitions), flexible)
        for partition in partitions:
            head = _put_partition(chunks, head, version, partition)
        if flexible:
            head += b"\0"
    if flexible:
        head += b"\0"
    if head:
        chunks.append(head)
    return tuple(chunks)


def _grouped(partitions: Sequence[FetchedPartition]) -> list[list[FetchedPartition]]:
    topics: list[list[FetchedPartition]] = []
    for partition in partitions:
        if topics and topics[-1][0].topic == partition.topic:
            topics[-1].append(partition)
        else:
            topics.append([partition])
    return topics


def _put_topic(head: bytearray, topic: str | bytes, flexible: bool) -> None:
    if isinstance(topic, bytes):
        head += topic
        return
    name = topic.encode()
    head += _count(len(name), True) if flexible else _I16.pack(len(name))
    head += name


def _put_partition(
    chunks: list[Chunk], head: bytearray, version: int, partition: FetchedPartition
) -> bytearray:
    """Appends one partition. Returns the buffer for the bytes after its records."""
    flexible = version >= FIRST_FLEXIBLE
    _, index, error, high_watermark, stable, start, aborted, records, _, _, preferred = partition
    if version >= 5:
        head += _PARTITION_5.pack(index, error, high_watermark, stable, start)
    else:
        head += _PARTITION_4.pack(index, error, high_watermark, stable)
    if aborted is None:
        head += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        head += _count(len(aborted), flexible)
        for transaction in aborted:
            head += _ABORTED.pack(transaction.producer_id, transaction.first_offset)
            if flexible:
                head += b"\0"
    if version >= FIRST_WITH_RACK:
        head += _I32.pack(preferred)
    size = 0 if records is None else records.size
    head += _count(size, flexible)
    if records is not None:
        chunks.append(head)
        chunks.append(records)
        head = bytearray()
    if flexible:
        _put_tags(head, partition)
    return head


def _put_tags(head: bytearray, partition: FetchedPartition) -> None:
    diverging, leader = partition.diverging, partition.leader
    head.append((diverging is not None) + (leader is not None))
    if diverging is not None:
        head += _DIVERGING.pack(0, _DIVERGING.size - 2, *diverging, 0)
    if leader is not None:
        head += _LEADER.pack(1, _LEADER.size - 2, *leader, 0)


def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _I32.pack(count)


def failed(partition: FetchPartition, error: ErrorCode, leader: tuple[int, int] | None = None) -> FetchedPartition:
    """The answer for a partition that this node cannot serve."""
    return FetchedPartition(partition.topic, partition.partition, int(error), leader=leader)

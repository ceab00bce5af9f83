"""Produce (0): appends records. Decoded and encoded by hand, because it is the most frequent call and its record bytes
must not be copied.

A decoded request holds the position of each partition's records in the frame. Lengths and counts are checked against
the size of the frame. Tests compare both directions with kafka.protocol, byte for byte, in every version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from hapax.codec.varint import read_uvarint, uvarint
from hapax.core.access.resources import WRITE_TOPIC, WRITE_TRANSACTIONAL_ID
from hapax.core.errors import ErrorCode
from hapax.core.partition.values import RecordError, WriteResult
from hapax.kafka.needs import Need, checked_by_guard, proves_node, rights_of
from hapax.kafka.quotas import told_in_message
from hapax.kafka.table import (
    BULK_FRAME_BYTES,
    DEFERRED,
    ApiRow,
    ApiTable,
    CloseConnection,
    RawHandler,
    RequestContext,
    Role,
)
from hapax.runtime.access import Access
from hapax.wire import messages
from hapax.wire.conditions import CONDITION_TAG
from hapax.wire.peer import INTERNAL_WRITE_TAG
from hapax.wire.write_pass import WRITE_PASS_TAG

ROW: Final = ApiRow(
    key=0, name="Produce", versions=(3, 13), advertised_from=0, flexible_from=9, max_frame_bytes=BULK_FRAME_BYTES,
    answered_by=Role.LEADER, elsewhere=ErrorCode.NOT_LEADER_OR_FOLLOWER,
    need=Need(
        "Write TransactionalId where it names one (else all is refused); Write Topic each",
        lambda asking, request: checked_by_guard(request), nodes_pass=True))

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_TOPIC_IDS: Final = 13
_MAX_TAGS: Final = 64
_KNOWN_TAGS: Final = (INTERNAL_WRITE_TAG, WRITE_PASS_TAG, CONDITION_TAG)

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_AND_SIZE = struct.Struct(">ii")
_PARTITION_3 = struct.Struct(">ihqq")
_PARTITION_5 = struct.Struct(">ihqqq")
_PARTITION_8_OK = struct.Struct(">ihqqqih")
_PARTITION_9_OK = struct.Struct(">ihqqqbbb")
_NO_THROTTLE: Final = bytes(4)
_NO_THROTTLE_NO_TAGS: Final = bytes(5)
_TAIL_FLEXIBLE: Final = bytes(6)
"""No tagged fields of the topic, no throttling, no tagged fields of the response."""
_MAX_HEADS: Final = 10_000


class PartitionRecords(NamedTuple):
    """One partition's records in a request."""

    topic: str | bytes
    """Its name; from version 13 on its id (16 bytes)."""
    partition: int
    start: int
    """Position of the records in the body; -1: null records."""
    end: int


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[PartitionRecords]
    internal: bytes | None
    """Content of the tagged field of internal writers."""
    write_pass: bytes | None = None
    """Content of the tagged field `WRITE_PASS_TAG`."""
    conditions: bytes | None = None
    """Content of the tagged field `CONDITION_TAG`."""


class ProduceCall:
    """A request in progress. The service settles each partition once, in any order, during the call or later."""

    __slots__ = ("_answered", "_waiting", "ctx", "request", "results")

    def __init__(self, ctx: RequestContext, request: ProduceRequest) -> None:
        self.ctx = ctx
        self.request = request
        self.results: list[WriteResult | None] = [None] * len(request.partitions)
        self._waiting = len(request.partitions)
        self._answered = False

    @property
    def timeout_ms(self) -> int:
        """How long the client waits for the in-sync replicas, in milliseconds."""
        return self.request.timeout_ms

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.ctx.connection.peer

    @property
    def connection(self) -> int:
        """Serial number of the client's connection."""
        return self.ctx.connection.serial

    @property
    def gone(self) -> bool:
        """The connection is closed, and the client waits for answers: it sends what it still wants again. With acks=0
        it has closed the connection and counts on what it wrote."""
        return self.request.acks != 0 and self.ctx.closed

    def settle(self, number: int, result: WriteResult) -> None:
        """`number`: index of the partition in the request."""
        self.results[number] = result
        if result.error:
            self.ctx.api.failed(result.error)
        self._waiting -= 1
        if self._waiting == 0 and self._answered:
            try:
                answer = self.answer()
            except CloseConnection as error:
                self.ctx.fail(error)
                return
            self.ctx.respond(answer)

    def drop(self, reason: str) -> None:
        """Closes the connection instead of answering a deferred call. Partitions that are settled later have no
        effect."""
        if self._answered:
            self._answered = False
            self.ctx.fail(CloseConnection(reason))

    def answer_or_defer(self) -> object:
        """The answer, if all partitions are settled; otherwise it is sent when the last one is settled."""
        if self._waiting == 0:
            return self.answer()
        self._answered = True
        return DEFERRED

    def answer(self) -> tuple[bytes] | None:
        """The encoded answer; None with acks=0. Raises CloseConnection where a write with acks=0 failed: the protocol
        has no other way to inform the client (rule 16)."""
        if self.request.acks == 0:
            for part, result in zip(self.request.partitions, self.results, strict=True):
                if result is not None and result.error:
                    raise CloseConnection(
                        f"a write with acks=0 to partition {part.partition} failed: {ErrorCode(result.error).name} "
                        f"{result.reason}"
                    )
            return None
        return (encode_response(self.ctx.api_version, self.request.partitions, self.results),)


class PartlyRefused(ProduceCall):
    """A call of whose partitions the service sees those that the client may write."""

    __slots__ = ("_codes", "_whole")

    def __init__(self, ctx: RequestContext, whole: ProduceRequest, codes: Sequence[ErrorCode]) -> None:
        """`codes`: one for each partition of the request; 0: it is passed on."""
        super().__init__(ctx, whole._replace(partitions=[
            part for part, code in zip(whole.partitions, codes, strict=True) if not code]))
        self._whole = whole
        self._codes = codes
        for code in codes:
            if code:
                ctx.api.failed(code)

    def answer(self) -> tuple[bytes] | None:
        written = iter(self.results)
        self.results = [next(written) if not code else WriteResult(code) for code in self._codes]
        self.request = self._whole
        return super().answer()


class PartitionWriter(Protocol):
    def produce(self, call: ProduceCall, body: memoryview) -> None:
        """Settles every partition of `call`, during this call or later. `body` is valid during this call only. It is
        writable: base offset and leader epoch are patched in place."""
        ...


def register(table: ApiTable, writer: PartitionWriter) -> None:
    def handle(ctx: RequestContext, body: memoryview) -> object:
        request = decode_request(body, ctx.api_version)
        if request.internal is not None:
            table.quotas.notice_node(ctx, request.internal)
        call = ProduceCall(ctx, request)
        writer.produce(call, body)
        return call.answer_or_defer()

    def guard(access: Access) -> RawHandler:
        def guarded(ctx: RequestContext, body: memoryview) -> object:
            request = decode_request(body, ctx.api_version)
            if request.internal is not None:
                table.quotas.notice_node(ctx, request.internal)
            by_node = request.internal is not None and proves_node(access, ctx, request.internal)
            codes = None if by_node else _refusals(access, ctx, request)
            call = ProduceCall(ctx, request) if codes is None else PartlyRefused(ctx, request, codes)
            writer.produce(call, body)
            return call.answer_or_defer()

        return guarded

    table.on_raw(ROW, handle, guard)


def _refusals(access: Access, ctx: RequestContext, request: ProduceRequest) -> list[ErrorCode] | None:
    """None: the client may write everything."""
    rights = rights_of(access, ctx)
    if request.transactional_id is not None and not rights.may(WRITE_TRANSACTIONAL_ID, request.transactional_id):
        access.note_refusal(rights, WRITE_TRANSACTIONAL_ID, request.transactional_id, ROW.name)
        return [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * len(request.partitions)
    codes: list[ErrorCode] | None = None
    for number, part in enumerate(request.partitions):
        name: str | bytes | None = part.topic
        if isinstance(name, bytes):
            name = access.name_of_topic(name)
        if name is None or rights.may(WRITE_TOPIC, name):  # an unknown id is refused by the service
            continue
        access.note_refusal(rights, WRITE_TOPIC, name, ROW.name)
        if codes is None:
            codes = [ErrorCode.NONE] * len(request.partitions)
        codes[number] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return codes


def throttled(version: int, chunks: tuple[bytes] | Any, throttle_ms: int) -> Any:
    """The time is at the end, in flexible versions before the tagged fields, of which there are none. A node that leads
    nothing answers with a message."""
    if type(chunks) is not tuple:
        return told_in_message(version, chunks, throttle_ms)
    (body,) = chunks
    if version >= FIRST_FLEXIBLE:
        return (body[:-5] + _I32.pack(throttle_ms) + body[-1:],)
    return (body[:-4] + _I32.pack(throttle_ms),)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    """Raises CloseConnection for a write with acks=0, which has no answer."""
    if request.acks == 0:
        raise CloseConnection("Produce with acks=0 to a node that leads no partition")
    response = messages.ProduceResponse
    topic_response = response.TopicProduceResponse
    partition_response = topic_response.PartitionProduceResponse
    return response(throttle_time_ms=0, responses=[
        topic_response(name=topic.name, topic_id=topic.topic_id, partition_responses=[
            partition_response(
                index=partition.index, error_code=code, base_offset=-1, log_append_time_ms=-1, log_start_offset=-1,
                record_errors=[], error_message=None)
            for partition in topic.partition_data
        ])
        for topic in request.topic_data
    ])


# --- request ------------------------------------------------------------------------------------------------------


def decode_request(body: memoryview, version: int) -> ProduceRequest:
    """Raises CloseConnection where the body is malformed."""
    try:
        if version >= FIRST_FLEXIBLE:
            return _decode_compact(body, version)
        return _decode_classic(body)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise CloseConnection(f"Produce v{version} cannot be decoded: {error}") from None


def _decode_classic(body: memoryview) -> ProduceRequest:
    size = len(body)
    (length,) = _I16.unpack_from(body)
    position = 2
    transactional_id = None
    if length >= 0:
        position += length
        transactional_id = str(body[2:position], "utf-8")
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(body, position)
    position += 10
    _check_count(topic_count, size - position)
    partitions = []
    for _ in range(topic_count):
        (length,) = _I16.unpack_from(body, position)
        position += 2
        if length < 0:
            raise ValueError("a topic without a name")
        topic = str(body[position : position + length], "utf-8")
        position += length
        (partition_count,) = _I32.unpack_from(body, position)
        position += 4
        _check_count(partition_count, size - position)
        for _ in range(partition_count):
            index, length = _INDEX_AND_SIZE.unpack_from(body, position)
            position += 8
            if length < 0:
                partitions.append(PartitionRecords(topic, index, -1, -1))
                continue
            end = position + length
            if end > size:
                raise ValueError(f"records of {length} bytes past the end of the frame")
            partitions.append(PartitionRecords(topic, index, position, end))
            position = end
    if position != size:
        raise ValueError(f"{size - position} bytes left over")
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions, None)


def _decode_compact(body: memoryview, version: int) -> ProduceRequest:
    size = len(body)
    by_id = version >= FIRST_WITH_TOPIC_IDS
    length = body[0]
    position = 1
    transactional_id = None
    if length:
        if length & 0x80:
            length, position = read_uvarint(body, 0)
        end = position + length - 1
        transactional_id = str(body[position:end], "utf-8")
        position = end
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, position)
    topic_count, position = read_uvarint(body, position + 6)
    _check_count(topic_count - 1, size - position)
    partitions = []
    topic: str | bytes
    for _ in range(topic_count - 1):
        if by_id:
            topic = bytes(body[position : position + 16])
            position += 16
        else:
            length, position = read_uvarint(body, position)
            if length == 0:
                raise ValueError("a topic without a name")
            topic = str(body[position : position + length - 1], "utf-8")
            position += length - 1
        partition_count, position = read_uvarint(body, position)
        _check_count(partition_count - 1, size - position)
        for _ in range(partition_count - 1):
            (index,) = _I32.unpack_from(body, position)
            length, position = read_uvarint(body, position + 4)
            if length == 0:
                partitions.append(PartitionRecords(topic, index, -1, -1))
            else:
                end = position + length - 1
                if end > size:
                    raise ValueError(f"records of {length - 1} bytes past the end of the frame")
                partitions.append(PartitionRecords(topic, index, position, end))
                position = end
            position = position + 1 if body[position] == 0 else _skip_tags(body, position)
        position = position + 1 if body[position] == 0 else _skip_tags(body, position)
    if position + 1 == size and body[position] == 0:
        return ProduceRequest(transactional_id, acks, timeout_ms, partitions, None)
    tags, position = _find_tags(body, position)
    if position != size:
        raise ValueError(f"{size - position} bytes left over")
    return ProduceRequest(
        transactional_id, acks, timeout_ms, partitions, tags.get(INTERNAL_WRITE_TAG), tags.get(WRITE_PASS_TAG),
        tags.get(CONDITION_TAG))


def _check_count(count: int, left: int) -> None:
    if not 0 <= count <= left:
        raise ValueError(f"an array of {count} elements in {left} bytes")


def _skip_tags(data: memoryview, position: int) -> int:
    count, position = read_uvarint(data, position)
    if count > _MAX_TAGS:
        raise ValueError(f"{count} tagged fields")
    for _ in range(count):
        _, position = read_uvarint(data, position)
        length, position = read_uvarint(data, position)
        position += length
    return position


def _find_tags(data: memoryview, position: int) -> tuple[dict[int, bytes], int]:
    """Content of the tagged fields that are known here, and the position after all tagged fields."""
    found = {}
    count, position = read_uvarint(data, position)
    if count > _MAX_TAGS:
        raise ValueError(f"{count} tagged fields")
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        length, position = read_uvarint(data, position)
        if tag in _KNOWN_TAGS:
            found[tag] = bytes(data[position : position + length])
        position += length
    return found, position


# --- response -----------------------------------------------------------------------------------------------------


def encode_response(
    version: int, partitions: list[PartitionRecords], results: list[WriteResult | None]
) -> bytes:
    """`results`: in the order of `partitions`, in which those of a topic are adjacent."""
    flexible = version >= FIRST_FLEXIBLE
    if len(partitions) == 1 and results[0] is not None:  # nearly all requests
        topic, partition, _, _ = partitions[0]
        head = _heads.get((topic, flexible)) or _make_head(topic, flexible)
        return head + _encode_partition(version, partition, results[0]) + (_TAIL_FLEXIBLE if flexible else _NO_THROTTLE)
    topics = _grouped(partitions)
    parts = [_count(len(topics), flexible)]
    for topic, first, end in topics:
        parts.append(_topic(topic, flexible))
        parts.append(_count(end - first, flexible))
        for number in range(first, end):
            result = results[number]
            assert result is not None
            parts.append(_encode_partition(version, partitions[number].partition, result))
        if flexible:
            parts.append(b"\0")
    parts.append(_NO_THROTTLE_NO_TAGS if flexible else _NO_THROTTLE)
    return b"".join(parts)


_heads: dict[tuple[str | bytes, bool], bytes] = {}
"""Topic -> the bytes before the partition in a response with a single partition; bounded."""


def _make_head(topic: str | bytes, flexible: bool) -> bytes:
    if len(_heads) >= _MAX_HEADS:
        _heads.clear()
    head = _heads[topic, flexible] = _count(1, flexible) + _topic(topic, flexible) + _count(1, flexible)
    return head


def _topic(topic: str | bytes, flexible: bool) -> bytes:
    if isinstance(topic, bytes):
        return topic
    name = topic.encode()
    return (uvarint(len(name) + 1) if flexible else _I16.pack(len(name))) + name


def _grouped(partitions: list[PartitionRecords]) -> list[tuple[str | bytes, int, int]]:
    """(topic, first, end) of each run of partitions of one topic."""
    groups: list[tuple[str | bytes, int, int]] = []
    start = 0
    for number in range(1, len(partitions) + 1):
        if number == len(partitions) or partitions[number].topic != partitions[start].topic:
            groups.append((partitions[start].topic, start, number))
            start = number
    return groups


def _encode_partition(version: int, index: int, result: WriteResult) -> bytes:
    error, base_offset, append_time, log_start, reason, record_errors = result
    if version >= FIRST_FLEXIBLE:
        if not reason:
            return _PARTITION_9_OK.pack(index, error, base_offset, append_time, log_start, 1, 0, 0)
        text = reason.encode()
        return b"".join((
            _PARTITION_5.pack(index, error, base_offset, append_time, log_start),
            _record_errors(record_errors, flexible=True), uvarint(len(text) + 1), text, b"\0",
        ))
    if version >= 8:
        if not reason:
            return _PARTITION_8_OK.pack(index, error, base_offset, append_time, log_start, 0, -1)
        text = reason.encode()
        return b"".join((
            _PARTITION_5.pack(index, error, base_offset, append_time, log_start),
            _record_errors(record_errors, flexible=False), _I16.pack(len(text)), text,
        ))
    if version >= 5:
        return _PARTITION_5.pack(index, error, base_offset, append_time, log_start)
    return _PARTITION_3.pack(index, error, base_offset, append_time)


def _record_errors(errors: tuple[RecordError, ...], *, flexible: bool) -> bytes:
    parts = [_count(len(errors), flexible)]
    for index, message in errors:
        text = message.encode()
        parts += (_I32.pack(index), uvarint(len(text) + 1) if flexible else _I16.pack(len(text)), text)
        if flexible:
            parts.append(b"\0")
    return b"".join(parts)


def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _I32.pack(count)

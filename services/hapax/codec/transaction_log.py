"""Records of `__transaction_state`: Kafka's TransactionLogKey v0 and TransactionLogValue v0-v1, and Hapax's own.

Values are written in version 1. Its tagged fields from 10000 on are Hapax's own, and Kafka's readers skip them.
Versions 2 and 3 are unknown to Kafka. They are used where a reader that skips fields or keys would get a wrong state,
so that it refuses the value. Version 2: while a multi-writer transaction is open or being decided, its members may have
deltas under separate keys of version 10000; and the owner of a commit token may count from another value than 0.
Version 3: the transactions of a producer that takes part in two-phase commit have no time limit and may be kept by
another holder, whose epoch is in Kafka's tag 3 (KIP-939); releases before it read version 2. The layouts are in
`schemas/TransactionLogValue.json` and `schemas/TransactionDelta*.json`, in the notation of Kafka's message schemas. A
test compares this codec with them byte by byte. It is written by hand for speed, because every transaction writes three
of these records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final, TypeVar

from hapax.codec.internal_records import KeyValue
from hapax.codec.varint import read_uvarint, uvarint
from hapax.core.transaction.record import (
    NO_TRANSACTION,
    CommittedToken,
    Delta,
    Fencing,
    FencingCause,
    Fingerprint,
    Holder,
    LastOutcome,
    Member,
    PartitionSet,
    Policy,
    ProducerIdentity,
    Record,
    Token,
    Tombstone,
    TopicBits,
    Transaction,
    TransactionPartition,
)
from hapax.core.transaction.states import State
from hapax.core.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Millis,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Serial,
    TimestampMs,
    TopicId,
)

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1
WHOLE_VERSION: Final = 2
TWO_PHASE_VERSION: Final = 3
DELTA_KEY_VERSION: Final = 10_000
DELTA_VALUE_VERSION: Final = 0

_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID, _CLIENT_VERSION, _NEXT_PRODUCER_EPOCH = 0, 1, 2, 3
(
    _SERIAL, _LAST_EPOCH, _TOPIC_IDS, _LIMIT, _FENCING, _TOKENS, _OPEN_TOKEN, _MEMBERS, _IDLE_MEMBERS, _POLICY,
    _HOLDER, _OUTCOME, _MEMBER_SETS,
) = range(10000, 10013)  # fmt: skip
_SINGLE_USE: Final = 10013
_RUNS, _TOKEN_OWNERS, _OPEN_TOKEN_OWNER, _TWO_PHASE, _TOKEN_PASTS = range(10014, 10019)

_KEY = struct.Struct(">hh")
_HEAD = struct.Struct(">hqhib")             # version, producer id, epoch, time-out, status
_TIMES = struct.Struct(">qq")
_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_BOOL = struct.Struct(">b")
_FENCING_HEAD = struct.Struct(">bqqhq")     # cause, at, fenced producer id, fenced epoch, serial
_TOKEN_TAIL = struct.Struct(">qqqq")        # value, record count, serial, committed at
_LAST_OUTCOME = struct.Struct(">?q")        # committed, at
_IDENTITY = struct.Struct(">qh")
_MEMBER_PARTITION = struct.Struct(">ii?")   # place of its topic, partition, won; up to version 1
_DELTA_HEAD = struct.Struct(">hqqqq")       # version, serial, elapsed, limit, last update

_Item = TypeVar("_Item")
_Default = TypeVar("_Default")


def encode_key(transactional_id: str) -> bytes:
    name = transactional_id.encode()
    return _KEY.pack(KEY_VERSION, len(name)) + name


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a key of another version, which a reader skips."""
    if len(data) < 2 or _I16.unpack_from(data)[0] != KEY_VERSION:
        return None
    length = _I16.unpack_from(data, 2)[0]
    if length < 0 or len(data) != 4 + length:
        raise ValueError("a transaction log key of the wrong length")
    return data[4:].decode()


def decode_delta_key(data: bytes) -> tuple[str, ProducerId] | None:
    """The transactional id, and the member's producer id or -1. None for a key of another version. Raises ValueError.
    """
    if len(data) < 2 or _I16.unpack_from(data)[0] != DELTA_KEY_VERSION:
        return None
    reader = _Reader(data)
    try:
        _, length = reader.unpack(_KEY)
        named = reader.take(length).decode(), ProducerId(reader.unpack(_I64)[0])
        reader.end()
    except (struct.error, IndexError) as error:
        raise ValueError("a transaction delta's key of the wrong length") from error
    return named


def encode_record(record: Record) -> tuple[KeyValue, ...]:
    """The log's form of the record: one key. Only a tombstone also has the keys of the id's deltas."""
    if isinstance(record, Transaction):
        return ((encode_key(record.transactional_id), encode_value(record)),)
    if isinstance(record, Delta):
        return ((_delta_key(record.transactional_id, record.producer_id), _delta_value(record)),)
    deltas = [(_delta_key(record.transactional_id, producer_id), None) for producer_id in record.deltas]
    return (encode_key(record.transactional_id), None), *deltas


def decode_record(key: bytes, value: bytes | None) -> Record | None:
    """None if there is nothing to apply: a key of an unknown version, or a delta's tombstone. Raises ValueError."""
    transactional_id = decode_key(key)
    if transactional_id is not None:
        return decode_value(transactional_id, value)
    named = None if value is None else decode_delta_key(key)
    if named is None or value is None:
        return None
    try:
        return _delta(*named, _Reader(value))
    except (struct.error, IndexError) as error:
        raise ValueError("a transaction delta that ends too early") from error


# --- writing ------------------------------------------------------------------------------------------------------


def _delta_key(transactional_id: str, producer_id: ProducerId) -> bytes:
    name = transactional_id.encode()
    return _KEY.pack(DELTA_KEY_VERSION, len(name)) + name + _I64.pack(producer_id)


def _delta_value(delta: Delta) -> bytes:
    parts = [_DELTA_HEAD.pack(
        DELTA_VALUE_VERSION, delta.serial, delta.elapsed_ms, delta.limit_ms, delta.last_update_ms)]
    member = delta.member
    if member is None:
        parts += (b"\x00", _I16.pack(NO_PRODUCER_EPOCH), b"\x01")
    else:
        parts += (_string(member.key), _I16.pack(member.producer_epoch), uvarint(len(member.partitions.topics) + 1))
        for topic, topic_id, bits in member.partitions.topics:
            parts += (_string(topic), topic_id, _bits(bits), b"\x00")
    return b"".join([*parts, b"\x00"])


def encode_value(transaction: Transaction) -> bytes:
    topics = _by_topic(transaction.every_partition)
    parts = [
        _HEAD.pack(
            _version_of(transaction),
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            transaction.state,
        )
    ]
    if topics or transaction.state is not State.EMPTY:
        parts.append(uvarint(len(topics) + 1))
        for (topic, _), partitions in topics.items():
            parts += (_string(topic), uvarint(len(partitions) + 1), _int32s(partitions), b"\x00")
    else:
        parts.append(b"\x00")
    parts.append(_TIMES.pack(transaction.last_update_ms, transaction.start_ms))
    fields = _tagged_fields(transaction, topics)
    parts.append(uvarint(len(fields)))
    for tag, content in fields:
        parts += (uvarint(tag), uvarint(len(content)), content)
    return b"".join(parts)


def _version_of(transaction: Transaction) -> int:
    """The lowest one whose readers know everything in the value."""
    if transaction.two_phase or transaction.is_kept or transaction.has_no_limit:
        return TWO_PHASE_VERSION
    if transaction.is_multi_writer or any(token.base for token in transaction.tokens):
        return WHOLE_VERSION
    return VALUE_VERSION


_Topics = dict[tuple[str, TopicId], list[int]]


def _by_topic(partitions: tuple[TransactionPartition, ...]) -> _Topics:
    topics: _Topics = {}
    for topic, topic_id, partition in partitions:
        topics.setdefault((topic, topic_id), []).append(partition)
    return topics


def _tagged_fields(transaction: Transaction, topics: _Topics) -> list[tuple[int, bytes]]:
    """The tagged fields in the order of their tags. A field with its default value is left out."""
    fields: list[tuple[int, bytes]] = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        fields.append((_PREVIOUS_PRODUCER_ID, _I64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        fields.append((_NEXT_PRODUCER_ID, _I64.pack(transaction.next_producer_id)))
    fields.append((_CLIENT_VERSION, _I16.pack(transaction.client_version)))
    if transaction.is_kept:
        fields.append((_NEXT_PRODUCER_EPOCH, _I16.pack(transaction.next_producer_epoch)))
    if transaction.serial != NO_TRANSACTION:
        fields.append((_SERIAL, _I64.pack(transaction.serial)))
    if transaction.last_producer_epoch != NO_PRODUCER_EPOCH:
        fields.append((_LAST_EPOCH, _I16.pack(transaction.last_producer_epoch)))
    if topics:
        ids = b"".join([topic_id for _, topic_id in topics])
        fields.append((_TOPIC_IDS, uvarint(len(topics) + 1) + ids))
    if transaction.limit_ms:
        fields.append((_LIMIT, _TIMES.pack(transaction.elapsed_ms, transaction.limit_ms) + b"\x00"))
    if transaction.fencing is not None:
        fields.append((_FENCING, _fencing(transaction.fencing)))
    lasting = tuple([token for token in transaction.tokens if not token.single_use])
    if lasting:
        fields.append((_TOKENS, _tokens(lasting)))
    if transaction.open_token is not None:
        scope, value, _, _ = transaction.open_token
        fields.append((_OPEN_TOKEN, _string(scope) + _I64.pack(value) + b"\x00"))
    if transaction.idle_members:
        identities = b"".join([_IDENTITY.pack(*idle) + b"\x00" for idle in transaction.idle_members])
        fields.append((_IDLE_MEMBERS, uvarint(len(transaction.idle_members) + 1) + identities))
    if transaction.policy is not None:
        fields.append((_POLICY, _policy(transaction.policy)))
    if transaction.holder is not None:
        fields.append((_HOLDER, _holder(transaction.holder)))
    if transaction.outcome is not None:
        fields.append((_OUTCOME, _LAST_OUTCOME.pack(*transaction.outcome) + b"\x00"))
    if transaction.members:
        fields.append((_MEMBER_SETS, _members(transaction.members, topics)))
    if len(lasting) < len(transaction.tokens):
        fields.append((_SINGLE_USE, _tokens(transaction.tokens[len(lasting):])))
    if transaction.runs:
        runs = b"".join([_string(run) for run in transaction.runs])
        fields.append((_RUNS, uvarint(len(transaction.runs) + 1) + runs))
    if any(token.owner for token in lasting):
        fields.append((_TOKEN_OWNERS, _token_owners(lasting)))
    if transaction.open_token is not None and transaction.open_token.owner:
        owner, base = transaction.open_token[2:]
        fields.append((_OPEN_TOKEN_OWNER, _string(owner) + _I64.pack(base) + b"\x00"))
    if transaction.two_phase:
        fields.append((_TWO_PHASE, b"\x01"))
    if any(token.past for token in lasting):
        pasts = b"".join([uvarint(len(token.past) + 1) + token.past + b"\x00" for token in lasting])
        fields.append((_TOKEN_PASTS, uvarint(len(lasting) + 1) + pasts))
    return fields


@lru_cache(maxsize=256)
def _fencing(fencing: Fencing) -> bytes:
    head = _FENCING_HEAD.pack(
        fencing.cause, fencing.at_ms, fencing.fenced_producer_id, fencing.fenced_epoch, fencing.serial
    )
    # An empty address means that there is no holder.
    fenced = fencing.fenced or Holder("", "")
    texts = (fencing.client_id, fencing.peer, fenced.client_id, fenced.peer)
    return head + b"".join([_string(text) for text in texts]) + b"\x00"


def _holder(holder: Holder) -> bytes:
    return _string(holder.client_id) + _string(holder.peer) + b"\x00"


@lru_cache(maxsize=256)
def _tokens(tokens: tuple[CommittedToken, ...]) -> bytes:
    parts = [uvarint(len(tokens) + 1)]
    for token in tokens:
        tail = _TOKEN_TAIL.pack(token.value, token.record_count, token.serial, token.committed_at_ms)
        parts += (_string(token.scope), tail, b"\x00")
    return b"".join(parts)


@lru_cache(maxsize=256)
def _token_owners(tokens: tuple[CommittedToken, ...]) -> bytes:
    parts = [uvarint(len(tokens) + 1)]
    for token in tokens:
        parts += (_string(token.owner), _I64.pack(token.base), uvarint(len(token.fingerprints) + 1))
        for kind, digest in token.fingerprints:
            parts += (_string(kind), uvarint(len(digest) + 1), digest, b"\x00")
        parts.append(b"\x00")
    return b"".join(parts)


def _members(members: tuple[Member, ...], topics: _Topics) -> bytes:
    """A member's partitions name their topic by its place in TransactionPartitions."""
    place = {topic: index for index, topic in enumerate(topics)}
    parts = [uvarint(len(members) + 1)]
    for member in members:
        identity = _IDENTITY.pack(member.producer_id, member.producer_epoch)
        won = {each[:2]: each.bits for each in member.won.topics}
        parts += (_string(member.key), identity, uvarint(len(member.partitions.topics) + 1))
        for topic, topic_id, bits in member.partitions.topics:
            parts += (
                _I32.pack(place[topic, topic_id]), _bits(bits), _bits(won.get((topic, topic_id), 0)), b"\x00",
            )
        parts.append(b"\x00")
    return b"".join(parts)


def _bits(bits: int) -> bytes:
    """Compact bytes, in which bit i of byte n represents 8 n + i."""
    size = (bits.bit_length() + 7) // 8
    return uvarint(size + 1) + bits.to_bytes(size, "little")


def _policy(policy: Policy) -> bytes:
    topics = b"".join([_string(topic) for topic in policy.allowed_topics])
    return uvarint(len(policy.allowed_topics) + 1) + topics + _I32.pack(policy.max_timeout_ms) + b"\x00"


def _int32s(values: list[int]) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


@lru_cache(maxsize=4096)
def _string(text: str) -> bytes:
    """A compact string. Topics, scopes and client ids repeat from record to record."""
    data = text.encode()
    return uvarint(len(data) + 1) + data


# --- reading ------------------------------------------------------------------------------------------------------


def decode_value(transactional_id: str, data: bytes | None) -> Record:
    """None is a tombstone. Raises ValueError if the bytes are not a value of version 0 to 3."""
    if data is None:
        return Tombstone(transactional_id)
    try:
        return _transaction(transactional_id, _Reader(data))
    except (struct.error, IndexError) as error:
        raise ValueError(f"a transaction log value of {transactional_id} that ends too early") from error


class _Reader:
    """Reads Kafka's primitive types, one after the other."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) != size:
            raise IndexError
        self._at += size
        return data

    def uvarint(self) -> int:
        value, self._at = read_uvarint(self._data, self._at)
        return value

    def string(self) -> str:
        return self.take(self._length()).decode()

    def array(self, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        return tuple([item() for _ in range(self._length())])

    def tagged(self) -> dict[int, bytes]:
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}

    def bits(self) -> int:
        return int.from_bytes(self.take(self._length()), "little")

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes too many")

    def _length(self) -> int:
        """Compact lengths count from 1; 0 is null, which is read as empty."""
        return max(0, self.uvarint() - 1)


_TopicPartitions = tuple[str, tuple[int, ...]]


def _transaction(transactional_id: str, reader: _Reader) -> Transaction:
    version, producer_id, epoch, timeout_ms, status = reader.unpack(_HEAD)
    if version not in (0, VALUE_VERSION, WHOLE_VERSION, TWO_PHASE_VERSION):
        raise ValueError(f"a transaction log value of version {version}")
    listed = _plain_topics(reader) if version == 0 else reader.array(lambda: _compact_topic(reader))
    last_update_ms, start_ms = reader.unpack(_TIMES)
    tagged = reader.tagged() if version else {}
    reader.end()
    fields = {tag: _Reader(content) for tag, content in tagged.items()}
    topics = _with_ids(listed, fields.get(_TOPIC_IDS))
    members = _each(fields, _MEMBER_SETS, lambda field: _read_member(field, topics))
    members += _each(fields, _MEMBERS, lambda field: _read_old_member(field, topics))
    state = State(status)
    opened = state is State.ONGOING
    untold = (0, timeout_ms if opened else 0)
    elapsed_ms, limit_ms = _read(fields, _LIMIT, lambda field: field.unpack(_TIMES), untold)
    return Transaction(
        transactional_id=transactional_id,
        state=state,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(epoch),
        last_producer_epoch=ProducerEpoch(_number(fields, _LAST_EPOCH, _I16, NO_PRODUCER_EPOCH)),
        previous_producer_id=ProducerId(_number(fields, _PREVIOUS_PRODUCER_ID, _I64, NO_PRODUCER_ID)),
        next_producer_id=ProducerId(_number(fields, _NEXT_PRODUCER_ID, _I64, NO_PRODUCER_ID)),
        next_producer_epoch=ProducerEpoch(_number(fields, _NEXT_PRODUCER_EPOCH, _I16, NO_PRODUCER_EPOCH)),
        two_phase=bool(_number(fields, _TWO_PHASE, _BOOL, 0)),
        timeout_ms=timeout_ms,
        client_version=_number(fields, _CLIENT_VERSION, _I16, 1),
        partitions=() if members else _partitions(topics),
        start_ms=TimestampMs(start_ms),
        last_update_ms=TimestampMs(last_update_ms),
        serial=Serial(_number(fields, _SERIAL, _I64, NO_TRANSACTION)),
        elapsed_ms=Millis(elapsed_ms),
        limit_ms=Millis(limit_ms),
        holder=_read(fields, _HOLDER, _read_holder, None),
        fencing=_read(fields, _FENCING, _read_fencing, None),
        tokens=_with_owners(
            _each(fields, _TOKENS, _read_token), _each(fields, _TOKEN_OWNERS, _read_token_owner),
            _each(fields, _TOKEN_PASTS, _read_token_past),
        )
        + tuple([replace(token, single_use=True) for token in _each(fields, _SINGLE_USE, _read_token)]),
        open_token=_with_owner(
            _read(fields, _OPEN_TOKEN, _read_open_token, None), _read(fields, _OPEN_TOKEN_OWNER, _read_owner, ("", 0))
        ),
        members=tuple(sorted(members, key=lambda member: member.producer_id)),
        idle_members=_each(fields, _IDLE_MEMBERS, _read_idle),
        policy=_read(fields, _POLICY, _read_policy, None),
        outcome=_read(fields, _OUTCOME, _read_outcome, None),
        runs=_each(fields, _RUNS, _Reader.string),
        takes_deltas=version >= WHOLE_VERSION or not opened,
    )


def _read(
    fields: dict[int, _Reader], tag: int, read: Callable[[_Reader], _Item], default: _Default
) -> _Item | _Default:
    field = fields.get(tag)
    return default if field is None else read(field)


def _each(fields: dict[int, _Reader], tag: int, read: Callable[[_Reader], _Item]) -> tuple[_Item, ...]:
    field = fields.get(tag)
    return () if field is None else field.array(lambda: read(field))


def _number(fields: dict[int, _Reader], tag: int, layout: struct.Struct, default: int) -> int:
    field = fields.get(tag)
    return default if field is None else field.unpack(layout)[0]


def _compact_topic(reader: _Reader) -> _TopicPartitions:
    topic = reader.string()
    partitions = reader.array(lambda: reader.unpack(_I32)[0])
    reader.tagged()
    return topic, partitions


def _plain_topics(reader: _Reader) -> tuple[_TopicPartitions, ...]:
    """Version 0: lengths are fixed-width, -1 is null."""
    topics = []
    for _ in range(reader.unpack(_I32)[0]):
        topic = reader.take(reader.unpack(_I16)[0]).decode()
        topics.append((topic, tuple(reader.unpack(_I32)[0] for _ in range(reader.unpack(_I32)[0]))))
    return tuple(topics)


_Topic = tuple[str, TopicId, tuple[int, ...]]


def _with_ids(listed: tuple[_TopicPartitions, ...], field: _Reader | None) -> tuple[_Topic, ...]:
    """Kafka's own records have no ids. Then all ids are zero, which means no topic."""
    ids = field.array(lambda: TopicId(field.take(16))) if field else (TopicId(bytes(16)),) * len(listed)
    if len(ids) != len(listed):
        raise ValueError(f"{len(ids)} topic ids for {len(listed)} topics")
    return tuple((topic, topic_id, partitions) for (topic, partitions), topic_id in zip(listed, ids, strict=True))


def _partitions(topics: tuple[_Topic, ...]) -> tuple[TransactionPartition, ...]:
    return tuple(
        TransactionPartition(topic, topic_id, PartitionIndex(partition))
        for topic, topic_id, partitions in topics
        for partition in partitions
    )


def _read_fencing(reader: _Reader) -> Fencing:
    cause, at_ms, producer_id, epoch, serial = reader.unpack(_FENCING_HEAD)
    return Fencing(
        cause=FencingCause(cause),
        at_ms=TimestampMs(at_ms),
        fenced_producer_id=ProducerId(producer_id),
        fenced_epoch=ProducerEpoch(epoch),
        serial=Serial(serial),
        client_id=reader.string(),
        peer=reader.string(),
        fenced=_known_holder(_read_holder(reader)),
    )


def _read_holder(reader: _Reader) -> Holder:
    return Holder(reader.string(), reader.string())


def _read_outcome(reader: _Reader) -> LastOutcome:
    committed, at_ms = reader.unpack(_LAST_OUTCOME)
    return LastOutcome(bool(committed), TimestampMs(at_ms))


def _known_holder(holder: Holder) -> Holder | None:
    return holder if holder.peer else None


def _read_token(reader: _Reader) -> CommittedToken:
    scope = reader.string()
    value, count, serial, at_ms = reader.unpack(_TOKEN_TAIL)
    reader.tagged()
    return CommittedToken(scope, value, count, Serial(serial), TimestampMs(at_ms))


def _read_open_token(reader: _Reader) -> Token:
    return Token(reader.string(), reader.unpack(_I64)[0])


def _read_owner(reader: _Reader) -> tuple[str, int]:
    return reader.string(), reader.unpack(_I64)[0]


def _with_owner(token: Token | None, owner: tuple[str, int]) -> Token | None:
    return None if token is None else Token(token.scope, token.value, *owner)


_TokenOwner = tuple[str, int, tuple[Fingerprint, ...]]


def _read_token_owner(reader: _Reader) -> _TokenOwner:
    owner, base = _read_owner(reader)
    fingerprints = reader.array(lambda: _read_fingerprint(reader))
    reader.tagged()
    return owner, base, fingerprints


def _read_token_past(reader: _Reader) -> bytes:
    past = reader.take(max(0, reader.uvarint() - 1))
    reader.tagged()
    return past


def _with_owners(
    tokens: tuple[CommittedToken, ...], owners: tuple[_TokenOwner, ...], pasts: tuple[bytes, ...]
) -> tuple[CommittedToken, ...]:
    """Adds the owners and their pasts to the tokens. A record of an earlier version has none."""
    for what, added in (("owners", owners), ("pasts", pasts)):
        if added and len(added) != len(tokens):
            raise ValueError(f"{len(added)} {what} for {len(tokens)} commit tokens")
    if owners:
        tokens = tuple([
            replace(token, owner=owner, base=base, fingerprints=fingerprints)
            for token, (owner, base, fingerprints) in zip(tokens, owners, strict=True)
        ])
    return tuple([replace(token, past=past) for token, past in zip(tokens, pasts, strict=True)]) if pasts else tokens


def _read_fingerprint(reader: _Reader) -> Fingerprint:
    kind, digest = reader.string(), reader.take(max(0, reader.uvarint() - 1))
    reader.tagged()
    return Fingerprint(kind, digest)


def _read_member(reader: _Reader, topics: tuple[_Topic, ...]) -> Member:
    member, held = _read_member_of(reader, lambda: _read_member_topic(reader, topics))
    return replace(
        member,
        partitions=PartitionSet(tuple([registered for registered, _ in held])),
        won=PartitionSet(tuple([won for _, won in held if won.bits])),
    )


def _read_member_of(reader: _Reader, read_held: Callable[[], _Item]) -> tuple[Member, tuple[_Item, ...]]:
    """A member without its partitions, and its items in the form of its version."""
    key = reader.string()
    producer_id, epoch = reader.unpack(_IDENTITY)
    held = reader.array(read_held)
    reader.tagged()
    return Member(key, ProducerId(producer_id), ProducerEpoch(epoch)), held


def _read_member_topic(reader: _Reader, topics: tuple[_Topic, ...]) -> tuple[TopicBits, TopicBits]:
    topic, topic_id, _ = topics[reader.unpack(_I32)[0]]
    registered, won = reader.bits(), reader.bits()
    reader.tagged()
    return TopicBits(topic, topic_id, registered), TopicBits(topic, topic_id, won)


def _read_old_member(reader: _Reader, topics: tuple[_Topic, ...]) -> Member:
    """Reads a member in the form of version 1."""
    member, held = _read_member_of(reader, lambda: _read_member_partition(reader, topics))
    return replace(
        member,
        partitions=PartitionSet.of(partition for partition, _ in held),
        won=PartitionSet.of(partition for partition, won in held if won),
    )


def _read_member_partition(reader: _Reader, topics: tuple[_Topic, ...]) -> tuple[TransactionPartition, bool]:
    place, partition, won = reader.unpack(_MEMBER_PARTITION)
    reader.tagged()
    topic, topic_id, _ = topics[place]
    return TransactionPartition(topic, topic_id, PartitionIndex(partition)), bool(won)


def _read_idle(reader: _Reader) -> ProducerIdentity:
    producer_id, epoch = reader.unpack(_IDENTITY)
    reader.tagged()
    return ProducerIdentity(ProducerId(producer_id), ProducerEpoch(epoch))


def _read_policy(reader: _Reader) -> Policy:
    return Policy(reader.array(reader.string), reader.unpack(_I32)[0])


def _delta(transactional_id: str, producer_id: ProducerId, value: _Reader) -> Delta:
    version, serial, elapsed_ms, limit_ms, last_update_ms = value.unpack(_DELTA_HEAD)
    if version != DELTA_VALUE_VERSION:
        raise ValueError(f"a transaction delta of version {version}")
    member_key = value.string()
    epoch = ProducerEpoch(value.unpack(_I16)[0])
    partitions = PartitionSet(value.array(lambda: _read_topic_bits(value)))
    value.tagged()
    value.end()
    return Delta(
        transactional_id=transactional_id,
        serial=Serial(serial),
        elapsed_ms=Millis(elapsed_ms),
        limit_ms=Millis(limit_ms),
        last_update_ms=TimestampMs(last_update_ms),
        member=None if producer_id == NO_PRODUCER_ID else Member(member_key, producer_id, epoch, partitions),
    )


def _read_topic_bits(reader: _Reader) -> TopicBits:
    topic, topic_id, bits = reader.string(), TopicId(reader.take(16)), reader.bits()
    reader.tagged()
    return TopicBits(topic, topic_id, bits)

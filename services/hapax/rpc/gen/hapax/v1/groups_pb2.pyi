from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListGroupsRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("group_id", "shard", "committed", "pending", "members", "protocol", "state")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    shard: int
    committed: int
    pending: int
    members: int
    protocol: str
    state: str
    def __init__(self, group_id: _Optional[str] = ..., shard: _Optional[int] = ..., committed: _Optional[int] = ..., pending: _Optional[int] = ..., members: _Optional[int] = ..., protocol: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("error", "reason", "groups")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class GroupOffset(_message.Message):
    __slots__ = ("topic", "partition", "offset", "leader_epoch", "metadata", "committed_ms", "pending")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    pending: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., committed_ms: _Optional[int] = ..., pending: _Optional[bool] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member_id", "instance_id", "client_id", "client_host", "assigned", "epoch")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    assigned: _containers.RepeatedCompositeFieldContainer[OffsetName]
    epoch: int
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., assigned: _Optional[_Iterable[_Union[OffsetName, _Mapping]]] = ..., epoch: _Optional[int] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("error", "reason", "shard", "shard_epoch", "members", "offsets", "protocol", "state", "described")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DESCRIBED_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    shard: int
    shard_epoch: int
    members: int
    offsets: _containers.RepeatedCompositeFieldContainer[GroupOffset]
    protocol: str
    state: str
    described: _containers.RepeatedCompositeFieldContainer[GroupMember]
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., shard: _Optional[int] = ..., shard_epoch: _Optional[int] = ..., members: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[GroupOffset, _Mapping]]] = ..., protocol: _Optional[str] = ..., state: _Optional[str] = ..., described: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ...) -> None: ...

class OffsetName(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class DeleteOffsetsRequest(_message.Message):
    __slots__ = ("group_id", "all", "partitions")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    all: bool
    partitions: _containers.RepeatedCompositeFieldContainer[OffsetName]
    def __init__(self, group_id: _Optional[str] = ..., all: _Optional[bool] = ..., partitions: _Optional[_Iterable[_Union[OffsetName, _Mapping]]] = ...) -> None: ...

class DeleteOffsetsResponse(_message.Message):
    __slots__ = ("error", "reason", "deleted")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    deleted: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., deleted: _Optional[int] = ...) -> None: ...

class DescribeShardsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShardState(_message.Message):
    __slots__ = ("kind", "shard", "epoch", "serving", "loaded_records", "entries")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    LOADED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    shard: int
    epoch: int
    serving: bool
    loaded_records: int
    entries: int
    def __init__(self, kind: _Optional[str] = ..., shard: _Optional[int] = ..., epoch: _Optional[int] = ..., serving: _Optional[bool] = ..., loaded_records: _Optional[int] = ..., entries: _Optional[int] = ...) -> None: ...

class DescribeShardsResponse(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[ShardState]
    def __init__(self, shards: _Optional[_Iterable[_Union[ShardState, _Mapping]]] = ...) -> None: ...

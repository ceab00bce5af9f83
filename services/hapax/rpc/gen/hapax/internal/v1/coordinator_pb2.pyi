from hapax.rpc.gen.hapax.internal.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyPartitionsRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "partitions", "add", "after_serial")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    AFTER_SERIAL_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    add: bool
    after_serial: int
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ..., add: _Optional[bool] = ..., after_serial: _Optional[int] = ...) -> None: ...

class VerifyPartitionsResponse(_message.Message):
    __slots__ = ("error", "reason", "shard", "shard_epoch", "serial", "partitions")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    shard: int
    shard_epoch: int
    serial: int
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.PartitionError]
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., shard: _Optional[int] = ..., shard_epoch: _Optional[int] = ..., serial: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_common_pb2.PartitionError, _Mapping]]] = ...) -> None: ...

class AbortHangingRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "partition", "first_offset", "own_shards_only", "serial", "last_offset")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OWN_SHARDS_ONLY_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partition: _common_pb2.TopicPartition
    first_offset: int
    own_shards_only: bool
    serial: int
    last_offset: int
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., first_offset: _Optional[int] = ..., own_shards_only: _Optional[bool] = ..., serial: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...

class AbortHangingResponse(_message.Message):
    __slots__ = ("error", "reason", "shards", "no_limit")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    NO_LIMIT_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    shards: _containers.RepeatedScalarFieldContainer[int]
    no_limit: bool
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., shards: _Optional[_Iterable[int]] = ..., no_limit: _Optional[bool] = ...) -> None: ...

class OffsetsMarker(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "commit", "coordinator_epoch", "serial", "group_shards", "shard")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    GROUP_SHARDS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    serial: int
    group_shards: _containers.RepeatedScalarFieldContainer[int]
    shard: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., commit: _Optional[bool] = ..., coordinator_epoch: _Optional[int] = ..., serial: _Optional[int] = ..., group_shards: _Optional[_Iterable[int]] = ..., shard: _Optional[int] = ...) -> None: ...

class WriteOffsetsMarkersRequest(_message.Message):
    __slots__ = ("markers",)
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    markers: _containers.RepeatedCompositeFieldContainer[OffsetsMarker]
    def __init__(self, markers: _Optional[_Iterable[_Union[OffsetsMarker, _Mapping]]] = ...) -> None: ...

class OffsetsMarkerResult(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.PartitionError]
    def __init__(self, partitions: _Optional[_Iterable[_Union[_common_pb2.PartitionError, _Mapping]]] = ...) -> None: ...

class WriteOffsetsMarkersResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[OffsetsMarkerResult]
    def __init__(self, results: _Optional[_Iterable[_Union[OffsetsMarkerResult, _Mapping]]] = ...) -> None: ...

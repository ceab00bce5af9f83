from hapax.rpc.gen.hapax.internal.v1 import common_pb2 as _common_pb2
from hapax.rpc.gen.hapax.v1 import partitions_pb2 as _partitions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Marker(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "commit", "coordinator_epoch", "serial", "first_offset", "partitions", "shard", "transaction_version", "last_offset")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    serial: int
    first_offset: int
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    shard: int
    transaction_version: int
    last_offset: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., commit: _Optional[bool] = ..., coordinator_epoch: _Optional[int] = ..., serial: _Optional[int] = ..., first_offset: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ..., shard: _Optional[int] = ..., transaction_version: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...

class WriteMarkersRequest(_message.Message):
    __slots__ = ("markers",)
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    markers: _containers.RepeatedCompositeFieldContainer[Marker]
    def __init__(self, markers: _Optional[_Iterable[_Union[Marker, _Mapping]]] = ...) -> None: ...

class WriteMarkersResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[MarkerResult]
    def __init__(self, results: _Optional[_Iterable[_Union[MarkerResult, _Mapping]]] = ...) -> None: ...

class MarkerResult(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.PartitionError]
    def __init__(self, partitions: _Optional[_Iterable[_Union[_common_pb2.PartitionError, _Mapping]]] = ...) -> None: ...

class DescribeProducersRequest(_message.Message):
    __slots__ = ("partitions", "producer_ids", "seal")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    seal: bool
    def __init__(self, partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ..., producer_ids: _Optional[_Iterable[int]] = ..., seal: _Optional[bool] = ...) -> None: ...

class FenceProducerRequest(_message.Message):
    __slots__ = ("partition", "producer_id", "producer_epoch", "keep_until_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEEP_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    producer_id: int
    producer_epoch: int
    keep_until_ms: int
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., keep_until_ms: _Optional[int] = ...) -> None: ...

class FenceProducerResponse(_message.Message):
    __slots__ = ("error", "reason", "state")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    state: _partitions_pb2.ProducerState
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., state: _Optional[_Union[_partitions_pb2.ProducerState, _Mapping]] = ...) -> None: ...

class FetchSnapshotRequest(_message.Message):
    __slots__ = ("partition", "leader_epoch", "offset", "position", "registration_epoch", "session")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    leader_epoch: int
    offset: int
    position: int
    registration_epoch: int
    session: bytes
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., leader_epoch: _Optional[int] = ..., offset: _Optional[int] = ..., position: _Optional[int] = ..., registration_epoch: _Optional[int] = ..., session: _Optional[bytes] = ...) -> None: ...

class FetchSnapshotResponse(_message.Message):
    __slots__ = ("error", "reason", "offset", "log_start_offset", "size", "data", "snapshot_size", "compacted")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SIZE_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    offset: int
    log_start_offset: int
    size: int
    data: bytes
    snapshot_size: int
    compacted: bool
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ..., snapshot_size: _Optional[int] = ..., compacted: _Optional[bool] = ...) -> None: ...

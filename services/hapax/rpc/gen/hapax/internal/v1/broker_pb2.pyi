from hapax.rpc.gen.hapax.internal.v1 import common_pb2 as _common_pb2
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

class ProducerState(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "last_sequence", "last_offset", "last_timestamp", "coordinator_epoch", "txn_first_offset", "record_count", "transactional_id", "txn_record_count")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TXN_FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int
    record_count: int
    transactional_id: str
    txn_record_count: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., last_sequence: _Optional[int] = ..., last_offset: _Optional[int] = ..., last_timestamp: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., txn_first_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., transactional_id: _Optional[str] = ..., txn_record_count: _Optional[int] = ...) -> None: ...

class PartitionProducers(_message.Message):
    __slots__ = ("partition", "error", "reason", "producers", "unknown_producer_ids")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    error: int
    reason: str
    producers: _containers.RepeatedCompositeFieldContainer[ProducerState]
    unknown_producer_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ..., producers: _Optional[_Iterable[_Union[ProducerState, _Mapping]]] = ..., unknown_producer_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeProducersResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionProducers]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionProducers, _Mapping]]] = ...) -> None: ...

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
    state: ProducerState
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., state: _Optional[_Union[ProducerState, _Mapping]] = ...) -> None: ...

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

class DescribeReplicasRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ...) -> None: ...

class ReplicaState(_message.Message):
    __slots__ = ("node_id", "end_offset", "in_sync", "lag_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    end_offset: int
    in_sync: bool
    lag_bytes: int
    def __init__(self, node_id: _Optional[int] = ..., end_offset: _Optional[int] = ..., in_sync: _Optional[bool] = ..., lag_bytes: _Optional[int] = ...) -> None: ...

class PartitionReplicas(_message.Message):
    __slots__ = ("partition", "error", "reason", "leader_epoch", "leads", "log_start_offset", "log_end_offset", "high_watermark", "size_bytes", "replicas")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    partition: _common_pb2.TopicPartition
    error: int
    reason: str
    leader_epoch: int
    leads: bool
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    size_bytes: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaState]
    def __init__(self, partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ..., leader_epoch: _Optional[int] = ..., leads: _Optional[bool] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., size_bytes: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaState, _Mapping]]] = ...) -> None: ...

class DescribeReplicasResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionReplicas]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionReplicas, _Mapping]]] = ...) -> None: ...

class DescribeOffsetsRequest(_message.Message):
    __slots__ = ("partitions", "count_from", "count_max_bytes")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FROM_FIELD_NUMBER: _ClassVar[int]
    COUNT_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    count_from: _containers.RepeatedScalarFieldContainer[int]
    count_max_bytes: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ..., count_from: _Optional[_Iterable[int]] = ..., count_max_bytes: _Optional[int] = ...) -> None: ...

class PartitionOffsets(_message.Message):
    __slots__ = ("error", "reason", "log_start_offset", "last_stable_offset", "high_watermark", "readable", "counted_to", "counted_bytes")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    READABLE_FIELD_NUMBER: _ClassVar[int]
    COUNTED_TO_FIELD_NUMBER: _ClassVar[int]
    COUNTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    readable: int
    counted_to: int
    counted_bytes: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., log_start_offset: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., readable: _Optional[int] = ..., counted_to: _Optional[int] = ..., counted_bytes: _Optional[int] = ...) -> None: ...

class DescribeOffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOffsets]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOffsets, _Mapping]]] = ...) -> None: ...

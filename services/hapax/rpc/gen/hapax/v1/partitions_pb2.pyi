from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PartitionOfTopicId(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class DescribeProducersRequest(_message.Message):
    __slots__ = ("partitions", "producer_ids")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOfTopicId]
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOfTopicId, _Mapping]]] = ..., producer_ids: _Optional[_Iterable[int]] = ...) -> None: ...

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
    partition: PartitionOfTopicId
    error: int
    reason: str
    producers: _containers.RepeatedCompositeFieldContainer[ProducerState]
    unknown_producer_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition: _Optional[_Union[PartitionOfTopicId, _Mapping]] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ..., producers: _Optional[_Iterable[_Union[ProducerState, _Mapping]]] = ..., unknown_producer_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeProducersResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionProducers]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionProducers, _Mapping]]] = ...) -> None: ...

class DescribeReplicasRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOfTopicId]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOfTopicId, _Mapping]]] = ...) -> None: ...

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
    partition: PartitionOfTopicId
    error: int
    reason: str
    leader_epoch: int
    leads: bool
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    size_bytes: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaState]
    def __init__(self, partition: _Optional[_Union[PartitionOfTopicId, _Mapping]] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ..., leader_epoch: _Optional[int] = ..., leads: _Optional[bool] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., size_bytes: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaState, _Mapping]]] = ...) -> None: ...

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
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOfTopicId]
    count_from: _containers.RepeatedScalarFieldContainer[int]
    count_max_bytes: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOfTopicId, _Mapping]]] = ..., count_from: _Optional[_Iterable[int]] = ..., count_max_bytes: _Optional[int] = ...) -> None: ...

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

from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Partition(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class LeasePidRequest(_message.Message):
    __slots__ = ("name", "partitions", "expire_ms", "holder", "resume_producer_id", "resume_generation", "unless_held", "call_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_MS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    RESUME_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_GENERATION_FIELD_NUMBER: _ClassVar[int]
    UNLESS_HELD_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    expire_ms: int
    holder: str
    resume_producer_id: int
    resume_generation: int
    unless_held: bool
    call_id: bytes
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., expire_ms: _Optional[int] = ..., holder: _Optional[str] = ..., resume_producer_id: _Optional[int] = ..., resume_generation: _Optional[int] = ..., unless_held: _Optional[bool] = ..., call_id: _Optional[bytes] = ...) -> None: ...

class LeasedPartition(_message.Message):
    __slots__ = ("partition", "producer_id", "generation", "next_sequence", "record_count", "expires_at_ms", "error", "reason")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    producer_id: int
    generation: int
    next_sequence: int
    record_count: int
    expires_at_ms: int
    error: int
    reason: str
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., producer_id: _Optional[int] = ..., generation: _Optional[int] = ..., next_sequence: _Optional[int] = ..., record_count: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class LeasePidResponse(_message.Message):
    __slots__ = ("error", "reason", "name", "partitions", "former_holder")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FORMER_HOLDER_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    name: str
    partitions: _containers.RepeatedCompositeFieldContainer[LeasedPartition]
    former_holder: str
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., name: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[LeasedPartition, _Mapping]]] = ..., former_holder: _Optional[str] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("name", "producer_id", "generation", "expire_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer_id: int
    generation: int
    expire_ms: int
    def __init__(self, name: _Optional[str] = ..., producer_id: _Optional[int] = ..., generation: _Optional[int] = ..., expire_ms: _Optional[int] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("error", "reason", "expires_at_ms")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    expires_at_ms: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., expires_at_ms: _Optional[int] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("name", "producer_id", "generation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer_id: int
    generation: int
    def __init__(self, name: _Optional[str] = ..., producer_id: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class ReleaseLeaseResponse(_message.Message):
    __slots__ = ("error", "reason")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("name", "producer_id", "generation", "holder", "expires_at_ms", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer_id: int
    generation: int
    holder: str
    expires_at_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, name: _Optional[str] = ..., producer_id: _Optional[int] = ..., generation: _Optional[int] = ..., holder: _Optional[str] = ..., expires_at_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class GetProducerProgressRequest(_message.Message):
    __slots__ = ("producer_id", "name", "partitions")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    name: str
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, producer_id: _Optional[int] = ..., name: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class ProducerProgress(_message.Message):
    __slots__ = ("partition", "record_count", "generation", "last_sequence", "last_offset", "error", "reason")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    record_count: int
    generation: int
    last_sequence: int
    last_offset: int
    error: int
    reason: str
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ..., record_count: _Optional[int] = ..., generation: _Optional[int] = ..., last_sequence: _Optional[int] = ..., last_offset: _Optional[int] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class GetProducerProgressResponse(_message.Message):
    __slots__ = ("error", "reason", "partitions")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    partitions: _containers.RepeatedCompositeFieldContainer[ProducerProgress]
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[ProducerProgress, _Mapping]]] = ...) -> None: ...

from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ImportBatchesRequest(_message.Message):
    __slots__ = ("topic_id", "partition", "first_offset", "batches", "position", "size")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    first_offset: int
    batches: bytes
    position: int
    size: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., batches: _Optional[bytes] = ..., position: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class ImportBatchesResponse(_message.Message):
    __slots__ = ("error", "reason", "log_end_offset", "high_watermark")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    log_end_offset: int
    high_watermark: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., log_end_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ...) -> None: ...

class ImportTransactionalIdRequest(_message.Message):
    __slots__ = ("transactional_id", "record", "producer_id_floor")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FLOOR_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    record: bytes
    producer_id_floor: int
    def __init__(self, transactional_id: _Optional[str] = ..., record: _Optional[bytes] = ..., producer_id_floor: _Optional[int] = ...) -> None: ...

class ImportTransactionalIdResponse(_message.Message):
    __slots__ = ("error", "reason", "producer_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    producer_id: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., producer_id: _Optional[int] = ...) -> None: ...

class ReserveProducerIdsRequest(_message.Message):
    __slots__ = ("producer_id_floor",)
    PRODUCER_ID_FLOOR_FIELD_NUMBER: _ClassVar[int]
    producer_id_floor: int
    def __init__(self, producer_id_floor: _Optional[int] = ...) -> None: ...

class ReserveProducerIdsResponse(_message.Message):
    __slots__ = ("error", "reason", "counter")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    counter: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., counter: _Optional[int] = ...) -> None: ...

class ImportedCount(_message.Message):
    __slots__ = ("topic_id", "partition", "record_count")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    record_count: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., record_count: _Optional[int] = ...) -> None: ...

class ImportLeaseRequest(_message.Message):
    __slots__ = ("name", "counts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    counts: _containers.RepeatedCompositeFieldContainer[ImportedCount]
    def __init__(self, name: _Optional[str] = ..., counts: _Optional[_Iterable[_Union[ImportedCount, _Mapping]]] = ...) -> None: ...

class ImportLeaseResponse(_message.Message):
    __slots__ = ("error", "reason")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class NoteBackupRequest(_message.Message):
    __slots__ = ("backup", "restored")
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    backup: str
    restored: bool
    def __init__(self, backup: _Optional[str] = ..., restored: _Optional[bool] = ...) -> None: ...

class NoteBackupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

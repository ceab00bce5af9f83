from hapax.rpc.gen.hapax.v1 import lease_pb2 as _lease_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    COMMITTED: _ClassVar[Outcome]
    ABORTED: _ClassVar[Outcome]
    ALREADY_COMMITTED: _ClassVar[Outcome]
OUTCOME_UNSPECIFIED: Outcome
COMMITTED: Outcome
ABORTED: Outcome
ALREADY_COMMITTED: Outcome

class CommitToken(_message.Message):
    __slots__ = ("scope", "value")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    scope: str
    value: int
    def __init__(self, scope: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class JoinTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "token", "member_key", "timeout_ms", "allow_unknown_history")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MEMBER_KEY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNKNOWN_HISTORY_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    token: CommitToken
    member_key: str
    timeout_ms: int
    allow_unknown_history: bool
    def __init__(self, transactional_id: _Optional[str] = ..., token: _Optional[_Union[CommitToken, _Mapping]] = ..., member_key: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., allow_unknown_history: _Optional[bool] = ...) -> None: ...

class JoinTransactionResponse(_message.Message):
    __slots__ = ("error", "reason", "already_committed", "producer_id", "producer_epoch", "serial", "committed_value", "remaining_ms", "committed_records")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_VALUE_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    already_committed: bool
    producer_id: int
    producer_epoch: int
    serial: int
    committed_value: int
    remaining_ms: int
    committed_records: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., already_committed: _Optional[bool] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., serial: _Optional[int] = ..., committed_value: _Optional[int] = ..., remaining_ms: _Optional[int] = ..., committed_records: _Optional[int] = ...) -> None: ...

class RenewTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "token", "serial", "timeout_ms")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    token: CommitToken
    serial: int
    timeout_ms: int
    def __init__(self, transactional_id: _Optional[str] = ..., token: _Optional[_Union[CommitToken, _Mapping]] = ..., serial: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class RenewTransactionResponse(_message.Message):
    __slots__ = ("error", "reason", "remaining_ms")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    remaining_ms: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., remaining_ms: _Optional[int] = ...) -> None: ...

class WinnerPartition(_message.Message):
    __slots__ = ("partition", "last_sequence")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    partition: _lease_pb2.Partition
    last_sequence: int
    def __init__(self, partition: _Optional[_Union[_lease_pb2.Partition, _Mapping]] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class Winner(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "partitions")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    partitions: _containers.RepeatedCompositeFieldContainer[WinnerPartition]
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[WinnerPartition, _Mapping]]] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "commit", "token", "producer_id", "producer_epoch", "winners", "record_count", "allow_other_count", "serial", "allow_unknown_history")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WINNERS_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_OTHER_COUNT_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNKNOWN_HISTORY_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    commit: bool
    token: CommitToken
    producer_id: int
    producer_epoch: int
    winners: _containers.RepeatedCompositeFieldContainer[Winner]
    record_count: int
    allow_other_count: bool
    serial: int
    allow_unknown_history: bool
    def __init__(self, transactional_id: _Optional[str] = ..., commit: _Optional[bool] = ..., token: _Optional[_Union[CommitToken, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., winners: _Optional[_Iterable[_Union[Winner, _Mapping]]] = ..., record_count: _Optional[int] = ..., allow_other_count: _Optional[bool] = ..., serial: _Optional[int] = ..., allow_unknown_history: _Optional[bool] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("error", "reason", "outcome", "producer_id", "producer_epoch", "committed_records", "serial")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    outcome: Outcome
    producer_id: int
    producer_epoch: int
    committed_records: int
    serial: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., committed_records: _Optional[int] = ..., serial: _Optional[int] = ...) -> None: ...

class GetCommitTokenRequest(_message.Message):
    __slots__ = ("transactional_id", "scope")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    scope: str
    def __init__(self, transactional_id: _Optional[str] = ..., scope: _Optional[str] = ...) -> None: ...

class GetCommitTokenResponse(_message.Message):
    __slots__ = ("error", "reason", "found", "value", "record_count")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    found: bool
    value: int
    record_count: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., found: _Optional[bool] = ..., value: _Optional[int] = ..., record_count: _Optional[int] = ...) -> None: ...

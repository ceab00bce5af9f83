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
    __slots__ = ("scope", "value", "work")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    scope: str
    value: int
    work: Work
    def __init__(self, scope: _Optional[str] = ..., value: _Optional[int] = ..., work: _Optional[_Union[Work, _Mapping]] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("owner", "run", "follows", "continue_from", "fingerprints", "allow_other_work", "followed")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FROM_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_OTHER_WORK_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_FIELD_NUMBER: _ClassVar[int]
    owner: str
    run: str
    follows: int
    continue_from: CommitName
    fingerprints: _containers.RepeatedCompositeFieldContainer[Fingerprint]
    allow_other_work: bool
    followed: _containers.RepeatedCompositeFieldContainer[Fingerprint]
    def __init__(self, owner: _Optional[str] = ..., run: _Optional[str] = ..., follows: _Optional[int] = ..., continue_from: _Optional[_Union[CommitName, _Mapping]] = ..., fingerprints: _Optional[_Iterable[_Union[Fingerprint, _Mapping]]] = ..., allow_other_work: _Optional[bool] = ..., followed: _Optional[_Iterable[_Union[Fingerprint, _Mapping]]] = ...) -> None: ...

class CommitName(_message.Message):
    __slots__ = ("owner", "value")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    owner: str
    value: int
    def __init__(self, owner: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class Fingerprint(_message.Message):
    __slots__ = ("kind", "digest")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    kind: str
    digest: bytes
    def __init__(self, kind: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class TokenConflict(_message.Message):
    __slots__ = ("cause", "newest")
    class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CAUSE_UNSPECIFIED: _ClassVar[TokenConflict.Cause]
        OLDER: _ClassVar[TokenConflict.Cause]
        OTHER_OWNER: _ClassVar[TokenConflict.Cause]
        OTHER_WORK: _ClassVar[TokenConflict.Cause]
        OTHER_COUNT: _ClassVar[TokenConflict.Cause]
        UNKNOWN_HISTORY: _ClassVar[TokenConflict.Cause]
        OTHER_RUN: _ClassVar[TokenConflict.Cause]
        OTHER_PAST: _ClassVar[TokenConflict.Cause]
    CAUSE_UNSPECIFIED: TokenConflict.Cause
    OLDER: TokenConflict.Cause
    OTHER_OWNER: TokenConflict.Cause
    OTHER_WORK: TokenConflict.Cause
    OTHER_COUNT: TokenConflict.Cause
    UNKNOWN_HISTORY: TokenConflict.Cause
    OTHER_RUN: TokenConflict.Cause
    OTHER_PAST: TokenConflict.Cause
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    cause: TokenConflict.Cause
    newest: LastCommitToken
    def __init__(self, cause: _Optional[_Union[TokenConflict.Cause, str]] = ..., newest: _Optional[_Union[LastCommitToken, _Mapping]] = ...) -> None: ...

class JoinTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "token", "member_key", "timeout_ms", "allow_unknown_history", "partition", "tentative")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MEMBER_KEY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNKNOWN_HISTORY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TENTATIVE_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    token: CommitToken
    member_key: str
    timeout_ms: int
    allow_unknown_history: bool
    partition: _lease_pb2.Partition
    tentative: bool
    def __init__(self, transactional_id: _Optional[str] = ..., token: _Optional[_Union[CommitToken, _Mapping]] = ..., member_key: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., allow_unknown_history: _Optional[bool] = ..., partition: _Optional[_Union[_lease_pb2.Partition, _Mapping]] = ..., tentative: _Optional[bool] = ...) -> None: ...

class JoinTransactionResponse(_message.Message):
    __slots__ = ("error", "reason", "already_committed", "producer_id", "producer_epoch", "serial", "committed_value", "remaining_ms", "committed_records", "conflict", "write_pass", "noted")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ALREADY_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_VALUE_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    WRITE_PASS_FIELD_NUMBER: _ClassVar[int]
    NOTED_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    already_committed: bool
    producer_id: int
    producer_epoch: int
    serial: int
    committed_value: int
    remaining_ms: int
    committed_records: int
    conflict: TokenConflict
    write_pass: bytes
    noted: bool
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., already_committed: _Optional[bool] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., serial: _Optional[int] = ..., committed_value: _Optional[int] = ..., remaining_ms: _Optional[int] = ..., committed_records: _Optional[int] = ..., conflict: _Optional[_Union[TokenConflict, _Mapping]] = ..., write_pass: _Optional[bytes] = ..., noted: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("transactional_id", "commit", "token", "producer_id", "producer_epoch", "winners", "record_count", "allow_other_count", "serial", "allow_unknown_history", "single_use")
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
    SINGLE_USE_FIELD_NUMBER: _ClassVar[int]
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
    single_use: bool
    def __init__(self, transactional_id: _Optional[str] = ..., commit: _Optional[bool] = ..., token: _Optional[_Union[CommitToken, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., winners: _Optional[_Iterable[_Union[Winner, _Mapping]]] = ..., record_count: _Optional[int] = ..., allow_other_count: _Optional[bool] = ..., serial: _Optional[int] = ..., allow_unknown_history: _Optional[bool] = ..., single_use: _Optional[bool] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("error", "reason", "outcome", "producer_id", "producer_epoch", "committed_records", "serial", "conflict")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    outcome: Outcome
    producer_id: int
    producer_epoch: int
    committed_records: int
    serial: int
    conflict: TokenConflict
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., committed_records: _Optional[int] = ..., serial: _Optional[int] = ..., conflict: _Optional[_Union[TokenConflict, _Mapping]] = ...) -> None: ...

class GetCommitTokenRequest(_message.Message):
    __slots__ = ("transactional_id", "scope")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    scope: str
    def __init__(self, transactional_id: _Optional[str] = ..., scope: _Optional[str] = ...) -> None: ...

class GetCommitTokenResponse(_message.Message):
    __slots__ = ("error", "reason", "found", "value", "record_count", "owner", "number")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    found: bool
    value: int
    record_count: int
    owner: str
    number: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., found: _Optional[bool] = ..., value: _Optional[int] = ..., record_count: _Optional[int] = ..., owner: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class DescribeTransactionalIdRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class LastCommitToken(_message.Message):
    __slots__ = ("scope", "value", "record_count", "committed_at_ms", "owner", "number", "fingerprints")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    scope: str
    value: int
    record_count: int
    committed_at_ms: int
    owner: str
    number: int
    fingerprints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, scope: _Optional[str] = ..., value: _Optional[int] = ..., record_count: _Optional[int] = ..., committed_at_ms: _Optional[int] = ..., owner: _Optional[str] = ..., number: _Optional[int] = ..., fingerprints: _Optional[_Iterable[str]] = ...) -> None: ...

class Fencing(_message.Message):
    __slots__ = ("cause", "at_ms", "client_id", "peer", "fenced_client_id", "fenced_peer", "fenced_epoch", "serial")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    FENCED_CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    FENCED_PEER_FIELD_NUMBER: _ClassVar[int]
    FENCED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    cause: str
    at_ms: int
    client_id: str
    peer: str
    fenced_client_id: str
    fenced_peer: str
    fenced_epoch: int
    serial: int
    def __init__(self, cause: _Optional[str] = ..., at_ms: _Optional[int] = ..., client_id: _Optional[str] = ..., peer: _Optional[str] = ..., fenced_client_id: _Optional[str] = ..., fenced_peer: _Optional[str] = ..., fenced_epoch: _Optional[int] = ..., serial: _Optional[int] = ...) -> None: ...

class DescribeTransactionalIdResponse(_message.Message):
    __slots__ = ("error", "reason", "state", "producer_id", "producer_epoch", "timeout_ms", "opened_ms", "partitions", "partition_count", "instance", "holder_client_id", "holder_peer", "decided", "committed", "decided_ms", "tokens", "fencing", "serial", "open_token", "two_phase", "holder_producer_id", "holder_producer_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    OPENED_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_PEER_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    DECIDED_MS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FENCING_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    OPEN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TWO_PHASE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    opened_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[_lease_pb2.Partition]
    partition_count: int
    instance: str
    holder_client_id: str
    holder_peer: str
    decided: bool
    committed: bool
    decided_ms: int
    tokens: _containers.RepeatedCompositeFieldContainer[LastCommitToken]
    fencing: Fencing
    serial: int
    open_token: LastCommitToken
    two_phase: bool
    holder_producer_id: int
    holder_producer_epoch: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., state: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., opened_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_lease_pb2.Partition, _Mapping]]] = ..., partition_count: _Optional[int] = ..., instance: _Optional[str] = ..., holder_client_id: _Optional[str] = ..., holder_peer: _Optional[str] = ..., decided: _Optional[bool] = ..., committed: _Optional[bool] = ..., decided_ms: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[LastCommitToken, _Mapping]]] = ..., fencing: _Optional[_Union[Fencing, _Mapping]] = ..., serial: _Optional[int] = ..., open_token: _Optional[_Union[LastCommitToken, _Mapping]] = ..., two_phase: _Optional[bool] = ..., holder_producer_id: _Optional[int] = ..., holder_producer_epoch: _Optional[int] = ...) -> None: ...

class EnsureTransactionalIdRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class EnsureTransactionalIdResponse(_message.Message):
    __slots__ = ("error", "reason", "producer_id", "producer_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    producer_id: int
    producer_epoch: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class FenceProducerRequest(_message.Message):
    __slots__ = ("transactional_id", "instance", "client_id", "host", "serial")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    instance: str
    client_id: str
    host: str
    serial: int
    def __init__(self, transactional_id: _Optional[str] = ..., instance: _Optional[str] = ..., client_id: _Optional[str] = ..., host: _Optional[str] = ..., serial: _Optional[int] = ...) -> None: ...

class FenceProducerResponse(_message.Message):
    __slots__ = ("error", "reason", "producer_id", "producer_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    producer_id: int
    producer_epoch: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class CommitPreparedRequest(_message.Message):
    __slots__ = ("transactional_id", "serial", "client_id", "host")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    serial: int
    client_id: str
    host: str
    def __init__(self, transactional_id: _Optional[str] = ..., serial: _Optional[int] = ..., client_id: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class CommitPreparedResponse(_message.Message):
    __slots__ = ("error", "reason", "producer_id", "producer_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    producer_id: int
    producer_epoch: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

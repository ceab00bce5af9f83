from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as _cluster_admin_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AskedBy(_message.Message):
    __slots__ = ("asker",)
    ASKER_FIELD_NUMBER: _ClassVar[int]
    asker: Asker
    def __init__(self, asker: _Optional[_Union[Asker, _Mapping]] = ...) -> None: ...

class Asker(_message.Message):
    __slots__ = ("principal", "address", "call")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    principal: str
    address: str
    call: str
    def __init__(self, principal: _Optional[str] = ..., address: _Optional[str] = ..., call: _Optional[str] = ...) -> None: ...

class Acl(_message.Message):
    __slots__ = ("type", "name", "pattern", "principal", "host", "operation", "permission")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int
    def __init__(self, type: _Optional[int] = ..., name: _Optional[str] = ..., pattern: _Optional[int] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[int] = ..., permission: _Optional[int] = ...) -> None: ...

class AclFilter(_message.Message):
    __slots__ = ("type", "name", "pattern", "principal", "host", "operation", "permission")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int
    def __init__(self, type: _Optional[int] = ..., name: _Optional[str] = ..., pattern: _Optional[int] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[int] = ..., permission: _Optional[int] = ...) -> None: ...

class AlterAclsRequest(_message.Message):
    __slots__ = ("add", "remove", "owner")
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    add: _containers.RepeatedCompositeFieldContainer[Acl]
    remove: _containers.RepeatedCompositeFieldContainer[AclFilter]
    owner: str
    def __init__(self, add: _Optional[_Iterable[_Union[Acl, _Mapping]]] = ..., remove: _Optional[_Iterable[_Union[AclFilter, _Mapping]]] = ..., owner: _Optional[str] = ...) -> None: ...

class AclResult(_message.Message):
    __slots__ = ("acl", "error", "reason")
    ACL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    acl: Acl
    error: int
    reason: str
    def __init__(self, acl: _Optional[_Union[Acl, _Mapping]] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RemovedAcls(_message.Message):
    __slots__ = ("error", "reason", "acls")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACLS_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    acls: _containers.RepeatedCompositeFieldContainer[AclResult]
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., acls: _Optional[_Iterable[_Union[AclResult, _Mapping]]] = ...) -> None: ...

class AlterAclsResponse(_message.Message):
    __slots__ = ("added", "removed", "revision")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    added: _containers.RepeatedCompositeFieldContainer[AclResult]
    removed: _containers.RepeatedCompositeFieldContainer[RemovedAcls]
    revision: int
    def __init__(self, added: _Optional[_Iterable[_Union[AclResult, _Mapping]]] = ..., removed: _Optional[_Iterable[_Union[RemovedAcls, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class ScramChange(_message.Message):
    __slots__ = ("user", "mechanism", "remove", "salt", "stored_key", "server_key", "iterations")
    USER_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    STORED_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    user: str
    mechanism: int
    remove: bool
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    def __init__(self, user: _Optional[str] = ..., mechanism: _Optional[int] = ..., remove: _Optional[bool] = ..., salt: _Optional[bytes] = ..., stored_key: _Optional[bytes] = ..., server_key: _Optional[bytes] = ..., iterations: _Optional[int] = ...) -> None: ...

class AlterScramCredentialsRequest(_message.Message):
    __slots__ = ("changes", "owner")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[ScramChange]
    owner: str
    def __init__(self, changes: _Optional[_Iterable[_Union[ScramChange, _Mapping]]] = ..., owner: _Optional[str] = ...) -> None: ...

class ScramResult(_message.Message):
    __slots__ = ("user", "error", "reason")
    USER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    user: str
    error: int
    reason: str
    def __init__(self, user: _Optional[str] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AlterScramCredentialsResponse(_message.Message):
    __slots__ = ("results", "revision")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ScramResult]
    revision: int
    def __init__(self, results: _Optional[_Iterable[_Union[ScramResult, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class QuotaEntityPart(_message.Message):
    __slots__ = ("type", "name")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class QuotaChange(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: float
    def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class EntityQuotas(_message.Message):
    __slots__ = ("entity", "changes")
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[QuotaEntityPart]
    changes: _containers.RepeatedCompositeFieldContainer[QuotaChange]
    def __init__(self, entity: _Optional[_Iterable[_Union[QuotaEntityPart, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[QuotaChange, _Mapping]]] = ...) -> None: ...

class AlterQuotasRequest(_message.Message):
    __slots__ = ("entries", "validate_only", "owner")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[EntityQuotas]
    validate_only: bool
    owner: str
    def __init__(self, entries: _Optional[_Iterable[_Union[EntityQuotas, _Mapping]]] = ..., validate_only: _Optional[bool] = ..., owner: _Optional[str] = ...) -> None: ...

class QuotaResult(_message.Message):
    __slots__ = ("error", "reason")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AlterQuotasResponse(_message.Message):
    __slots__ = ("results", "revision")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[QuotaResult]
    revision: int
    def __init__(self, results: _Optional[_Iterable[_Union[QuotaResult, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class TakeMutationsRequest(_message.Message):
    __slots__ = ("user", "client_id", "strict", "partitions")
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    strict: bool
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., strict: _Optional[bool] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class TakeMutationsResponse(_message.Message):
    __slots__ = ("error", "reason", "refused", "wait_ms", "rate")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    refused: _containers.RepeatedScalarFieldContainer[bool]
    wait_ms: int
    rate: float
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., refused: _Optional[_Iterable[bool]] = ..., wait_ms: _Optional[int] = ..., rate: _Optional[float] = ...) -> None: ...

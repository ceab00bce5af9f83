from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TopicSpec(_message.Message):
    __slots__ = ("name", "partitions", "replication_factor", "config", "internal", "assignment", "made_by")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    MADE_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    replication_factor: int
    config: _containers.ScalarMap[str, str]
    internal: bool
    assignment: _containers.RepeatedCompositeFieldContainer[Replicas]
    made_by: str
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., config: _Optional[_Mapping[str, str]] = ..., internal: _Optional[bool] = ..., assignment: _Optional[_Iterable[_Union[Replicas, _Mapping]]] = ..., made_by: _Optional[str] = ...) -> None: ...

class Replicas(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class TopicResult(_message.Message):
    __slots__ = ("name", "error", "reason", "topic_id", "partitions", "replication_factor", "lists_changed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    LISTS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    name: str
    error: int
    reason: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    lists_changed: bool
    def __init__(self, name: _Optional[str] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., lists_changed: _Optional[bool] = ...) -> None: ...

class CreateTopicsRequest(_message.Message):
    __slots__ = ("topics", "timeout_ms", "validate_only")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicSpec]
    timeout_ms: int
    validate_only: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicSpec, _Mapping]]] = ..., timeout_ms: _Optional[int] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class CreateTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class DeleteTopicsRequest(_message.Message):
    __slots__ = ("names", "topic_ids", "timeout_ms", "if_revisions")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    IF_REVISIONS_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    timeout_ms: int
    if_revisions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., topic_ids: _Optional[_Iterable[bytes]] = ..., timeout_ms: _Optional[int] = ..., if_revisions: _Optional[_Iterable[int]] = ...) -> None: ...

class DeleteTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class CreatePartitionsRequest(_message.Message):
    __slots__ = ("total_by_topic", "timeout_ms", "validate_only", "assignment_by_topic", "if_revision_by_topic")
    class TotalByTopicEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class AssignmentByTopicEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Assignment
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Assignment, _Mapping]] = ...) -> None: ...
    class IfRevisionByTopicEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOTAL_BY_TOPIC_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_BY_TOPIC_FIELD_NUMBER: _ClassVar[int]
    IF_REVISION_BY_TOPIC_FIELD_NUMBER: _ClassVar[int]
    total_by_topic: _containers.ScalarMap[str, int]
    timeout_ms: int
    validate_only: bool
    assignment_by_topic: _containers.MessageMap[str, Assignment]
    if_revision_by_topic: _containers.ScalarMap[str, int]
    def __init__(self, total_by_topic: _Optional[_Mapping[str, int]] = ..., timeout_ms: _Optional[int] = ..., validate_only: _Optional[bool] = ..., assignment_by_topic: _Optional[_Mapping[str, Assignment]] = ..., if_revision_by_topic: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Replicas]
    def __init__(self, partitions: _Optional[_Iterable[_Union[Replicas, _Mapping]]] = ...) -> None: ...

class CreatePartitionsResponse(_message.Message):
    __slots__ = ("topics", "revision")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    revision: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class TopicConfigChange(_message.Message):
    __slots__ = ("topic", "set", "reset", "if_revision", "replace", "append", "subtract")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class AppendEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SubtractEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    IF_REVISION_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    SUBTRACT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    set: _containers.ScalarMap[str, str]
    reset: _containers.RepeatedScalarFieldContainer[str]
    if_revision: int
    replace: bool
    append: _containers.ScalarMap[str, str]
    subtract: _containers.ScalarMap[str, str]
    def __init__(self, topic: _Optional[str] = ..., set: _Optional[_Mapping[str, str]] = ..., reset: _Optional[_Iterable[str]] = ..., if_revision: _Optional[int] = ..., replace: _Optional[bool] = ..., append: _Optional[_Mapping[str, str]] = ..., subtract: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AlterTopicConfigsRequest(_message.Message):
    __slots__ = ("changes", "validate_only")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[TopicConfigChange]
    validate_only: bool
    def __init__(self, changes: _Optional[_Iterable[_Union[TopicConfigChange, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class AlterTopicConfigsResponse(_message.Message):
    __slots__ = ("topics", "revision")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    revision: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class GroupConfigChange(_message.Message):
    __slots__ = ("group", "set", "reset", "replace")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    group: str
    set: _containers.ScalarMap[str, str]
    reset: _containers.RepeatedScalarFieldContainer[str]
    replace: bool
    def __init__(self, group: _Optional[str] = ..., set: _Optional[_Mapping[str, str]] = ..., reset: _Optional[_Iterable[str]] = ..., replace: _Optional[bool] = ...) -> None: ...

class GroupResult(_message.Message):
    __slots__ = ("group", "error", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: str
    error: int
    reason: str
    def __init__(self, group: _Optional[str] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AlterGroupConfigsRequest(_message.Message):
    __slots__ = ("changes", "validate_only")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[GroupConfigChange]
    validate_only: bool
    def __init__(self, changes: _Optional[_Iterable[_Union[GroupConfigChange, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class AlterGroupConfigsResponse(_message.Message):
    __slots__ = ("groups", "revision")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupResult]
    revision: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupResult, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class Reassignment(_message.Message):
    __slots__ = ("topic", "partition", "target")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    target: Replicas
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., target: _Optional[_Union[Replicas, _Mapping]] = ...) -> None: ...

class AlterReassignmentsRequest(_message.Message):
    __slots__ = ("moves", "keep_replication_factor")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    KEEP_REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[Reassignment]
    keep_replication_factor: bool
    def __init__(self, moves: _Optional[_Iterable[_Union[Reassignment, _Mapping]]] = ..., keep_replication_factor: _Optional[bool] = ...) -> None: ...

class PartitionResult(_message.Message):
    __slots__ = ("topic", "partition", "error", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: int
    reason: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AlterReassignmentsResponse(_message.Message):
    __slots__ = ("error", "reason", "partitions", "revision")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionResult]
    revision: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionResult, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class PartitionOfTopic(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class ElectLeadersRequest(_message.Message):
    __slots__ = ("partitions", "all", "unclean")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOfTopic]
    all: bool
    unclean: bool
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOfTopic, _Mapping]]] = ..., all: _Optional[bool] = ..., unclean: _Optional[bool] = ...) -> None: ...

class ElectLeadersResponse(_message.Message):
    __slots__ = ("error", "reason", "partitions", "revision")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionResult]
    revision: int
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionResult, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class SetReplicationRequest(_message.Message):
    __slots__ = ("drain", "undrain", "bytes_per_second", "drained_by")
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    UNDRAIN_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DRAINED_BY_FIELD_NUMBER: _ClassVar[int]
    drain: _containers.RepeatedScalarFieldContainer[int]
    undrain: _containers.RepeatedScalarFieldContainer[int]
    bytes_per_second: int
    drained_by: str
    def __init__(self, drain: _Optional[_Iterable[int]] = ..., undrain: _Optional[_Iterable[int]] = ..., bytes_per_second: _Optional[int] = ..., drained_by: _Optional[str] = ...) -> None: ...

class SetReplicationResponse(_message.Message):
    __slots__ = ("error", "reason")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    error: int
    reason: str
    def __init__(self, error: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

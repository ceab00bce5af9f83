from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class AllocateBlockRequest(_message.Message):
    __slots__ = ("node_id", "size", "in_use_below")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    IN_USE_BELOW_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    size: int
    in_use_below: int
    def __init__(self, node_id: _Optional[int] = ..., size: _Optional[int] = ..., in_use_below: _Optional[int] = ...) -> None: ...

class AllocateBlockResponse(_message.Message):
    __slots__ = ("first", "size")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    first: int
    size: int
    def __init__(self, first: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

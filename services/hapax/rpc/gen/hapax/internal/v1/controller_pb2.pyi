from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as _cluster_admin_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

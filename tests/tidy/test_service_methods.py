"""Who may call a service port is said for each of its methods, and for no other."""

from __future__ import annotations

from pathlib import Path

from hapax.core.access.services import CALLERS
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2, controller_pb2, coordinator_pb2, pid_pb2

_MODULES = (broker_pb2, controller_pb2, coordinator_pb2, pid_pb2)
_TRANSPORT = {"calls.proto", "common.proto"}
"""The stream that carries calls, and messages of several services."""
PROTO = Path(__file__).parents[2] / "proto/hapax/internal/v1"


def test_every_internal_method_says_who_may_call_it() -> None:
    files = {Path(module.DESCRIPTOR.name).name for module in _MODULES}
    assert files | _TRANSPORT == {each.name for each in PROTO.glob("*.proto")}, "a module is missing here"
    methods = {
        f"/{service.full_name}/{method.name}"
        for module in _MODULES for service in module.DESCRIPTOR.services_by_name.values() for method in service.methods}
    assert methods <= CALLERS.keys(), f"core/access/services.py says nothing of {sorted(methods - CALLERS.keys())}"
    assert {each for each in CALLERS if each not in methods} == {"/grpc.health.v1.Health/Check"}

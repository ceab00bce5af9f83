"""Mirrors and what is beside them, for tests."""

from __future__ import annotations

from typing import Any

from hapax_operator.access_file import Copiers
from hapax_operator.mirror_resource import MirrorResource, read_mirror

COPIERS = Copiers("hapax.home.svc:9092", "registry.example/hapax:1", "IfNotPresent", ("pull",))


def body(name: str = "orders", *, namespace: str = "shop", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Any:
    """`status`, `annotations` and `labels` go where they belong."""
    status, annotations = spec.pop("status", {}), spec.pop("annotations", {})
    metadata = {"deletionTimestamp": created} if spec.pop("deleting", False) else {}
    return {
        "metadata": {
            **metadata, "namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}", "generation": 1,
            "resourceVersion": "7", "creationTimestamp": created, "annotations": annotations,
            "labels": spec.pop("labels", {})},
        "spec": {"source": {"bootstrapServers": "old:9092"}, "topics": ["shop.orders"], **spec}, "status": status}


def mirror(name: str = "orders", **fields: Any) -> MirrorResource:
    return read_mirror(body(name, **fields))

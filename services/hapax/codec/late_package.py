"""Packages whose `__init__` runs only when one of its names is used.

A library's package often imports its whole client when only one module of it is needed: 0.3 s and 25 MB for
kafka-python's protocol classes, 0.5 s for aiokafka's record code. Modules of a late package are imported without
running the package's own `__init__`.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any


class _LatePackage(ModuleType):
    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if name.startswith("__") or spec is None or spec.loader is None:
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def place_late(package: str) -> None:
    """Parents first. Does nothing where the package is imported already."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _LatePackage
    sys.modules[package] = module
    parent, _, child = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)

"""What every request passes runs on the loop: a plain function would be given to a thread, and waited for."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import get_args

from fastapi.params import Depends

import hapax.admin
from hapax.admin.answers import Caller, known_parameters


def test_no_dependency_is_run_in_a_thread() -> None:
    (principal,) = (each.dependency for each in get_args(Caller) if isinstance(each, Depends))
    assert inspect.iscoroutinefunction(principal)
    assert inspect.iscoroutinefunction(known_parameters)


def test_there_are_no_others() -> None:
    found = []
    for module in pkgutil.iter_modules(hapax.admin.__path__):
        source = inspect.getsource(importlib.import_module(f"hapax.admin.{module.name}"))
        found += [module.name] * source.count("Depends(")
    assert sorted(found) == ["answers", "app"]

"""Merges pod templates, as Kubernetes' strategic merge does for the lists that have names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_KEYS: Final = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath",
    "imagePullSecrets": "name", "ports": "containerPort"}
"""Lists whose items are merged by this field. Items of `over` come last, unless `base` has them."""
_JOINED: Final = frozenset({"tolerations", "envFrom", "topologySpreadConstraints", "hostAliases"})
"""Lists that are put together; any other list of `over` replaces that of `base`."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` counts where both give a value."""
    result = dict(base)
    for name, value in over.items():
        before = result.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            result[name] = merged(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            result[name] = _lists(name, before, value)
        else:
            result[name] = value
    return result


def _lists(name: str, base: list[Any], over: list[Any]) -> list[Any]:
    key = _KEYS.get(name)
    if name in _JOINED:
        return [*base, *(each for each in over if each not in base)]
    if key is None:
        return over
    rest = {each[key]: each for each in over}
    found = []
    for each in base:
        of = rest.pop(each.get(key), None)
        # An environment variable and a volume have one of several kinds of source, which must not be mixed.
        found.append(each if of is None else of if name in ("env", "volumes") else merged(each, of))
    return [*found, *rest.values()]

"""Merges pod templates, as Kubernetes' strategic merge does for the lists that have names. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

POD_SECURITY: Final[Mapping[str, Any]] = {
    "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"}}
SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
"""Of a container."""
_LONGEST: Final = 46
"""Characters of `short_name`. With an infix and a number appended, a pod's name is still a valid host name."""

_KEYS: Final = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath",
    "imagePullSecrets": "name", "ports": "containerPort"}
"""Lists whose items are merged by this field. Items of `over` come last, unless `base` has them. An item without the
field is kept as it is: the API server refuses it with a sentence."""
_WHOLE: Final = frozenset({"env", "volumes", "volumeMounts"})
"""Lists whose items are replaced as a whole. A variable and a volume have one of several kinds of source, which must
not be mixed; and of a mount nothing may be left, such as that it is read-only, where another volume is mounted."""
_JOINED: Final = frozenset({"tolerations", "envFrom", "topologySpreadConstraints", "hostAliases"})
"""Lists that are put together; any other list of `over` replaces that of `base`."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` counts where both give a value. None is no value."""
    result = dict(base)
    for name, value in over.items():
        if value is None:
            continue
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
    nameless = [each for each in over if not _has(each, key)]
    rest = {each[key]: each for each in over if _has(each, key)}
    found = []
    for each in base:
        of = rest.pop(each[key], None) if _has(each, key) else None
        found.append(each if of is None else of if name in _WHOLE else merged(each, of))
    return [*found, *rest.values(), *nameless]


def _has(item: Any, key: str) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get(key), str | int)


def given_in(template: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata and spec of a template, without what names or owns a pod."""
    metadata = template.get("metadata") or {}
    about = {each: dict(metadata[each]) for each in ("labels", "annotations") if metadata.get(each)}
    return {"metadata": about, "spec": dict(template.get("spec") or {})}


def short_name(resource: str) -> str:
    """The beginning of the names of a resource's pods and of what else is beside them."""
    base = resource.replace(".", "-")
    if base != resource or len(base) > _LONGEST:
        base = f"{base[:_LONGEST - 9].rstrip('-')}-{hashlib.sha256(resource.encode()).hexdigest()[:8]}"
    return base

"""The version of a release: as PEP 440 has it for Python, as SemVer has it for the chart and the images."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from packaging.version import InvalidVersion, Version

_STAGES: Final = {"a": "alpha", "b": "beta", "rc": "rc"}
_TAG: Final = re.compile(r"v(\d.*)")


class Refused(Exception):
    """No release is made. The message says why, and what would help."""


def released(text: str) -> Version:
    """A version that a release may have: X.Y.Z, or X.Y.ZaN, X.Y.ZbN, X.Y.ZrcN before it. Raises Refused."""
    try:
        version = Version(text)
    except InvalidVersion:
        raise Refused(f"{text!r} is no version (PEP 440); such as 1.2.0 or 1.2.0rc1") from None
    if version.is_devrelease or version.is_postrelease or version.local is not None or version.epoch:
        raise Refused(f"{text} cannot be released: only X.Y.Z, and X.Y.ZaN, X.Y.ZbN or X.Y.ZrcN before it")
    if len(version.release) != 3:
        raise Refused(f"{text} has {len(version.release)} numbers, and SemVer, which the chart needs, has three")
    if str(version) != text:
        raise Refused(f"{text} is written {version} in PEP 440")
    return version


def semver(version: Version) -> str:
    """The same version for the chart and the images: 0.1.0rc1 is 0.1.0-rc.1, 0.1.0.dev0 is 0.1.0-dev.0."""
    text = ".".join(map(str, version.release))
    if version.pre is not None:
        stage, number = version.pre
        text += f"-{_STAGES[stage]}.{number}"
    if version.dev is not None:
        text += f"{'.' if version.pre else '-'}dev.{version.dev}"
    return text


def tag(version: Version) -> str:
    return f"v{version}"


def of_tags(tags: Iterable[str]) -> set[Version]:
    """The versions that these tags name; other tags name none."""
    found = set[Version]()
    for each in tags:
        if named := _TAG.fullmatch(each):
            try:
                found.add(Version(named[1]))
            except InvalidVersion:
                continue
    return found

"""Sections of CHANGELOG.md: `## Unreleased`, which grows with every change; `## VERSION - DATE` for each release."""

from __future__ import annotations

import re
from datetime import date

from packaging.version import InvalidVersion, Version
from scripts.release.versions import Refused


def section(text: str, name: str) -> str | None:
    """The lines below the heading that begins with `name`, stripped; None: there is no such heading."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        if heading.split(" - ")[0].strip() == name:
            return body.strip()
    return None


def cut(text: str, version: Version, day: date) -> str:
    """What is unreleased becomes the section of this version; an empty section `Unreleased` stays above it. A section
    that somebody has written already stays as it is. A release that changes nothing since its last candidate says so.
    Raises Refused."""
    if section(text, str(version)):
        return text
    heading = f"## Unreleased\n\n## {version} - {day.isoformat()}\n"
    if not section(text, "Unreleased"):
        candidates = _candidates(text, version)
        if not candidates:
            raise Refused(f"CHANGELOG.md has nothing under 'Unreleased': what would {version} bring?")
        heading += f"\nAs {max(candidates)}, without a change.\n"
    return re.sub(r"^## Unreleased *\n", heading, text, count=1, flags=re.MULTILINE)


def _candidates(text: str, version: Version) -> list[Version]:
    """The candidates of this release that have a section."""
    found = []
    for heading in re.findall(r"^## (\d\S*)", text, flags=re.MULTILINE):
        try:
            each = Version(heading)
        except InvalidVersion:
            continue
        if each.is_prerelease and not version.is_prerelease and each.release == version.release:
            found.append(each)
    return found


def notes(text: str, version: Version) -> str:
    """The release notes: the section of this version, under a title. Raises Refused."""
    body = section(text, str(version))
    if not body:
        raise Refused(f"CHANGELOG.md has no section {version}")
    if section(text, "Unreleased"):
        raise Refused(
            f"the tree states {version} already, but CHANGELOG.md has entries under 'Unreleased': move them into the"
            " section, or release a later version")
    return f"# Hapax {version}\n\n{body}\n"

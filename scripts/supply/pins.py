"""What the repository pins: each package with its exact version, and the lock files that name it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packageurl import PackageURL
from packaging.utils import canonicalize_name

MAVEN: Final = "{http://maven.apache.org/POM/4.0.0}"
SKIPPED: Final = {".venv", "node_modules", "build", ".git"}


@dataclass(frozen=True, order=True)
class Pin:
    ecosystem: str
    """As OSV names it: PyPI, npm, Maven."""
    name: str
    version: str

    @property
    def purl(self) -> str:
        namespace, _, name = self.name.rpartition({"Maven": ":"}.get(self.ecosystem, "/"))
        return PackageURL(self.ecosystem.lower(), namespace or None, name, self.version).to_string()


@dataclass(frozen=True)
class GoModule:
    """A go.mod whose sums are in a go.sum beside it. Only Go itself knows which of the modules end up in a program."""

    lock: str
    packages: tuple[str, ...]
    """Patterns of the packages that are built from it."""


def pinned(root: Path) -> dict[Pin, list[str]]:
    """Every package of the Python, npm and Maven files, with the paths (relative to root) of the files that name it."""
    found: dict[Pin, list[str]] = {}
    readers = {"requirements.lock": python_pins, "package-lock.json": _npm, "pom.xml": _maven}
    for path in _files(root, *readers):
        for pin in readers[path.name](path.read_text()):
            places = found.setdefault(pin, [])
            if str(path.relative_to(root)) not in places:
                places.append(str(path.relative_to(root)))
    return dict(sorted(found.items()))


def go_modules(root: Path) -> list[GoModule]:
    found = []
    for path in _files(root, "go.mod"):
        text = path.read_text()
        packages = ["./..."] if any(path.parent.rglob("*.go")) else []
        packages += ["tool"] if re.search(r"^tool\b", text, re.MULTILINE) else []
        if (path.parent / "tools.go").exists():
            # Its imports are the programs; the file itself is left out of every build.
            packages = re.findall(r'^import _ "(\S+)"', (path.parent / "tools.go").read_text(), re.MULTILINE)
        found.append(GoModule(str(path.relative_to(root)), tuple(packages)))
    return found


def _files(root: Path, *names: str) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.name in names and not SKIPPED & set(path.relative_to(root).parts):
            yield path


def python_pins(text: str) -> Iterator[Pin]:
    # A requirement begins a line; its hashes and the comment on where it comes from are indented.
    for name, version in re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE):
        yield Pin("PyPI", canonicalize_name(name), version)


def _npm(text: str) -> Iterator[Pin]:
    for place, package in json.loads(text)["packages"].items():
        if place:  # the empty one is the project itself
            yield Pin("npm", package.get("name") or place.rpartition("node_modules/")[2], package["version"])


def _maven(text: str) -> Iterator[Pin]:
    """The dependencies that the file names. Those that they bring along are not pinned by it."""
    tree = ET.fromstring(text)
    properties = {each.tag.removeprefix(MAVEN): each.text or "" for each in tree.iterfind(f"{MAVEN}properties/*")}
    for each in tree.iter(f"{MAVEN}dependency"):
        group, artifact, version = (
            re.sub(r"\$\{([^}]+)\}", lambda found: properties[found[1]], each.findtext(MAVEN + part, "").strip())
            for part in ("groupId", "artifactId", "version"))
        yield Pin("Maven", f"{group}:{artifact}", version)

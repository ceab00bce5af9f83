"""Writes images/*/requirements.lock: the part of requirements.lock that each image needs. `--check` only compares.

The part consists of the dependencies of the package and of the image's extras, and their dependencies in turn, as the
installed packages declare them. Versions and hashes come from requirements.lock.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "requirements.lock"
IMAGES: Final = {"hapax": ("admin", "operator"), "hapax-spark": ("spark",), "hapax-load": ("load",)}
"""The extras of each."""
BELOW: Final = {"hapax-load": "hapax"}
"""Image -> the image that it is built on, whose packages it need not contain."""

def wanted(extras_of_ours: tuple[str, ...]) -> set[NormalizedName]:
    """Canonical names of every package that the image needs, without the project's own."""
    found: set[NormalizedName] = set()
    waiting: list[tuple[str, frozenset[str]]] = [("hapaxlog", frozenset(extras_of_ours))]
    while waiting:
        name, extras = waiting.pop()
        for line in metadata.requires(name) or ():
            needed = Requirement(line)
            key = canonicalize_name(needed.name)
            if key in found:
                continue
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras | {""}):
                found.add(key)
                waiting.append((key, frozenset(needed.extras)))
    return found


def page(image: str) -> str:
    names = wanted(IMAGES[image]) - (wanted(IMAGES[BELOW[image]]) if image in BELOW else set())
    # A requirement begins a line; its hashes and the comment on where it comes from are indented.
    entries = re.findall(r"^(\S+)==(.*(?:\n[ \t]+--hash=\S+.*)*)", LOCK.read_text(), re.MULTILINE)
    chosen: dict[str, str] = {canonicalize_name(name): f"{name}=={rest}".rstrip("\\ ") for name, rest in entries}
    missing = names - set(chosen)
    assert not missing, f"requirements.lock does not have {sorted(missing)}"
    head = "# Written by scripts/images/requirements.py from requirements.lock (`make docs`).\n"
    return head + "".join(f"{chosen[name]}\n" for name in sorted(names))


def main() -> int:
    wrong = 0
    for name in IMAGES:
        path, text = ROOT / "images" / name / "requirements.lock", page(name)
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(ROOT)} is not what requirements.lock says: run `make docs`", file=sys.stderr)
            wrong = 1
        else:
            path.write_text(text)
    return wrong


if __name__ == "__main__":
    sys.exit(main())

"""Writes images/hapax/requirements.lock: what of requirements.lock the image needs. `--check` only compares.

Those are the dependencies of the package, of its extras `admin` and `operator`, and theirs, as the installed packages
name them; versions and hashes are the lock's.
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
PAGE: Final = ROOT / "images" / "hapax" / "requirements.lock"
_NOT_NEEDED: Final = {canonicalize_name("kubernetes")}
"""In a pod kopf logs in by the service account's files and needs no other client; it would double the image."""


def wanted() -> set[NormalizedName]:
    """Canonical names of every package that the image needs, without the project's own."""
    found: set[NormalizedName] = set()
    waiting: list[tuple[str, frozenset[str]]] = [("hapaxlog", frozenset({"admin", "operator"}))]
    while waiting:
        name, extras = waiting.pop()
        for line in metadata.requires(name) or ():
            needed = Requirement(line)
            key = canonicalize_name(needed.name)
            if key in found | _NOT_NEEDED:
                continue
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras | {""}):
                found.add(key)
                waiting.append((key, frozenset(needed.extras)))
    return found


def page() -> str:
    names = wanted()
    # A requirement begins a line; its hashes and the comment on where it comes from are indented.
    entries = re.findall(r"^(\S+)==(.*(?:\n[ \t]+--hash=\S+.*)*)", LOCK.read_text(), re.MULTILINE)
    chosen: dict[str, str] = {canonicalize_name(name): f"{name}=={rest}".rstrip("\\ ") for name, rest in entries}
    missing = names - set(chosen)
    assert not missing, f"requirements.lock does not have {sorted(missing)}"
    head = "# Written by scripts/images/requirements.py from requirements.lock (`make docs`).\n"
    return head + "".join(f"{chosen[name]}\n" for name in sorted(names))


def main() -> int:
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE.relative_to(ROOT)} is not what requirements.lock says: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

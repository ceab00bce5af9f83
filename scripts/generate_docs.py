"""Writes the pages that come from the source: `python scripts/generate_docs.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from hapax.runtime.settings import settings_page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {ROOT / "docs" / "settings.md": settings_page}


def main() -> int:
    stale = [path for path, page in PAGES.items() if not path.exists() or path.read_text() != page()]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what the source says: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(PAGES[path]())
    return 0


if __name__ == "__main__":
    sys.exit(main())

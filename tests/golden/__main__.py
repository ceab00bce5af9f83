"""`python -m golden v2`: writes today's formats as a new version beside the old ones, which stay as they are."""

from __future__ import annotations

import asyncio
import sys

from golden.versions import HERE, decoded_lines
from golden.writing import write_everything


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("which version? for instance: make golden VERSION=v2")
    folder = HERE / sys.argv[1]
    if folder.exists():
        sys.exit(f"{folder} is there already; what was released is never rewritten: choose the next version")
    folder.mkdir()
    asyncio.run(write_everything(folder))
    (folder / "broker-0" / ".lock").unlink()
    (folder / "decoded.jsonl").write_text("\n".join(decoded_lines(folder)) + "\n")
    print(f"{folder}: read it, and commit it with the change that made it necessary")


if __name__ == "__main__":
    main()

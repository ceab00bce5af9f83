"""Generates services/hapax/rpc/gen from proto/: `python scripts/generate_proto.py [--check]`.

The same input gives the same bytes. Imports between the generated modules are rewritten to `hapax.rpc.gen....`, so
that they need no change of `sys.path`. `--check` writes nothing and ends with exit code 1 if there is a difference.
"""

from __future__ import annotations

import filecmp
import re
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
GENERATED = ROOT / "services" / "hapax" / "rpc" / "gen"
_IMPORT = re.compile(r"^(from|import) hapax\.", re.MULTILINE)


def generate(target: Path) -> None:
    """Writes the package below `target`, which is emptied first."""
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    well_known = str(files("grpc_tools") / "_proto")
    arguments = ["protoc", f"-I{PROTO}", f"-I{well_known}", f"--python_out={target}", f"--pyi_out={target}", *sources]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")
    for module in sorted([*target.rglob("*.py"), *target.rglob("*.pyi")]):
        module.write_text(_IMPORT.sub(r"\1 hapax.rpc.gen.hapax.", module.read_text()))
    for folder in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").touch()


def differences(left: Path, right: Path) -> list[str]:
    names = {
        str(path.relative_to(side))
        for side in (left, right)
        for path in side.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return sorted(
        name
        for name in names
        if not (left / name).exists()
        or not (right / name).exists()
        or not filecmp.cmp(left / name, right / name, shallow=False)
    )


def main() -> int:
    if "--check" not in sys.argv[1:]:
        generate(GENERATED)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder) / "gen")
        stale = differences(Path(folder) / "gen", GENERATED)
    for name in stale:
        print(f"{GENERATED.relative_to(ROOT)}/{name} differs from proto/: run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

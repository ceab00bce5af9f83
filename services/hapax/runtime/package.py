"""Which release of Hapax this is. pyproject.toml states it; an installed package knows it from its metadata."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """As PEP 440 has it, such as "0.1.0rc1"; "unknown" where Hapax runs from a folder of sources."""
    try:
        return version("hapaxlog")
    except PackageNotFoundError:
        return "unknown"

"""The package's names: all there, and none loads more than it needs."""

from __future__ import annotations

import subprocess
import sys

import hapax.client


def test_every_public_name_is_there() -> None:
    for name in hapax.client.__all__:
        assert getattr(hapax.client, name) is not None
    assert set(hapax.client.__all__) == set(hapax.client._MODULE_OF)


def test_administration_loads_neither_record_code_nor_protobuf() -> None:
    source = "import sys; from hapax.client import Admin; print([m for m in ('cramjam', 'google.protobuf', 'grpc')"
    source += " if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

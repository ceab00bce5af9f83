"""`hapax verify` and what is not there any more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hapax.cli.main import application


@pytest.mark.parametrize(
    ("sizes", "missing"), [({}, []), ({"flights-0": 100, "flights-1": 0}, ["flights-0", "flights-1"])])
def test_a_partition_that_vanished_after_a_clean_stop_is_named(
    tmp_path: Path, sizes: dict[str, int], missing: list[str]
) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=0\n")
    (tmp_path / ".kafka_cleanshutdown").write_text(json.dumps({"version": 0, "brokerEpoch": -1, "sizes": sizes}))
    result = CliRunner().invoke(application(["verify"]), ["verify", "--json", str(tmp_path)])
    assert [each["file"] for each in json.loads(result.stdout)["damage"]] == [str(tmp_path / name) for name in missing]
    assert result.exit_code == bool(missing)

"""`make sbom`: complete, valid against CycloneDX's schema, the same twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from scripts.images.build import Image, write_layer
from scripts.supply.pins import python_pins
from scripts.supply.sbom import NAMES, NotPossible, document

ROOT = Path(__file__).resolve().parents[3]
OURS = ("hapaxlog", tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def locked(*images: str) -> set[tuple[str, str]]:
    texts = [(ROOT / "images" / image / "requirements.lock").read_text() for image in images]
    return {(pin.name, pin.version) for text in texts for pin in python_pins(text)}


def components(text: str, kind: str = "pypi") -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(text)["components"] if each["purl"].startswith(f"pkg:{kind}/")}


@pytest.mark.parametrize(("name", "locks"), [
    ("hapax", ["hapax"]), ("hapax-load", ["hapax", "hapax-load"]), ("hapax-spark", ["hapax-spark"])])  # fmt: skip
def test_an_image_consists_of_its_lock_files(name: str, locks: list[str]) -> None:
    text = document(name)
    found = components(text)
    assert {(each["name"], each["version"]) for each in found.values()} - {OURS} == locked(*locks)
    assert json.loads(text)["metadata"]["component"]["type"] == "container"
    edges = {each["ref"]: each.get("dependsOn", []) for each in json.loads(text)["dependencies"]}
    assert edges[f"image:{name}"] == [found["hapaxlog"]["bom-ref"]]
    assert found["grpcio"]["bom-ref"] in edges[found["hapaxlog"]["bom-ref"]]
    assert found["cffi"]["bom-ref"] in edges[found["cryptography"]["bom-ref"]]
    assert found["uvloop"]["licenses"]
    jars = components(text, "maven")
    assert bool(jars) == (name == "hapax-spark")
    if jars:
        assert len(jars) > 200 and jars["avro"]["group"] == "org.apache.avro"
        more = components(document("hapax-spark-s3"), "maven")
        assert len(more) > len(jars) and (more["sts"]["group"], more["hadoop-aws"]["group"]) == (
            "software.amazon.awssdk", "org.apache.hadoop")


def test_etcd_consists_of_the_modules_that_its_server_imports() -> None:
    if shutil.which("go") is None:
        pytest.skip("there is no Go toolchain")
    found = components(document("etcd"), "golang")
    assert found["bbolt"]["group"] == "go.etcd.io"
    pinned = (ROOT / "scripts" / "etcd" / "go.mod").read_text()
    assert f"github.com/klauspost/compress {found['compress']['version']} " in pinned


def test_what_only_an_extra_needs_is_optional() -> None:
    found = components(document("wheel"))
    assert found["uvloop"]["scope"] == "required" and found["locust"]["scope"] == "optional"
    assert "mypy" not in found


def test_the_same_sources_give_the_same_valid_bytes(tmp_path: Path) -> None:
    names = [each for each in NAMES if each not in ("etcd", "hapax-spark")]
    texts = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        subprocess.run(
            [sys.executable, "-m", "scripts.supply.sbom", f"--out={out}", *names],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True)  # fmt: skip
        texts.append([(out / f"{name}.cdx.json").read_text() for name in names])
    assert texts[0] == texts[1]
    for text in texts[0]:
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        assert "timestamp" not in json.loads(text)["metadata"]
    assert len({json.loads(text)["serialNumber"] for text in texts[0]}) == len(names)


def archive(folder: Path, packages: set[tuple[str, str]]) -> Path:
    for name, version in packages:
        info = folder / "target" / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText\n")
    (folder / "status").write_text(
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\nDescription: C\n more\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n")
    base = write_layer(folder / "base", [(folder / "status", "var/lib/dpkg/status")])
    own = write_layer(folder / "own", [(folder / "target", "opt/hapax")])
    Image("localhost/hapax:test", [base, own]).write(folder / "image.tar")
    return folder / "image.tar"


def test_an_archive_adds_the_packages_of_its_base(tmp_path: Path) -> None:
    text = document("hapax", archive(tmp_path, {*locked("hapax"), OURS}))
    assert {name: each["version"] for name, each in components(text, "deb").items()} == {"libc6": "2.36-9"}


def test_an_archive_with_other_packages_is_refused(tmp_path: Path) -> None:
    packages = {*locked("hapax"), OURS, ("jinja2", "2.11.2")}
    with pytest.raises(NotPossible, match=r"differ in .*jinja2"):
        document("hapax", archive(tmp_path, packages))

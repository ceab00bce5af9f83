"""Images of a release: a layout of OCI, and what `docker load` reads, in one archive; the same bytes every time."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from scripts.images.build import Image, write_layer
from scripts.images.oci import write_oci
from scripts.supply.sbom import read_archive

LABELS = {"org.opencontainers.image.version": "1.0.0", "org.opencontainers.image.created": "2026-01-02T03:04:05Z"}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("content " * 1000)
    layers = [write_layer(tmp_path / f"layer-{number}", [(tmp_path / "file", f"opt/{number}")]) for number in (1, 2)]
    Image("localhost/hapax:test", layers, {"Cmd": ["hapax", "--help"]}).write(tmp_path / "stored.tar")
    return tmp_path / "stored.tar"


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]


def test_every_blob_has_the_name_of_its_content_and_is_described(stored: Path, tmp_path: Path) -> None:
    digest = write_oci(stored, tmp_path / "image.tar", "localhost/hapax:1.0.0", LABELS)
    files = contents(tmp_path / "image.tar")
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}

    def blob(described: dict[str, Any]) -> bytes:
        content = files[f"blobs/sha256/{described['digest'].removeprefix('sha256:')}"]
        assert hashlib.sha256(content).hexdigest() == described["digest"].removeprefix("sha256:")
        assert len(content) == described["size"]
        return content

    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["digest"] == digest
    assert entry["annotations"] == {
        "io.containerd.image.name": "localhost/hapax:1.0.0", "org.opencontainers.image.ref.name": "1.0.0"}
    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    assert config["created"] == "2026-01-02T03:04:05Z"
    assert config["config"]["Labels"] == LABELS and config["config"]["Cmd"] == ["hapax", "--help"]
    layers = [gzip.decompress(blob(each)) for each in manifest["layers"]]
    assert [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers] == config["rootfs"]["diff_ids"]
    (docker,) = json.loads(files["manifest.json"])
    assert docker["RepoTags"] == ["localhost/hapax:1.0.0"]
    assert [files[each] for each in docker["Layers"]] == [blob(each) for each in manifest["layers"]]
    assert json.loads(files[docker["Config"]]) == config
    assert read_archive(tmp_path / "image.tar")[0] == "hapax"


def test_the_same_image_gives_the_same_bytes_on_any_day(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day, name in enumerate(("one", "two"), start=20_000):
        monkeypatch.setattr(time, "time", lambda seconds=day * 86_400.0: seconds)
        (tmp_path / name).mkdir()
        write_oci(stored, tmp_path / name / "image.tar", "localhost/hapax:1.0.0", LABELS)
    assert (tmp_path / "one" / "image.tar").read_bytes() == (tmp_path / "two" / "image.tar").read_bytes()
    assert [each.name for each in (tmp_path / "one").iterdir()] == ["image.tar"]

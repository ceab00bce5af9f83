"""An image as a release has it: an archive of an OCI image layout that `docker load` accepts too.

Layers are compressed, so that a copy to a registry keeps the image's digest, by which it is signed and pinned.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

_LEVEL: Final = 6
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_BLOBS: Final = "blobs/sha256"


def write_oci(docker_archive: Path, target: Path, name: str, labels: Mapping[str, str]) -> str:
    """Writes to `target` the image that scripts/images/build.py stored, under another name, such as
    `localhost/hapax:1.0.0`. `labels`: OCI annotations (org.opencontainers.image...); `...created` becomes the image's
    time. Returns the digest of its manifest. The same input gives the same bytes.
    """
    with tarfile.open(docker_archive) as source, tempfile.TemporaryDirectory(dir=target.parent) as folder:
        blobs = Path(folder)
        (entry,) = json.loads(_read(source, "manifest.json"))
        config = json.loads(_read(source, entry["Config"]))
        config["config"]["Labels"] = dict(labels)
        if created := labels.get("org.opencontainers.image.created"):
            config["created"] = created
            config["history"] = [{"created": created, "created_by": "hapax"} for _ in entry["Layers"]]
        layers = [_layer(source, layer, blobs) for layer in entry["Layers"]]
        described = _blob(blobs, _CONFIG, _json(config))
        manifest = _blob(blobs, _MANIFEST, _json({
            "schemaVersion": 2, "mediaType": _MANIFEST, "config": described, "layers": layers,
            "annotations": dict(labels),
        }))  # fmt: skip
        platform = {"architecture": config["architecture"], "os": config["os"]}
        # containerd goes by the first, skopeo and podman by the second.
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, "oci-layout", io.BytesIO(_json({"imageLayoutVersion": "1.0.0"})))
            _add(archive, "index.json", io.BytesIO(_json({
                "schemaVersion": 2, "mediaType": _INDEX,
                "manifests": [{**manifest, "platform": platform, "annotations": names}]})))
            _add(archive, "manifest.json", io.BytesIO(_json([{
                "Config": _path(described), "RepoTags": [name], "Layers": [_path(each) for each in layers]}])))
            for each in sorted(blobs.iterdir()):
                with open(each, "rb") as content:
                    _add(archive, f"{_BLOBS}/{each.name}", content)
        return str(manifest["digest"])


def _layer(source: tarfile.TarFile, name: str, blobs: Path) -> dict[str, Any]:
    content = source.extractfile(name)
    assert content is not None
    unnamed = blobs / "layer"
    with open(unnamed, "wb") as file, gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed:
        shutil.copyfileobj(content, packed, 1 << 20)
    with open(unnamed, "rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    stored = unnamed.replace(blobs / digest)
    return {"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": stored.stat().st_size}


def _blob(blobs: Path, kind: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _path(described: Mapping[str, Any]) -> str:
    return f"{_BLOBS}/{described['digest'].removeprefix('sha256:')}"


def _json(content: object) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    assert content is not None
    return content.read()


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = content.seek(0, io.SEEK_END)
    content.seek(0)
    archive.addfile(entry, content)

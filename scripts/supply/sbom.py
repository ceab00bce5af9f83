"""Writes what each image and the wheel consist of, as CycloneDX 1.6 in JSON: `make sbom`.

    python -m scripts.supply.sbom [--out FOLDER] [--archive PATH]... [NAME]...

NAME: hapax, hapax-load, hapax-spark, etcd (images), wheel. Python packages are those of the image's lock file, with the
licences and the dependencies that the installed packages declare; jars are those in PySpark; Go's modules are those of
which etcd's server imports a package. `--archive`: an image as scripts/images/build.py writes it. It adds the Debian
packages of the base, and must hold just the Python packages that the lock file names.

The same sources give the same bytes: there is no time in the file, and its serial number is made of its content.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scripts.images.requirements import BELOW, IMAGES, LOCK, ROOT
from scripts.supply.pins import python_pins

OURS: Final = "hapaxlog"
MORE_JARS: Final = {"hapax-spark-s3": "hapax-spark"}
"""Images that add jars, which their folder lists, to another image."""
NAMES: Final = (*IMAGES, *MORE_JARS, "etcd", "wheel")
_SPACE: Final = uuid.UUID("2f6f0a4e-5d0b-5c7e-9a37-1f1c6a6a7c11")
"""Names the serial numbers of these files."""


class NotPossible(Exception):
    """What the file must name cannot be found out here. The message says what is missing."""


# --- Python -------------------------------------------------------------------------------------------------------


@functools.cache
def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _own() -> Component:
    version = _project()["version"]
    return _library("pypi", None, OURS, version, [_project()["license"]])


def _python(names: Iterable[str], bom: Bom, own: Component) -> None:
    """Adds the packages (canonical names) and who needs whom."""
    pins = {pin.name: pin for pin in python_pins(LOCK.read_text())}
    parts = {
        name: _library("pypi", None, name, pins[name].version, _licences(metadata.metadata(name))) for name in names}
    bom.components.update(parts.values())
    for name, part in [*parts.items(), (OURS, own)]:
        bom.register_dependency(part, [parts[needed] for needed in _needs(name) if needed in parts])


def _needs(name: str, extras: Iterable[str] = ()) -> Iterator[str]:
    for line in metadata.requires(name) or ():
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in {*extras, ""}):
            yield canonicalize_name(needed.name)


def _licences(described: metadata.PackageMetadata) -> list[str]:
    """An SPDX expression where the package gives one; otherwise what its classifiers or its short field say."""
    if expression := described.get_all("License-Expression"):
        return expression
    trove = [text.rpartition(" :: ")[2] for text in described.get_all("Classifier") or () if text.startswith("License")]
    if trove := sorted({text for text in trove if text != "OSI Approved"}):
        return trove
    short = "".join(described.get_all("License") or ()).strip()
    return [short] if short and "\n" not in short and len(short) <= 80 and short != "UNKNOWN" else []


def _library(kind: str, group: str | None, name: str, version: str, licences: Iterable[str] = ()) -> Component:
    purl = PackageURL(kind, group, name, version)
    made = LicenseFactory()
    return Component(
        type=ComponentType.LIBRARY, group=group, name=name, version=version, purl=purl, bom_ref=purl.to_string(),
        licenses=[made.make_from_string(each) for each in licences])  # fmt: skip


# --- jars, Go, Debian ---------------------------------------------------------------------------------------------


def _jars(folder: Path) -> Iterator[Component]:
    """Each jar, by its own pom.properties where it has one and otherwise by its file's name."""
    for path in sorted(folder.glob("*.jar")):
        called = re.fullmatch(r"(.+?)-(\d.*)", path.stem)
        artifact, version = called.groups() if called else (path.stem, "")
        group = None
        with zipfile.ZipFile(path) as jar:
            for name in jar.namelist():
                if name.startswith("META-INF/maven/") and name.endswith(f"/{artifact}/pom.properties"):
                    known = dict(re.findall(r"^(\w+)=(.*?)\s*$", jar.read(name).decode(), re.MULTILINE))
                    group, version = known["groupId"], known["version"]
        yield _library("maven", group, artifact, version)


def _listed_jars(folder: Path) -> Iterator[Component]:
    """The jars of jars.sha256. pom.xml names the groups; modules of one group have one version there."""
    pom = (folder / "pom.xml").read_text()
    versions = dict(re.findall(r"<([\w.]+\.version)>(.+?)</", pom))
    groups = {versions[known]: group for group, known in re.findall(
        r"<groupId>([^*<]+)</groupId>\s*<artifactId>[^<]+</artifactId>\s*<version>\$\{(.+?)\}</version>", pom)}
    sums = (folder / "jars.sha256").read_text()
    for artifact, version in re.findall(r"^[0-9a-f]{64}  (.+?)-(\d.*)\.jar$", sums, re.MULTILINE):
        yield _library("maven", groups.get(version), artifact, version)


def _go_modules() -> Iterator[Component]:
    if shutil.which("go") is None:
        raise NotPossible("etcd's modules: there is no Go toolchain")
    package = re.findall(r'^import _ "(\S+)"', (ROOT / "scripts/etcd/tools.go").read_text(), re.MULTILINE)
    done = subprocess.run(
        ["go", "list", "-mod=readonly", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", *package],
        cwd=ROOT / "scripts/etcd", capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise NotPossible(f"etcd's modules: {done.stderr.strip()[-300:]}")
    for line in sorted(set(done.stdout.split("\n")) - {""}):
        path, version = line.split()
        group, _, name = path.rpartition("/")
        yield _library("golang", group or None, name, version)


def _debian(status: str) -> Iterator[Component]:
    """The installed packages of a dpkg database."""
    for entry in status.strip().split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", entry, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            purl = PackageURL("deb", "debian", fields["Package"], fields["Version"], {"arch": fields["Architecture"]})
            yield Component(
                type=ComponentType.LIBRARY, name=fields["Package"], version=fields["Version"], purl=purl,
                bom_ref=purl.to_string())  # fmt: skip


def read_archive(path: Path) -> tuple[str, str, set[tuple[str, str]]]:
    """(name of the image, its dpkg database, (name, version) of each Python package) of a docker-archive."""
    status, packages = "", set[tuple[str, str]]()
    with tarfile.open(path) as archive:
        content = archive.extractfile("manifest.json")
        assert content is not None
        (manifest,) = json.load(content)
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                for entry in files:
                    name = entry.name.removeprefix("./")
                    if name == "var/lib/dpkg/status":
                        status = _text(files, entry)
                    elif re.fullmatch(r"opt/hapax/[^/]+\.dist-info/METADATA", name):
                        known = dict(re.findall(r"^(Name|Version): (.*)$", _text(files, entry), re.MULTILINE))
                        packages.add((canonicalize_name(known["Name"]), known["Version"]))
    return str(manifest["RepoTags"][0]).rpartition("/")[2].partition(":")[0], status, packages


def _text(files: tarfile.TarFile, entry: tarfile.TarInfo) -> str:
    content = files.extractfile(entry)
    assert content is not None
    return content.read().decode()


# --- the documents ------------------------------------------------------------------------------------------------


def document(name: str, archive: Path | None = None) -> str:
    """The JSON of one of NAMES, checked against CycloneDX's schema. Raises NotPossible."""
    bom, own = Bom(), _own()
    if name == "etcd":
        modules = list(_go_modules())
        server = next(each for each in modules if str(each.purl).startswith("pkg:golang/go.etcd.io/etcd/server/"))
        bom.metadata.component = _container("etcd", server.version or "")
        bom.components.update(modules)
        bom.register_dependency(bom.metadata.component, modules)
    elif name == "wheel":
        bom.metadata.component = own
        needed = _closure(())
        optional = _closure(sorted({extra for extras in IMAGES.values() for extra in extras})) - needed
        _python(needed | optional, bom, own)
        for each in bom.components:
            each.scope = ComponentScope.OPTIONAL if each.name in optional else ComponentScope.REQUIRED
    else:
        bom.metadata.component = _container(name, own.version or "")
        bom.components.add(own)
        packages = {pin.name for lock in _locks(name) for pin in python_pins(lock.read_text())}
        _python(packages, bom, own)
        bom.register_dependency(bom.metadata.component, [own])
        if "pyspark" in packages:
            _add_jars(bom)
        if name in MORE_JARS:
            listed = list(_listed_jars(ROOT / "images" / name))
            bom.components.update(listed)
            bom.register_dependency(bom.metadata.component, listed)
        if archive is not None:
            _add_archive(bom, archive, name)
    return _written(bom)


def _closure(extras: Iterable[str]) -> set[str]:
    """Every package that the wheel with these extras needs, in turn."""
    found: set[str] = set()
    waiting = sorted({*_needs(OURS, extras)})
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += sorted(_needs(name))
    return found


def _locks(image: str) -> list[Path]:
    image = MORE_JARS.get(image, image)
    below = _locks(BELOW[image]) if image in BELOW else []
    return [*below, ROOT / "images" / image / "requirements.lock"]


def _container(name: str, version: str) -> Component:
    return Component(type=ComponentType.CONTAINER, name=name, version=version, bom_ref=f"image:{name}")


def _add_jars(bom: Bom) -> None:
    import pyspark

    pins = {pin.name: pin.version for pin in python_pins(LOCK.read_text())}
    if pyspark.__version__ != pins["pyspark"]:
        raise NotPossible(f"the installed pyspark is {pyspark.__version__}, the lock file's {pins['pyspark']}")
    jars = list(_jars(Path(pyspark.__file__).parent / "jars"))
    bom.components.update(jars)
    bom.register_dependency(next(each for each in bom.components if each.name == "pyspark"), jars)


def _add_archive(bom: Bom, archive: Path, name: str) -> None:
    called, status, packages = read_archive(archive)
    if called != name:
        raise NotPossible(f"{archive} is the image {called}")
    locked = {(each.name, each.version or "") for each in bom.components if str(each.purl).startswith("pkg:pypi/")}
    if packages != locked:
        raise NotPossible(f"{name}'s archive and its lock file differ in {sorted(packages ^ locked)}")
    system = list(_debian(status))
    assert bom.metadata.component is not None
    bom.components.update(system)
    bom.register_dependency(bom.metadata.component, system)
    bom.metadata.component.properties.add(Property(name="hapax:base", value="debian"))


def _written(bom: Bom) -> str:
    bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.serial_number = _SPACE
    bom.serial_number = uuid.uuid5(_SPACE, JsonV1Dot6(bom).output_as_string())
    text = JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert problem is None, problem
    return text


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sbom", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=f"default: {' '.join(NAMES)}")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "sbom")
    parser.add_argument("--archive", type=Path, action="append", default=[], help="an image of scripts/images/build.py")
    asked = parser.parse_args(words)
    failed = 0
    asked.out.mkdir(parents=True, exist_ok=True)
    archives = {read_archive(each)[0]: each for each in asked.archive}
    for name in asked.names or NAMES:
        try:
            text = document(name, archives.get(name))
        except NotPossible as error:
            print(f"sbom: {name}: {error}", file=sys.stderr)
            failed = 1
            continue
        path = asked.out / f"{name}.cdx.json"
        path.write_text(text)
        print(f"{path} {len(json.loads(text)['components'])} components")
    return failed


if __name__ == "__main__":
    sys.exit(main())

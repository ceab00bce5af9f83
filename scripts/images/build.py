"""Builds the images for the tests' Kubernetes without Docker, as docker-archives: pause, etcd, Hapax, Spark, load.

    python scripts/images/build.py [pause] [etcd] [hapax] [hapax-spark] [hapax-spark-s3] [hapax-load]

Prints `NAME:TAG PATH` for each. `ctr images import`, `docker load`, `kind load image-archive` and `skopeo copy
docker-archive:PATH ...` accept them. They are stored in the user's cache under a hash of their sources. Hapax's base
is a Debian made by mmdebstrap, which needs root. images/*/Dockerfile build the same images with Docker. Exit code 4:
a requirement is missing on this machine; one line names it.
"""

from __future__ import annotations

import argparse
import compileall
import fcntl
import hashlib
import io
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hapax.local.etcd import built_binary

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "hapax" / "images"
USER: Final = "10001:10001"
SUITE: Final = "bookworm"
PACKAGES: Final = ("python3", "ca-certificates", "libstdc++6")
PYTHON: Final = "3.11"
"""The Python version of the suite. Wheels are chosen for it."""
THIS: Final = Path(__file__)
DEBIAN: Final = (
    "--mode=root", "--variant=essential", f"--include={','.join(PACKAGES)}", "--dpkgopt=force-unsafe-io",
    *(f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "man", "locale", "info", "lintian")),
    '--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/*', "--skip=output/dev",
)  # fmt: skip
JAVA: Final = (
    "--include=openjdk-17-jre-headless,tini,procps",
    # Java's packages create links in this folder to manual pages, which are excluded above.
    '--essential-hook=mkdir -p "$1"/usr/share/man/man1',
    # Hadoop's login asks for the name of the user that it runs as.
    '--customize-hook=echo "hapax:x:10001:10001::/tmp:/usr/sbin/nologin" >>"$1"/etc/passwd',
)
WHEELS: Final = (
    "--only-binary=:all:", f"--python-version={PYTHON}", "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux2014_x86_64",
)  # fmt: skip
GENERATED: Final = tuple(
    f"kubernetes/{part}client/{kind}/[a-z]*.py" for part in ("", "aio/") for kind in ("api", "models"))
"""The typed APIs and models of the Kubernetes client: 124 of its 126 MB. It loads them when they are first used, and
the operator uses none (tests/unit/operator/test_pruned_client.py)."""
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SPARK_HOME: Final = "/opt/hapax/pyspark"
SPARK_ENVIRONMENT: Final = (
    f"SPARK_HOME={SPARK_HOME}", "JAVA_HOME=/usr/lib/jvm/java-17-openjdk-amd64", "PYTHONPATH=/opt/hapax",
    "PYSPARK_PYTHON=/usr/bin/python3", "PYSPARK_DRIVER_PYTHON=/usr/bin/python3", "PYTHONUNBUFFERED=1", "HOME=/tmp",
)  # fmt: skip
BYTECODE: Final = ROOT / "scripts" / "spark_bytecode.py"
SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE", "proto", "services/hapax", "spark/hapax_spark",
                  "operator/hapax_operator")  # fmt: skip
LOAD: Final = "load/hapax_load"
S3: Final = ROOT / "images" / "hapax-spark-s3"


class NotPossible(Exception):
    """A requirement is missing on this machine. The message names it in one sentence."""


def say(text: str) -> None:
    print(f"images: {text}", file=sys.stderr, flush=True)


# --- the archive --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Image:
    name: str
    layers: list[Path]
    """Tar files, the lowest first."""
    config: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Reproducible: the same layers and the same config give the same bytes."""
        digests = [file_hash(each) for each in self.layers]
        config = json.dumps({
            "architecture": "amd64", "os": "linux", "config": {"Env": [f"PATH={PATH}"], **self.config},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        }, sort_keys=True).encode()  # fmt: skip
        config_name = hashlib.sha256(config).hexdigest() + ".json"
        manifest = [{"Config": config_name, "RepoTags": [self.name], "Layers": [f"{each}.tar" for each in digests]}]
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            _add_bytes(archive, config_name, config)
            for digest, layer in zip(digests, self.layers, strict=True):
                entry = tarfile.TarInfo(f"{digest}.tar")
                entry.size = layer.stat().st_size
                with open(layer, "rb") as content:
                    archive.addfile(entry, content)
            _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())


def write_layer(path: Path, sources: Sequence[tuple[Path, str]]) -> Path:
    """A tar of (file or folder, its path in the image). All entries belong to root."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = 0
        executable = entry.isdir() or entry.mode & 0o100
        entry.mode = 0o755 if executable else 0o644
        return entry

    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as layer:
        for source, place in sources:
            layer.add(source, place, filter=plain)  # a folder's entries are added in the order of their names
    return path


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def file_hash(path: Path) -> str:
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# --- the cache ----------------------------------------------------------------------------------------------------


def cached(kind: str, made_of: str, make: Callable[[Path], None], former: int = 2) -> Path:
    """CACHE/kind-HASH.tar; `make` writes it if it does not exist. Keeps `former` older archives of this kind."""
    path = CACHE / f"{kind}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.tar"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{kind}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a process that waited here finds the archive
        if not path.exists():
            unfinished = path.with_suffix(".new")
            make(unfinished)
            unfinished.replace(path)
        os.utime(path)
        # Not by a star: the archives of hapax-spark are none of hapax.
        kept = sorted(CACHE.glob(f"{kind}-{'[0-9a-f]' * 16}.tar"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-1 - former]:
            old.unlink()
    return path


def tree_hash(names: Sequence[str]) -> str:
    """A hash over names, modes and contents of all files in these folders, without Python's bytecode."""
    total = hashlib.sha256()
    for path in _files(names):
        total.update(f"{path.relative_to(ROOT)} {path.stat().st_mode & 0o100} {file_hash(path)}\n".encode())
    return total.hexdigest()


def _files(names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        start = ROOT / name
        if start.is_file():
            yield start
        for path in sorted(start.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                yield path


# --- the images ---------------------------------------------------------------------------------------------------


def kubernetes_binary(name: str) -> Path:
    done = subprocess.run(
        [ROOT / "scripts" / "kubernetes" / "build.sh"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise NotPossible("building the tests' Kubernetes failed; `make kube-binaries` shows why")
    return Path(done.stdout.strip()) / name


def pause() -> tuple[str, Path]:
    name = "localhost/pause:1"
    program = kubernetes_binary("pause")

    def make(path: Path) -> None:
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            layer = write_layer(Path(folder) / "layer", [(program, "pause")])
            Image(name, [layer], {"User": "65535:65535", "Entrypoint": ["/pause"]}).write(path)

    return name, cached("pause", f"{file_hash(program)} {file_hash(THIS)}", make)


def etcd() -> tuple[str, Path]:
    """The server with etcdctl and etcdutl, like the official image of etcd."""
    name = "localhost/etcd:3.6.16"
    small = built_binary()
    server = small if small.exists() else kubernetes_binary("etcd").resolve()
    programs = [server, kubernetes_binary("etcdctl"), kubernetes_binary("etcdutl")]

    def make(path: Path) -> None:
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            names = ("etcd", "etcdctl", "etcdutl")
            layer = write_layer(
                Path(folder) / "layer",
                [(program, f"usr/local/bin/{called}") for program, called in zip(programs, names, strict=True)])
            Image(name, [layer], {"User": USER, "Cmd": ["etcd"]}).write(path)

    return name, cached("etcd", " ".join(map(file_hash, [*programs, THIS])), make)


def hapax() -> tuple[str, Path]:
    return _of_layers("localhost/hapax:test", "hapax", _hapax_layers(), ["hapax", "--help"])


def hapax_load() -> tuple[str, Path]:
    """The image of Hapax with locust and its dependencies."""
    lock = ROOT / "images" / "hapax-load" / "requirements.lock"
    words = ("--no-deps", *WHEELS)
    more = cached("load-packages", f"{file_hash(lock)} {words}", lambda path: _packages(path, lock, words))

    def make(path: Path) -> None:
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            target = Path(folder) / "target"
            shutil.copytree(ROOT / LOAD, target / "hapax_load", ignore=shutil.ignore_patterns("__pycache__"))
            _compile(target)
            write_layer(path, [(target, "opt/hapax")])

    own = cached("load-own", f"{file_hash(THIS)} {tree_hash((LOAD,))}", make)
    return _of_layers(
        "localhost/hapax-load:test", "hapax-load", [*_hapax_layers(), more, own],
        ["python3", "-m", "hapax_load", "--help"])


def _hapax_layers() -> list[Path]:
    base = cached("base", f"{SUITE} {PACKAGES} {DEBIAN}", lambda path: _debian(path, DEBIAN))
    lock = ROOT / "images" / "hapax" / "requirements.lock"
    packages = cached("packages", f"{file_hash(lock)} {WHEELS} {GENERATED}", lambda path: _packages(path, lock, WHEELS))
    command = ROOT / "images" / "hapax" / "hapax"

    def make(path: Path) -> None:
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            target = Path(folder) / "target"
            _install_own(target, Path(folder))
            write_layer(path, [(target, "opt/hapax"), (command, "usr/local/bin/hapax")])

    made_of = " ".join([file_hash(command), file_hash(THIS), tree_hash(SOURCES)])
    return [base, packages, cached("own", made_of, make)]


def _of_layers(name: str, kind: str, layers: list[Path], command: list[str]) -> tuple[str, Path]:
    image = Image(name, layers, {
        "Env": [f"PATH={PATH}", "PYTHONPATH=/opt/hapax", "PYTHONUNBUFFERED=1"],
        "User": USER, "WorkingDir": "/tmp", "Cmd": command,
    })  # fmt: skip
    return name, cached(kind, " ".join(map(file_hash, [*layers, THIS])), image.write)


def hapax_spark() -> tuple[str, Path]:
    """Java 17, PySpark with its jars for Kubernetes, Hapax's client and data source, and the entry point."""
    return _spark("hapax-spark", [])


def hapax_spark_s3() -> tuple[str, Path]:
    """The same with the jars of images/hapax-spark-s3, for object stores."""
    sums = S3 / "jars.sha256"
    return _spark("hapax-spark-s3", [cached("s3-jars", f"{file_hash(sums)} {file_hash(S3 / 'pom.xml')}", _s3_jars)])


def _s3_jars(path: Path) -> None:
    if shutil.which("mvn") is None:
        raise NotPossible("the jars for object stores are fetched by mvn, which is not on the PATH")
    say("fetching the jars of images/hapax-spark-s3")
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(S3 / "pom.xml"), "dependency:copy-dependencies", "-DincludeScope=runtime",
             f"-DoutputDirectory={folder}"], capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode:
            raise NotPossible(f"mvn: {done.stdout.strip()[-2000:]}")
        found = {each.name: file_hash(each) for each in Path(folder).glob("*.jar")}
        wanted = {name: digest for digest, name in (line.split() for line in (S3 / "jars.sha256").open())}
        if found != wanted:
            raise NotPossible(f"{S3 / 'jars.sha256'} names other jars: {sorted(found.items() ^ wanted.items())}")
        write_layer(path, [(Path(folder), f"{SPARK_HOME[1:]}/jars")])


def _spark(image: str, more: list[Path]) -> tuple[str, Path]:
    """`more`: further layers."""
    name = f"localhost/{image}:test"
    system = (*DEBIAN, *JAVA)
    base = cached("java", f"{SUITE} {system}", lambda path: _debian(path, system))
    lock = ROOT / "images" / "hapax-spark" / "requirements.lock"
    # PySpark is published as a source distribution without code to compile. pip accepts that for another Python version
    # only without --only-binary.
    words = ("--no-deps", *WHEELS[1:])
    packages = cached(
        "pyspark", f"{file_hash(lock)} {words} {file_hash(BYTECODE)}", lambda path: _packages(path, lock, words))

    def make(path: Path) -> None:
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            target = Path(folder) / "target"
            _install_own(target, Path(folder))
            own = write_layer(Path(folder) / "own", [(target, "opt/hapax")])
            Image(name, [base, packages, *more, own], {
                "Env": [f"PATH={SPARK_HOME}/bin:{PATH}", *SPARK_ENVIRONMENT], "User": USER, "WorkingDir": "/tmp",
                "Entrypoint": ["tini", "-s", "--", "python3", "-P", "/opt/hapax/hapax_spark/container.py"],
            }).write(path)  # fmt: skip

    made_of = " ".join([*map(file_hash, [base, packages, *more, THIS]), tree_hash(SOURCES)])
    return name, cached(image, made_of, make, former=1)  # more than a gigabyte


def _debian(path: Path, options: Sequence[str]) -> None:
    if os.geteuid() != 0:
        raise NotPossible("mmdebstrap needs root; images/hapax/Dockerfile needs Docker instead")
    if shutil.which("mmdebstrap") is None:
        install_debian_packages("mmdebstrap")
    say(f"making a Debian {SUITE} (once, about a minute): {path.stem.partition('-')[0]}")
    # Use this machine's package sources if they are of the same suite; otherwise mmdebstrap's default.
    known = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
    sources = [str(each) for each in known if each.exists() and SUITE in each.read_text()]
    command = ["mmdebstrap", "--quiet", *options, "--format=tar", SUITE, str(path), *sources[:1]]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "SOURCE_DATE_EPOCH": "0"})
    if done.returncode:
        raise NotPossible(f"mmdebstrap: {done.stderr.strip()[-2000:]}")


def install_debian_packages(*names: str) -> None:
    """Raises NotPossible."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise NotPossible(f"{', '.join(names)} must be installed first: that needs root and apt-get")
    say(f"installing {', '.join(names)}")
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *names]):
        done = subprocess.run(
            ["apt-get", *words], capture_output=True, text=True, check=False,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        if done.returncode:
            raise NotPossible(f"apt-get {words[0]}: {done.stderr.strip()[-1000:]}")


def _packages(path: Path, lock: Path, options: Sequence[str]) -> None:
    say(f"installing the packages of images/{lock.parent.name}")
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        target = Path(folder) / "target"
        _install(target, "--require-hashes", *options, "-r", str(lock))
        write_layer(path, [(target, "opt/hapax")])


def _without_leftovers(folder: Path) -> Path:
    """A copy of the sources, because a build writes into its source folder."""
    for source in _files(SOURCES):
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    return folder


def _install_own(target: Path, folder: Path) -> None:
    """Hapax itself, by way of a wheel: installed from its folder, it would note the folder's path."""
    wheels = folder / "wheels"
    _pip("wheel", "--no-deps", f"--build-constraint={ROOT / 'requirements.lock'}", f"--wheel-dir={wheels}",
         str(_without_leftovers(folder / "source")))  # fmt: skip
    (wheel,) = wheels.iterdir()
    version = wheel.name.split("-")[1]
    _install(target, "--no-deps", "--no-index", f"--find-links={wheels}", f"hapaxlog=={version}")


def _pip(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--quiet"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPossible(f"pip: {done.stderr.strip()[-2000:]}")


def _install(target: Path, *words: str) -> None:
    _pip("install", "--no-compile", f"--target={target}", *words)
    for pattern in GENERATED:
        for file in target.glob(pattern):
            file.unlink()
    shutil.rmtree(target / "bin", ignore_errors=True)  # their first lines name this machine's Python
    _compile(target)


def _compile(target: Path) -> None:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON:
        # A pod's root file system is read-only: a module that is not compiled here would be compiled at each start.
        # Layers have no modification times, so Python must not compare them.
        compileall.compile_dir(
            target, quiet=2, workers=0, stripdir=str(target), prependdir="/opt/hapax",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        archives = target.glob("pyspark/python/lib/pyspark.zip")
        subprocess.run([sys.executable, str(BYTECODE), *map(str, archives)], check=True)


IMAGES: Final = {
    "pause": pause, "etcd": etcd, "hapax": hapax, "hapax-spark": hapax_spark, "hapax-spark-s3": hapax_spark_s3,
    "hapax-load": hapax_load}
WANTED: Final = ("pause", "etcd", "hapax")


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds images as docker-archives in the user's cache.")
    parser.add_argument("images", nargs="*", choices=[*IMAGES, []], help="default: the images of `make kube-test`")
    try:
        for each in parser.parse_args().images or WANTED:
            name, path = IMAGES[each]()
            print(name, path, flush=True)
    except NotPossible as error:
        say(str(error))
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())

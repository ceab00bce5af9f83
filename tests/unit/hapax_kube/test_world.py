"""Worlds that start at the same time leave each other's folders alone."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path

import pytest

from hapax_kube import world
from hapax_kube.world import World


def sweep() -> None:
    """As another process does it, if it may now."""
    with contextlib.suppress(BlockingIOError), world._alone(fcntl.LOCK_EX | fcntl.LOCK_NB):
        world._sweep()


def test_a_world_that_is_just_being_made_is_not_swept_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`make kube-test` starts two of them."""
    monkeypatch.setattr(world, "_WORLDS", tmp_path)
    flock = fcntl.flock

    def after_another_has_swept(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            sweep()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", after_another_has_swept)
    made = World()
    assert (made.folder / "lock").exists()
    monkeypatch.undo()
    monkeypatch.setattr(world, "_WORLDS", tmp_path)
    sweep()
    assert (made.folder / "lock").exists()
    made.end()
    assert not made.folder.exists()


def test_what_a_killed_keeper_left_is_swept_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(world, "_WORLDS", tmp_path)
    for name, file in (("hapax-kube-locked", "lock"), ("hapax-kube-bare", "other")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    sweep()
    assert not list(tmp_path.glob("hapax-kube-*"))

"""`make release-test`: what was not tried is told, and the exit code says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax_release.__main__ import EXTRAS, NotPossible, Trials
from hapax_release.newcomer import Failed

VERSION = "1.2.0rc1"


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    release = tmp_path / "release"
    release.mkdir()
    for name in (f"hapaxlog-{VERSION}-py3-none-any.whl", f"hapaxlog-{VERSION}.tar.gz", "hapax-1.2.0-rc.1.tgz",
                 "hapax-load-1.2.0-rc.1.oci.tar"):  # fmt: skip
        (release / name).touch()
    return Trials(release, tmp_path / "newcomer")


def test_images_and_extras_that_are_left_out_are_told(trials: Trials) -> None:
    assert list(trials.left_out(["admin", "operator", "load"])) == [
        ("pip install hapaxlog[spark]", "left out by --extras"),
        ("image hapax-1.2.0-rc.1.oci.tar", "the release has none (--images)"),
        ("image hapax-spark-1.2.0-rc.1.oci.tar", "the release has none (--images)"),
        ("image hapax-spark-s3-1.2.0-rc.1.oci.tar", "the release has none (--images)"),
    ]
    assert [what for what, _ in trials.left_out(list(EXTRAS))] == [
        f"image {name}-1.2.0-rc.1.oci.tar" for name in ("hapax", "hapax-spark", "hapax-spark-s3")]


@pytest.mark.parametrize(("problems", "code"), [
    ([], 0), ([NotPossible("no runc")], 3), ([NotPossible("no runc"), Failed("broken")], 1)])  # fmt: skip
def test_the_exit_code_tells_whether_all_was_tried(
    trials: Trials, problems: list[Exception], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with trials.trial("one that goes well"):
        pass
    for problem in problems:
        with trials.trial("another"):
            raise problem
    assert trials.verdict() == code
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == (
        f"1 trials went well, {int(code == 1)} failed, {int(code > 0)} were not tried: exit code {code}")
    assert said.count("not tried    another: no runc") == int(code > 0)

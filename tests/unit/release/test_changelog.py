from __future__ import annotations

from datetime import date

import pytest
from packaging.version import Version
from scripts.release.changelog import cut, notes, section
from scripts.release.versions import Refused

GROWN = """\
# Changelog

All notable changes.

## Unreleased

### Added
- A verb.

## 0.1.0 - 2026-01-02

### Fixed
- A loss.
"""
NEW, FORMER = Version("0.2.0"), Version("0.1.0")
DAY = date(2026, 3, 4)


def test_what_is_unreleased_becomes_the_section_of_the_version() -> None:
    text = cut(GROWN, NEW, DAY)
    assert "## Unreleased\n\n## 0.2.0 - 2026-03-04\n\n### Added\n- A verb.\n\n## 0.1.0 - 2026-01-02\n" in text
    assert notes(text, NEW) == "# Hapax 0.2.0\n\n### Added\n- A verb.\n"
    assert section(text, "0.1.0") == section(GROWN, "0.1.0") == "### Fixed\n- A loss."


def test_a_section_that_somebody_wrote_stays() -> None:
    text = cut(GROWN, NEW, DAY)
    assert cut(text, NEW, date(2027, 1, 1)) == text


def test_a_release_without_changes_is_refused() -> None:
    text = cut(GROWN, NEW, DAY)
    with pytest.raises(Refused, match="nothing under 'Unreleased'"):
        cut(text, Version("0.3.0"), DAY)
    with pytest.raises(Refused, match=r"has no section 0\.3\.0"):
        notes(text, Version("0.3.0"))


def test_entries_that_no_section_has_are_not_left_out_silently() -> None:
    with pytest.raises(Refused, match="has entries under 'Unreleased'"):
        notes(GROWN, FORMER)


def test_a_version_is_not_taken_for_another_that_begins_with_it() -> None:
    assert section(GROWN.replace("## 0.1.0 ", "## 0.1.0rc1 "), "0.1.0") is None

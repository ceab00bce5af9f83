"""The table in docs/protocol.md is the table that nodes advertise."""

import re
from pathlib import Path

from hapax.kafka.api_keys import all_apis


def test_the_page_lists_every_api_with_its_versions() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \|", page, re.MULTILINE)
    listed = [(int(key), name, int(first), int(last)) for key, name, first, last in rows]
    assert listed == sorted((int(a.key), a.name, a.min_version, a.max_version) for a in all_apis())

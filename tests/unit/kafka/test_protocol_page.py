"""The table in docs/protocol.md is the table that nodes advertise."""

import re
from pathlib import Path

from hapax.kafka.registry import API_MODULES
from hapax.kafka.table import Role

WORDS = {Role.EVERY_NODE: "every node", Role.LEADER: "partition's leader", Role.COORDINATOR: "coordinator"}


def test_the_page_lists_every_api_with_its_versions_and_who_answers() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \| (.*) \|$", page, re.MULTILINE)
    listed = [(int(key), name, (int(first), int(last))) for key, name, first, last, _ in rows]
    assert listed == [module.ROW[:3] for module in API_MODULES]
    for module, (*_, answered_by) in zip(API_MODULES, rows, strict=True):
        assert WORDS[module.ROW.answered_by] in answered_by, module.ROW.name

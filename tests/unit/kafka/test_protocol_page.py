"""The table in docs/protocol.md is the table that nodes advertise, with a test of each call."""

import re
from pathlib import Path

from hapax.kafka.registry import API_MODULES
from hapax.kafka.table import Role

ROOT = Path(__file__).parents[3]
WORDS = {Role.EVERY_NODE: "every node", Role.LEADER: "partition's leader", Role.COORDINATOR: "coordinator"}


def rows() -> list[tuple[str, ...]]:
    page = (ROOT / "docs" / "protocol.md").read_text()
    return re.findall(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \| (.*) \| `(.*)` \|$", page, re.MULTILINE)


def test_the_page_lists_every_api_with_its_versions_and_who_answers() -> None:
    listed = [(int(key), name, (int(first), int(last))) for key, name, first, last, *_ in rows()]
    assert listed == [module.ROW[:3] for module in API_MODULES]
    for module, (*_, answered_by, _) in zip(API_MODULES, rows(), strict=True):
        assert WORDS[module.ROW.answered_by] in answered_by, module.ROW.name


def test_the_test_of_each_call_exists_and_speaks_of_it() -> None:
    for module, (*_, test) in zip(API_MODULES, rows(), strict=True):
        file, _, function = test.partition("::")
        source = (ROOT / "tests" / file).read_text()
        assert re.search(rf"^(async )?def {function}\(", source, re.MULTILINE), test
        assert module.ROW.name in source or module.__name__.rpartition(".")[2] in source, test

"""The matrix of docs/spark.md has every cell, and each is right or refused."""

from __future__ import annotations

from integration.spark_matrix.cells import AGAIN, CELLS, PAGE, RIGHT, is_sound, names_the_cause, outcomes_of, renewed


def test_every_cell_is_on_the_page_and_sound() -> None:
    outcomes = outcomes_of(PAGE.read_text())
    assert set(outcomes) == set(CELLS)
    assert {cell: said for cell, said in outcomes.items() if not is_sound(said)} == {}
    assert {cell for cell, said in outcomes.items() if said == AGAIN and not cell.writes_again} == set()


def test_each_refusal_names_what_was_done() -> None:
    """Among what may have happened."""
    refused = {cell: said for cell, said in outcomes_of(PAGE.read_text()).items() if said not in (RIGHT, AGAIN)}
    assert {str(cell): said for cell, said in refused.items() if not names_the_cause(cell, said)} == {}


def test_the_page_is_as_the_matrix_prints_it() -> None:
    page = PAGE.read_text()
    assert renewed(page, outcomes_of(page)) == page

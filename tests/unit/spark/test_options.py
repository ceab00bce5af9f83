"""Options: Spark's names, clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax_spark.cluster import Token
from hapax_spark.options import OPTIONS, OptionError, options_table, parse

_PAGE = Path(__file__).parents[3] / "docs" / "spark.md"

BASE = {"kafka.bootstrap.servers": "h:1"}


def test_names_are_those_of_sparks_kafka_source_in_any_case() -> None:
    options = parse(
        {**BASE, "SUBSCRIBE": "a, b", "startingOffsets": '{"a": {"0": 5, "1": -2}}', "maxOffsetsPerTrigger": "10"}
    )
    assert options.source_topics() == ("a", "b")
    assert options.starting == {"a": {0: 5, 1: -2}}
    assert options.max_offsets_per_trigger == 10


def test_client_settings_pass_through() -> None:
    options = parse({**BASE, "kafka.fetch.max.bytes": "5", "kafka.transactional.id": "x"})
    assert options.client == {"fetch.max.bytes": "5"} and options.transactional_id == "x"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "kafka.bootstrap.servers"),
        ({**BASE, "startingOffset": "earliest"}, "Unknown option 'startingoffset'"),
        ({**BASE, "subscribe": "a", "assign": "{}"}, "not both"),
        ({**BASE, "startingOffsets": "oldest"}, "startingOffsets='oldest'"),
        ({**BASE, "endingOffsets": "earliest"}, "endingOffsets='earliest'"),
        ({**BASE, "maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({**BASE, "failOnDataLoss": "maybe"}, "true or false"),
        ({**BASE, "delivery": "exactly_once"}, "delivery='exactly_once'"),
        ({**BASE, "assign": "[1]"}, "assign="),
    ],
)
def test_refusals(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        parse(given)


def test_a_driver_of_a_transactional_producer_writes_under_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t"}
    assert Token.for_query(parse(given), "query", 3).transactional_id == "spark-query"
    monkeypatch.setenv("HAPAX_SPARK_TRANSACTIONAL_ID_PREFIX", "flights-")
    assert Token.for_query(parse(given), "query", 3).transactional_id == "flights-query"
    assert Token.for_write(parse(given), "write").transactional_id == "flights-write"
    monkeypatch.setenv("HAPAX_SPARK_TRANSACTIONAL_ID", "flights")
    assert Token.for_query(parse(given), "query", 3).transactional_id == "flights"
    assert Token.for_query(parse({**given, "transactional.id": "mine"}), "query", 3).transactional_id == "mine"


def test_the_page_shows_every_option() -> None:
    """Write it anew with `python -c "from hapax_spark.options import options_table; print(options_table())"`."""
    assert options_table() in _PAGE.read_text()


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_every_option_of_the_table_is_taken(name: str) -> None:
    """Each with a value that differs from its default changes what a query is told to do."""
    value = {
        "assign": '{"a": [0]}', "startingOffsets": "earliest", "endingOffsets": '{"a": {"0": 5}}',
        "delivery": "at-least-once", "failOnDataLoss": "false", "includeHeaders": "true",
        "allowOtherRecordCount": "true", "allowUnknownHistory": "true", "compression.type": "lz4",
    }.get(name, "7000")  # fmt: skip
    assert parse({**BASE, name: value}) != parse(BASE)

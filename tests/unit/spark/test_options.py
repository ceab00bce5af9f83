"""Options: Spark's names, clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax_spark.options import OPTIONS, OptionError, options_table, parse
from hapax_spark.tokens import Token

_PAGE = Path(__file__).parents[3] / "docs" / "spark.md"

BASE = {"kafka.bootstrap.servers": "h:1"}


def test_names_are_those_of_sparks_kafka_source_in_any_case() -> None:
    options = parse(
        {**BASE, "SUBSCRIBE": "a, b", "startingOffsets": '{"a": {"0": 5, "1": -2}}', "maxOffsetsPerTrigger": "10"}
    )
    assert options.named_topics() == ("a", "b")
    assert options.starting == {"a": {0: 5, 1: -2}}
    assert options.max_offsets_per_trigger == 10


def test_client_settings_pass_through() -> None:
    options = parse({**BASE, "kafka.fetch.max.bytes": "5", "kafka.transactional.id": "x"})
    assert options.client == {"fetch.max.bytes": "5"} and options.transactional_id == "x"


def test_logins_pass_through_and_are_not_shown() -> None:
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="hidden";'
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas}
    options = parse({**BASE, **{f"kafka.{name}": value for name, value in login.items()}})
    assert options.client == login and "hidden" not in repr(options)


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
        ({**BASE, "assign": '{"a": "12"}'}, "assign="),
        ({**BASE, "assign": '{"a": []}'}, "assign="),
        ({**BASE, "subscribePattern": "a.*", "assign": "{}"}, "'subscribePattern' or 'assign', not both"),
        ({**BASE, "subscribePattern": "(?=a)"}, r"invalid perl operator: \(\?=. Write a pattern of RE2"),
        ({**BASE, "startingOffsetsByTimestamp": '{"a": 5}'}, "startingOffsetsByTimestamp="),
        ({**BASE, "endingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "ms since 1970, from 0 to"),
        ({**BASE, "startingOffsetsByTimestampStrategy": "earliest"}, "it must be 'error' or 'latest'"),
        ({**BASE, "minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}, "is above maxOffsetsPerTrigger=10"),
        ({**BASE, "maxTriggerDelay": "5 fortnights"}, "maxTriggerDelay='5 fortnights'; write a number and a unit"),
        ({**BASE, "maxRecordsPerPartition": "0"}, "at least 1"),
        ({**BASE, "txnVersion": str(2**63)}, "it must be at most 9223372036854775807"),
        ({**BASE, "continueFrom": f"q:{2**63}"}, "it must be at most 9223372036854775807"),
        ({**BASE, "startingOffsetsByTimestamp": f'{{"t": {{"0": {2**63}}}}}'}, "ms since 1970, from 0 to 2\\^63 - 1"),
        ({**BASE, "transaction.timeout.ms": str(2**31)}, "it must be at most 2147483647"),
        ({**BASE, "continueFrom": "7"}, "continueFrom='7'; write the commit as in the error message"),
    ],
)
def test_refusals(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        parse(given)


def test_a_pattern_names_whole_names_of_topics_that_are_not_the_clusters_own() -> None:
    options = parse({**BASE, "subscribePattern": "_*(flights|consumer_offsets).?"})
    assert options.named_topics() == ()
    there = ["flights", "flights2", "my-flights", "flights-x", "__consumer_offsets", "_flights"]
    assert options.wanted_topics(there) == ("_flights", "flights", "flights2")
    assert parse({**BASE, "subscribe": "b,a"}).wanted_topics(there) == ("b", "a")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250", 250), ("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("2 min", 120_000), ("1h", 3_600_000)],
)
def test_times_are_written_as_in_spark(text: str, ms: int) -> None:
    assert parse({**BASE, "maxTriggerDelay": text}).max_trigger_delay_ms == ms


def test_a_driver_of_a_transactional_producer_writes_under_its_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t"}
    assert Token.for_query(parse(given), "query", 3).transactional_id == "spark-query"
    monkeypatch.setenv("HAPAX_SPARK_TRANSACTIONAL_ID_PREFIX", "flights-")
    assert Token.for_query(parse(given), "query", 3).transactional_id == "flights-query"
    assert Token.for_write(parse(given), "write").transactional_id == "flights-write"
    monkeypatch.setenv("HAPAX_SPARK_TRANSACTIONAL_ID", "flights")
    assert Token.for_query(parse(given), "query", 3).transactional_id == "flights"
    assert Token.for_query(parse({**given, "transactional.id": "mine"}), "query", 3).transactional_id == "mine"


def test_a_batch_write_is_named_by_application_and_version_or_by_nothing() -> None:
    unnamed = [Token.for_write(parse(BASE), name) for name in ("one", "other")]
    assert unnamed[0].scope != unnamed[1].scope and all(token.single_use for token in unnamed)
    named = parse({**BASE, "txnAppId": "load", "txnVersion": "7"})
    one, again = (Token.for_write(named, name).commit_token() for name in ("one", "other"))
    assert one.work is not None and again.work is not None and one.work.owner == again.work.owner
    assert (one.scope, one.value, one.single_use) == ("load", 7, False)
    assert one.work.follows is None and one.allow_unknown_history, "versions may have gaps"
    counted = Token.for_write(parse({**BASE, "txnAppId": "load", "txnVersion": "7", "txnConsecutive": "true"}), "one")
    token = counted.commit_token()
    assert token.work is not None and token.work.follows == 6 and not token.allow_unknown_history
    for given, sentence in (({"scope": "s"}, "Name a write"), ({"txnAppId": "load"}, "together")):
        with pytest.raises(OptionError, match=sentence):
            Token.for_write(parse({**BASE, **given}), "one")


def test_the_page_shows_every_option() -> None:
    """Write it anew with `python -c "from hapax_spark.options import options_table; print(options_table())"`."""
    assert options_table() in _PAGE.read_text()


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_every_option_of_the_table_is_taken(name: str) -> None:
    """Each with a value that differs from its default changes what a query is told to do."""
    value = {
        "assign": '{"a": [0]}', "startingOffsets": "earliest", "endingOffsets": '{"a": {"0": 5}}',
        "delivery": "at-least-once", "failOnDataLoss": "false", "includeHeaders": "true",
        "startingOffsetsByTimestamp": '{"a": {"0": 5}}', "endingOffsetsByTimestamp": '{"a": {"0": 5}}',
        "startingOffsetsByTimestampStrategy": "latest", "allowOtherRecordCount": "true",
        "allowUnknownHistory": "true", "compression.type": "lz4",
        "allowOtherRecords": "true", "continueFrom": "query:7", "txnConsecutive": "true",
    }.get(name, "7000")  # fmt: skip
    assert parse({**BASE, name: value}) != parse(BASE)

"""Settings: Kafka's names, their types, what excludes what, and that the guide lists them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax.client.errors import SettingsError
from hapax.client.settings import Options, producer_options, settings_table

HERE = {"bootstrap.servers": "a:1"}
_PAGE = Path(__file__).parents[3] / "docs" / "client.md"


def test_values_are_read_from_text_or_as_they_are() -> None:
    options = producer_options({"bootstrap.servers": "a:1, [::1]:2", "linger.ms": "5", "enable.idempotence": "true"})
    assert options["bootstrap.servers"] == (("a", 1), ("::1", 2))
    assert (options["linger.ms"], options["enable.idempotence"], options["acks"]) == (5, True, -1)
    assert producer_options({"bootstrap.servers": ["a:1", "b:2"]})["bootstrap.servers"] == (("a", 1), ("b", 2))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"enable.idempotance": True}, r"did you mean 'enable\.idempotence'"),
        ({"group.id": "g"}, "not a setting of a producer"),
        ({"linger.ms": "soon"}, "linger.ms = 'soon'"),
        ({"linger.ms": True}, "whole number"),
        ({"batch.size": 0}, "from 1"),
        ({"acks": 2}, "0, 1 or all"),
        ({"compression.type": "rar"}, "one of none, gzip"),
        ({"bootstrap.servers": "nowhere"}, "not host:port"),
        ({"transactional.id": "x", "enable.idempotence": False}, r"needs enable\.idempotence=true"),
        ({"enable.idempotence": True, "acks": 1}, "needs acks=all"),
        ({"transactional.id": "x", "acks": "1"}, "needs acks=all"),
        ({"enable.idempotence": True, "max.in.flight.requests.per.connection": 6}, "at most 5"),
        ({"delivery.timeout.ms": 10, "request.timeout.ms": 20}, "must be at least"),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        producer_options({**HERE, **settings})


def test_an_address_is_needed() -> None:
    with pytest.raises(SettingsError, match="give host:port of a node"):
        Options({}, "c")


@pytest.mark.parametrize("weaker", [{"acks": "1"}, {"acks": 0}, {"retries": 0}])
def test_a_weaker_setting_turns_idempotence_off_as_in_kafka(weaker: dict[str, object]) -> None:
    assert producer_options({**HERE, **weaker})["enable.idempotence"] is False


def test_a_short_delivery_timeout_shortens_the_request_timeout() -> None:
    options = producer_options({**HERE, "delivery.timeout.ms": 500, "linger.ms": 100})
    assert options["request.timeout.ms"] == 400


def test_the_guide_lists_every_setting() -> None:
    """Write it anew with `python -c "from hapax.client.settings import settings_table; print(settings_table())"`."""
    assert settings_table() in _PAGE.read_text()

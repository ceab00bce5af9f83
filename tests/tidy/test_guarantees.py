"""docs/guarantees.md: every setting that it names exists where the page says, and has the default that it says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from hapax.client.settings import SETTINGS
from hapax.runtime.settings import SETTING_NAMES, TOPIC_CONFIGS, Settings, as_text
from hapax_spark.options import OPTIONS

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "guarantees.md").read_text()
OF_KAFKA: Final = {"log.flush.interval.messages"}
NOT_SETTINGS: Final = {"hapax.client.process", "producer.send_offsets"}
HERE: Final = {"bootstrap.servers": "127.0.0.1:1"}
_SETTING: Final = re.compile(r"`([\w.]+)=([\w.-]+)`( \(default\))?")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = PAGE.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def settings_of(cell: str) -> list[tuple[str, str, bool]]:
    """(name, value, whether the page calls it the default)."""
    return [(name, value, bool(default)) for name, value, default in _SETTING.findall(cell)]


def native(user: str, name: str, value: str, default: bool) -> None:
    setting = SETTINGS[name]
    assert user in setting.users, f"{name} is not a setting of the client {user}"
    read = setting.read(value)
    assert not default or read == setting.default, f"{name}={value} is not the default {setting.default!r}"


def java(user: str, name: str, value: str, default: bool) -> None:
    """The native client has Kafka's names and values; Java's own defaults are not here to ask."""
    native(user, name, value, False)


def librdkafka(user: str, name: str, value: str, default: bool) -> None:
    if user == "p":
        also = {"transactional.id": {"enable.idempotence": True}}.get(name, {})
        Producer(HERE | {name: value} | also).close()
    else:
        Consumer(HERE | {"group.id": "g", name: value}).close()


def kafka_python(user: str, name: str, value: str, default: bool) -> None:
    client = kafka.KafkaProducer if user == "p" else kafka.KafkaConsumer
    assert name in client.DEFAULT_CONFIG
    assert not default or str(client.DEFAULT_CONFIG[name]) == value


def of_aiokafka(user: str, name: str, value: str, default: bool) -> None:
    client: Any = aiokafka.AIOKafkaProducer if user == "p" else aiokafka.AIOKafkaConsumer
    parameter = inspect.signature(client.__init__).parameters[name]
    assert not default or str(parameter.default) == value


def spark(user: str, name: str, value: str, default: bool) -> None:
    (option,) = [option for option in OPTIONS if option.name == name]
    assert not default or option.default == f"`{value}`"


CLIENTS: Final[dict[str, Callable[[str, str, str, bool], None]]] = {
    "native": native, "librdkafka": librdkafka, "Java": java, "kafka-python 3": kafka_python, "aiokafka": of_aiokafka,
    "PySpark": spark,
}


@pytest.mark.parametrize(("heading", "user"), [("Producer", "p"), ("Reader", "c")])
def test_every_client_has_the_settings_of_its_row(heading: str, user: str) -> None:
    seen = set()
    for label, *cells in rows(heading):
        (client,) = [name for name in CLIENTS if label.startswith(name)]
        for name, value, default in settings_of(" ".join(cells)):
            CLIENTS[client](user, name, value, default)
            seen.add(client)
    assert seen >= CLIENTS.keys() - {"PySpark"}


def test_the_brokers_have_the_settings_of_their_table() -> None:
    found = rows("Brokers")
    assert len(found) > 5
    for label, *cells in found:
        names = re.findall(r"`([\w.]+)`", label)
        assert names and set(names) <= set(SETTING_NAMES)
        for name, value, default in settings_of(" ".join(cells[:2])):
            assert name in names
            built_in = as_text(getattr(Settings(), name.replace(".", "_")))
            assert not default or value == built_in, f"{name}={value} is not the default {built_in}"


def test_whatever_looks_like_a_setting_is_one() -> None:
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=[\w.-]+)?`", PAGE))
    assert len(named) > 20
    assert named - SETTINGS.keys() - set(SETTING_NAMES) - TOPIC_CONFIGS.keys() - OF_KAFKA - NOT_SETTINGS == {
        "enable.auto.offset.store"}, "only librdkafka has this one"


@pytest.mark.parametrize(("client", "setting"), [
    ("native", ("enable.idempotance", "true")), ("librdkafka", ("enable.idempotance", "true")),
    ("kafka-python 3", ("enable.idempotence", "true")), ("aiokafka", ("retries", "0")), ("PySpark", ("acks", "all")),
    ("native", ("acks", "2")), ("librdkafka", ("isolation.level", "committed")),
])
def test_a_setting_that_a_client_does_not_have_is_found(client: str, setting: tuple[str, str]) -> None:
    user = "c" if setting[0] == "isolation.level" else "p"
    with pytest.raises((KeyError, ValueError, AssertionError, KafkaException)):
        CLIENTS[client](user, *setting, False)

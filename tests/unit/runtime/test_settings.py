"""One table, three sources, and no typing error that passes for a default."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax.core.cluster.topics import TOPIC_CONFIGS as KAFKA_TOPIC_CONFIGS
from hapax.runtime.addresses import Address
from hapax.runtime.settings import SETTING_NAMES, TOPIC_CONFIGS, Settings, SettingsError, load, parse_arguments
from hapax.runtime.settings_page import settings_page


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("# a comment\nnum.partitions=2\nlog.segment.bytes = 1000\nmessage.max.bytes=10\n")
    environment = {"HAPAX_NUM_PARTITIONS": "3", "HAPAX_LOG_SEGMENT_BYTES": "2000", "PATH": "/bin"}
    settings = load(["num.partitions=4"], file=file, environment=environment)
    assert (settings.num_partitions, settings.log_segment_bytes, settings.message_max_bytes) == (4, 2000, 10)
    assert settings.durability == "fsync"


def test_toml_with_nested_tables_and_dotted_keys(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('durability = "page-cache"\n"num.partitions" = 5\n[auto.create.topics]\nenable = false\n')
    settings = load(file=file, environment={})
    assert (settings.durability, settings.num_partitions) == ("page-cache", 5)
    assert settings.auto_create_topics_enable is False


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["log.segment.byte=5"], r"log\.segment\.byte \(--set\): no such setting; did you mean log\.segment\.bytes\?"),
        (["log.segment.bytes=many"], r"log\.segment\.bytes=many \(--set\): .*integer"),
        (["durability=maybe"], r"durability=maybe \(--set\): .*'fsync' or 'page-cache'"),
        (["listeners=SSL://a:1"], r"SSL"),
        (["num.partitions=0"], r"num\.partitions=0"),
        (["num.partitions"], r"expected name=value"),
    ],
)
def test_a_fault_names_the_setting_and_where_it_came_from(flags: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(flags, environment={})


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as raised:
        load(["nonsense=1", "num.partitions=x"], environment={"HAPAX_DURABILITY": "y"})
    assert len(str(raised.value).splitlines()) == 3
    assert "durability=y (environment)" in str(raised.value)


def test_the_first_round_of_a_classic_group_need_not_wait() -> None:
    """As Kafka's images are configured for tests."""
    assert load(["group.initial.rebalance.delay.ms=0"], environment={}).group_initial_rebalance_delay_ms == 0


def test_what_kubernetes_puts_into_the_environment_is_no_setting() -> None:
    environment = {
        "HAPAX_SERVICE_HOST": "10.0.0.1",
        "HAPAX_BROKER_SERVICE_PORT_KAFKA": "9092",
        "HAPAX_PORT": "tcp://10.0.0.1:9092",
        "HAPAX_BROKER_PORT_9092_TCP_ADDR": "10.0.0.1",
        "HAPAX_TEST_SOMETHING": "1",
    }
    assert load(environment=environment) == Settings()


def test_a_topics_configuration_overrides_the_brokers() -> None:
    broker = load(["log.retention.hours=1", "log.segment.bytes=500"], environment={})
    topic = broker.for_topic({"retention.ms": "5", "segment.ms": "7"})
    assert (broker.retention_ms, topic.retention_ms, topic.roll_ms) == (3_600_000, 5, 7)
    assert topic.log_segment_bytes == 500
    with pytest.raises(SettingsError, match="retention"):
        broker.for_topic({"retention.msec": "5"})
    with pytest.raises(SettingsError, match="topic configuration"):
        broker.for_topic({"retention.ms": "soon"})


def test_topic_configurations_name_settings() -> None:
    assert set(TOPIC_CONFIGS.values()) <= set(SETTING_NAMES)
    assert set(TOPIC_CONFIGS) <= set(KAFKA_TOPIC_CONFIGS)


def test_a_configuration_of_kafkas_without_effect_does_not_spoil_the_others() -> None:
    topic = load([], environment={}).for_topic({"flush.ms": "1", "cleanup.policy": "delete,compact"})
    assert topic.log_cleanup_policy == "delete,compact"


def test_a_services_command_line(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("node.id=3\n")
    assert parse_arguments(["--config", str(file), "--set", "num.partitions=2"]).num_partitions == 2
    assert parse_arguments([f"--config={file}"]).node_id == 3
    with pytest.raises(SettingsError, match="expected --set"):
        parse_arguments(["--verbose"])


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:9092", "127.0.0.1", 9092), ("PLAINTEXT://:0", "0.0.0.0", 0), ("[::1]:5", "::1", 5)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address)) == address


def test_an_advertised_port_0_is_the_bound_one() -> None:
    settings = load(["advertised.listeners=broker.example:0"], environment={})
    assert settings.advertised_kafka({"PLAINTEXT": Address(("0.0.0.0", 41))}) == {
        "PLAINTEXT": Address(("broker.example", 41))}


def test_each_listener_has_its_own_advertised_address() -> None:
    settings = load([
        "node.id=101", "listeners=PLAINTEXT://:9092,external://:9095,LAST://:9096",
        "advertised.listeners=PLAINTEXT://inside:9092,EXTERNAL://outside:30000+node.id"], environment={})
    assert list(settings.kafka_addresses) == ["PLAINTEXT", "EXTERNAL", "LAST"]
    assert settings.advertised_kafka(settings.kafka_addresses) == {
        "PLAINTEXT": ("inside", 9092), "EXTERNAL": ("outside", 30101), "LAST": ("0.0.0.0", 9096)}


@pytest.mark.parametrize(("setting", "sentence"), [
    ("listeners=SSL://:9092", "cannot have SSL"), ("listeners=:1,:2", "two listeners are named PLAINTEXT"),
    ("listeners=a b://:1", "no name of a listener"),
    ("advertised.listeners=EXTERNAL://a:1", "names EXTERNAL, and listeners does not"),
])
def test_bad_listeners_are_refused(setting: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        load([setting], environment={})


def test_every_setting_is_documented() -> None:
    page = settings_page()
    for name in SETTING_NAMES:
        assert f"| `{name}` |" in page
    assert "| |\n" not in page

"""Names and settings of topics, at the edges of what Kafka takes."""

import pytest

from hapax.core.cluster.topics import (
    TOPIC_CONFIGS,
    check_partition_count,
    check_replication_factor,
    check_topic_config,
    check_topic_name,
)
from hapax.core.errors import ErrorCode, Refusal


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249, "__mine"])
def test_legal_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", [None, "", ".", "..", "x" * 250, "a/b", "a b", "ü", "a\n", "a\x00", "%2f"])
def test_illegal_names(name: str | None) -> None:
    with pytest.raises(Refusal) as refused:
        check_topic_name(name)
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"), ("retention.bytes", "0"), ("cleanup.policy", "compact,delete"),
        ("compression.type", "zstd"), ("min.cleanable.dirty.ratio", "0.5"), ("preallocate", "TRUE"),
        ("segment.bytes", str(2**31 - 1)), ("message.timestamp.type", "LogAppendTime"),
        ("leader.replication.throttled.replicas", ""),
    ],
)
def test_settings_that_fit(name: str, value: str) -> None:
    check_topic_config({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"), ("retention.ms", "1.5"), ("retention.ms", "9" * 20), ("retention.ms", ""),
        ("retention.ms", "١"), ("segment.bytes", str(2**31)), ("cleanup.policy", "forget"),
        ("cleanup.policy", "delete,"), ("compression.type", "lzma"), ("min.cleanable.dirty.ratio", "1.1"),
        ("preallocate", "yes"), ("colour", "red"), ("retention.ms", None), ("delete.retention.ms", "0\n"),
    ],
)
def test_settings_that_do_not(name: str, value: str | None) -> None:
    with pytest.raises(Refusal) as refused:
        check_topic_config({name: value})
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    assert name in refused.value.reason


def test_every_setting_takes_some_value() -> None:
    for name, form in TOPIC_CONFIGS.items():
        if isinstance(form, tuple):
            for edge in form:
                check_topic_config({name: str(edge)})


def test_numbers_of_partitions_and_replicas() -> None:
    for count in (-1, 1, 10_000):
        check_partition_count(count)
    for count in (0, -2, 10_001, 2**31 - 1):
        with pytest.raises(Refusal):
            check_partition_count(count)
    for factor in (-1, 1, 3):
        check_replication_factor(factor, brokers=3)
    for factor in (0, -2, 4):
        with pytest.raises(Refusal):
            check_replication_factor(factor, brokers=3)

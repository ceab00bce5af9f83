"""Resolves the options for the start and the end of reading to offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hapax_spark.cluster import Cluster
from hapax_spark.options import EARLIEST, LATEST, OffsetSpec, OptionError, Options
from hapax_spark.positions import Positions, TopicPartition

_OFFSETS = "startingOffsets or endingOffsets name"
_TIMES = "startingOffsetsByTimestamp or endingOffsetsByTimestamp name"


def starting_positions(
    cluster: Cluster, options: Options, partitions: Sequence[TopicPartition], *, streaming: bool = True
) -> Positions:
    """The start offsets of a query. As in Spark's Kafka source, a time for all partitions has priority over times for
    single ones, and these over offsets. Raises OptionError."""
    times = _times(options.starting_timestamp, options.starting_timestamps, partitions)
    if times is None:
        spec = options.starting if streaming or options.starting_given else "earliest"
        if spec == "latest" and not streaming:
            raise OptionError("startingOffsets=latest reads nothing in a batch query. Use 'earliest' or offsets")
        return _at_offsets(cluster, options, partitions, spec, EARLIEST)
    found = cluster.offsets_for_times(times)
    missing = sorted(tp for tp, offset in found.items() if offset is None)
    if missing and options.timestamp_strategy == "error":
        topic, partition = missing[0]
        raise OptionError(
            f"{topic}-{partition} has no record at or after {times[topic, partition]} (ms since 1970), where reading "
            "should start. Use an earlier time, or set startingOffsetsByTimestampStrategy=latest to start at the end"
        )
    unnamed = cluster.earliest([tp for tp in partitions if tp not in times])
    return unnamed | _or_latest(cluster, found)


def ending_positions(cluster: Cluster, options: Options, partitions: Sequence[TopicPartition]) -> Positions:
    """The end offsets of a batch query. Raises OptionError."""
    times = _times(options.ending_timestamp, options.ending_timestamps, partitions)
    if times is None:
        return _at_offsets(cluster, options, partitions, options.ending, LATEST)
    unnamed = cluster.latest([tp for tp in partitions if tp not in times])
    return unnamed | _or_latest(cluster, cluster.offsets_for_times(times))


def _times(
    for_all: int | None, for_each: dict[str, dict[int, int]] | None, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int] | None:
    if for_all is not None:
        return dict.fromkeys(partitions, for_all)
    return None if for_each is None else _named(for_each, partitions, _TIMES)


def _or_latest(cluster: Cluster, found: Mapping[TopicPartition, int | None]) -> Positions:
    latest = cluster.latest([tp for tp, offset in found.items() if offset is None])
    return {tp: latest[tp] if offset is None else offset for tp, offset in found.items()}


def _at_offsets(
    cluster: Cluster, options: Options, partitions: Sequence[TopicPartition], spec: OffsetSpec, unnamed: int
) -> Positions:
    """`unnamed`: EARLIEST or LATEST, for partitions that the offsets do not name."""
    if spec == "earliest":
        return cluster.earliest(partitions)
    if spec == "latest":
        return cluster.latest(partitions)
    named = _named(spec, partitions, _OFFSETS)
    earliest, latest = cluster.earliest(partitions), cluster.latest(partitions)
    for tp, offset in named.items():
        if offset > latest[tp] and options.fail_on_data_loss:
            raise OptionError(
                f"{_OFFSETS} offset {offset} of {tp[0]}-{tp[1]}, which ends at {latest[tp]}. Name a smaller one, or -1 "
                "for the end"
            )
    chosen = {EARLIEST: earliest, LATEST: latest}
    wanted = {tp: named.get(tp, unnamed) for tp in partitions}
    return {tp: chosen[offset][tp] if offset < 0 else min(offset, latest[tp]) for tp, offset in wanted.items()}


def _named(
    spec: Mapping[str, Mapping[int, int]], partitions: Sequence[TopicPartition], what: str
) -> dict[TopicPartition, int]:
    """Raises OptionError for a named partition that is not read, because the name may be misspelt."""
    named = {(t, p): value for t, parts in spec.items() for p, value in parts.items()}
    for topic, partition in sorted(set(named) - set(partitions)):
        raise OptionError(
            f"{what} {topic}-{partition}, which is not read. Name partitions of 'subscribe', 'subscribePattern' or "
            "'assign' only"
        )
    return named

"""The verdict on one simulation: the checker's result, and the invariants inside the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from hapax_checker import (
    check,
    contiguous_sequences,
    ids_never_reused,
    one_leader_per_epoch,
    one_to_one,
    replicas_equal,
    stable_offsets,
    token_outcomes,
)
from hapax_sim import observe
from hapax_sim.clients import BATCHES, COPIES, LINES, PARTITIONS, PLAIN
from hapax_sim.cluster import SimCluster
from hapax_sim.parts.part import Part
from hapax_sim.recorder import Recorder

_EACH = 5


def judge(
    recorder: Recorder, seen: Mapping[str, Sequence[str]], ends: Mapping[str, tuple[int, int]], cluster: SimCluster,
    served: observe.Served, parts: Sequence[Part] = (),
) -> list[str]:  # fmt: skip
    """Every anomaly as a sentence. Empty: there is none. `seen`: what a new read_committed reader finds, in order."""

    def values(topic: str) -> list[str]:
        return [v for key, found in seen.items() if key.rpartition("-")[0] == topic for v in found]

    found = check(recorder.operations).sentences(_EACH)
    found += one_to_one(values(PLAIN), (copy.partition("@")[0] for copy in values(COPIES)))
    found += token_outcomes(recorder.tokens(), values(BATCHES))
    found += _only_known_tokens(recorder, values(BATCHES))
    found += _lines(recorder, seen)
    found += stable_offsets(ends)
    found += recorder.complaints
    found += ids_never_reused(recorder.identities)[:_EACH]
    found += one_leader_per_epoch(served.seen)[:_EACH]
    for part in parts:
        found += part.judge()
    found += _inside(cluster, {
        name for part in parts for name, topic in part.topics.items()
        if "compact" in topic.config.get("cleanup.policy", "")
    }, {name for part in parts for name in part.topics})
    return found


def _only_known_tokens(recorder: Recorder, visible: Sequence[str]) -> list[str]:
    known = {value for attempt in recorder.attempts for value in attempt.values}
    strangers = [value for value in visible if value not in known]
    doubled = len(visible) - len(set(visible))
    found = [f"phantom: {strangers[:3]} in {BATCHES} were never written"] if strangers else []
    return found + ([f"duplicate: {doubled} values stand twice in {BATCHES}"] if doubled else [])


def _lines(recorder: Recorder, seen: Mapping[str, Sequence[str]]) -> list[str]:
    found = []
    for partition in range(PARTITIONS[LINES]):
        lines = seen[f"{LINES}-{partition}"]
        for number, line in enumerate(lines):
            if line != f"line-{number}":
                found.append(f"resumed-wrongly: {LINES}-{partition} has {line} where line-{number} belongs")
                break
        acknowledged = recorder.lines_acknowledged.get(partition, 0)
        if len(lines) < acknowledged:
            found.append(f"lost-write: {LINES}-{partition} has {len(lines)} of {acknowledged} acknowledged lines")
    return found


def _inside(cluster: SimCluster, compacted: Set[str], remade: Set[str]) -> list[str]:
    """`compacted`: topics whose replicas remove records at different times. Their own verdict checks their content."""
    found: list[str] = []
    plain = observe.copies(cluster, lambda topic: not topic.startswith("__") and topic not in compacted)
    for partition, copies in plain.items():
        found += replicas_equal(partition, copies)
    for node, replica in observe.replicas_of(cluster):
        if not replica.internal and replica.topic not in compacted:
            name = f"{replica.name} on {node.name}"
            # A topic that was created again gets writes of producers that have written to its predecessor.
            anywhere = replica.machine.log_start_offset > 0 or replica.topic in remade
            found += contiguous_sequences(name, observe.data_batches(node, replica), begin_anywhere=anywhere)[:_EACH]
    for node in cluster.nodes.values():
        strays = sorted(folder for folder in node.disk.folders if folder.endswith("-stray"))
        if strays:
            found.append(f"stray-folder: {strays[0]} on {node.name}, of {len(strays)}")
    found += observe.forgotten(cluster)
    for partition, states in observe.producer_states(cluster, compacted).items():
        by_end: dict[int, tuple[int, str]] = {}
        for broker, end, state in states:
            other, known = by_end.setdefault(end, (broker, state))
            if known != state:
                lines = zip(known.splitlines(), state.splitlines(), strict=False)
                first = next(((a, b) for a, b in lines if a != b), ("one has more", ""))
                found.append(f"states-differ: {partition} at {end} on brokers {other} and {broker}: {first}")
    return found

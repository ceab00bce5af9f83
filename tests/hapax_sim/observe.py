"""What can be seen only from inside the cluster: which process served what, and the content of the brokers' disks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Set
from typing import Any

from hapax.broker.replica import Replica as BrokerReplica
from hapax.codec.batch import iterate_batches
from hapax.coordinator.shard import Shard
from hapax.core.batch import CONTROL, BatchHeader
from hapax_checker import Batch, Replica
from hapax_sim.cluster import SimCluster, SimNode
from hapax_sim.loop import CURRENT


class Served:
    """Every (partition or shard, epoch, process) that began to serve in one simulation."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, object]] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While this context is active, records events in the services' own code."""
        lead, loaded = BrokerReplica.lead, Shard._loaded

        def noting_lead(replica: BrokerReplica, leader_epoch: int, *args: Any, **kwargs: Any) -> Any:
            self.seen.append((f"{replica.name} of topic {replica.id.topic_id}", leader_epoch, _life()))
            return lead(replica, leader_epoch, *args, **kwargs)

        def noting_loaded(shard: Shard) -> None:
            self.seen.append((f"{shard.kind} shard {shard.shard}", int(shard.epoch), _life()))
            loaded(shard)

        BrokerReplica.lead = noting_lead  # type: ignore[method-assign]
        Shard._loaded = noting_loaded  # type: ignore[method-assign]
        try:
            yield
        finally:
            BrokerReplica.lead = lead  # type: ignore[method-assign]
            Shard._loaded = loaded  # type: ignore[method-assign]


def _life() -> str:
    process = CURRENT.get()
    return "nobody" if process is None else f"{process.name} life {process.number}"


def replicas_of(cluster: SimCluster) -> Iterator[tuple[SimNode, BrokerReplica]]:
    for node in cluster.nodes.values():
        if node.role == "broker" and node.service is not None and node.process is not None and node.process.alive:
            for replica in node.service.partitions.replicas.values():
                yield node, replica


def log_of(node: SimNode, replica: BrokerReplica) -> list[tuple[BatchHeader, bytes]]:
    """All batches in the files of a replica, from the page cache, up to its log's end."""
    prefix = f"{replica.name}/"
    names = sorted(n for n in node.disk.names if n.startswith(prefix) and n.endswith(".log"))
    batches = []
    for name in names:
        data = bytes(node.disk.names[name].data)
        for position, header in iterate_batches(data):
            batches.append((header, data[position : position + header.size]))
    return batches


def copies(cluster: SimCluster, wanted: Callable[[str], bool]) -> dict[str, list[Replica]]:
    """Partition -> each broker's copy of it."""
    found: dict[str, list[Replica]] = {}
    for node, replica in replicas_of(cluster):
        if wanted(replica.topic):
            held = [(header.base_offset, data) for header, data in log_of(node, replica)]
            found.setdefault(replica.name, []).append(Replica(node.number, replica.machine.high_watermark, held))
    return found


def producer_states(cluster: SimCluster, left_out: Set[str] = frozenset()) -> dict[str, list[tuple[int, int, str]]]:
    """Partition -> (broker, log end, producers' state according to the log) of each replica. The rest of the machine's
    state (time marks, transactions not yet below the high watermark) differs between replicas."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for node, replica in replicas_of(cluster):
        if replica.topic in left_out:
            continue
        machine = replica.machine
        views = machine.describe_producers()
        producers = [str(view) for view in views]
        opened = [str(transaction) for transaction in machine.open_transactions()]
        state = [*producers, *opened, f"{machine.shard_epoch} {sorted(machine.marker_epochs.items())}"]
        if not replica.internal:  # compaction, which runs at different times on each replica, removes entries too
            state += [str(entry) for entry in machine.aborted if entry.first_offset >= machine.log_start_offset]
        found.setdefault(replica.name, []).append((node.number, machine.log_end_offset, "\n".join(state)))
    return found


def forgotten(cluster: SimCluster) -> list[str]:
    """Calls that still wait although every client has gone and nothing is in progress."""
    found = []
    for node, replica in replicas_of(cluster):
        for what, waiting in (("acks=all", replica.waiters), ("acks=1", replica._local_waiters)):
            if waiting:
                found.append(f"never-answered: {len(waiting)} writes with {what} to {replica.name} on {node.name}")
    return found


def data_batches(node: SimNode, replica: BrokerReplica) -> list[Batch]:
    return [
        Batch(h.base_offset, h.producer_id, h.producer_epoch, h.base_sequence, h.record_count)
        for h, _ in log_of(node, replica)
        if not h.attributes & CONTROL
    ]

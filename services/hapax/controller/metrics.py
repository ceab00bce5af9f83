"""What a controller tells: of the cluster's state what its image shows, and what it did itself."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter, gauge, histogram

ACTING: Final = gauge(
    "hapax_controller_acting", "1 while this process is the acting controller; the sum over all controllers is 1.",
    kafka="kafka.controller:type=KafkaController,name=ActiveControllerCount")
CHANGES: Final = counter(
    "hapax_controller_changes_total", "Changes of partitions, shards and topics that this controller wrote.")
FAILOVERS: Final = counter(
    "hapax_controller_failovers_total",
    "Times that partitions or shards moved to other nodes because their node was gone or silent.",
    kafka="kafka.controller:type=ControllerStats,name=LeaderElectionRateAndTimeMs")
FAILOVER_SECONDS: Final = histogram(
    "hapax_controller_failover_seconds",
    "Time from the acting controller's notice that a node is gone or silent until each partition that it led has a "
    "leader that accepts writes. Partitions without a live in-sync replica are left out.",
    kafka="kafka.controller:type=ControllerStats,name=LeaderElectionRateAndTimeMs")
UNCLEAN_ELECTIONS: Final = counter(
    "hapax_controller_unclean_elections_total", "Partitions given to a leader that may lack acknowledged records.",
    kafka="kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec")

NODES: Final = gauge(
    "hapax_cluster_nodes", "Registered nodes.", ["role"],
    kafka="kafka.controller:type=KafkaController,name=ActiveBrokerCount")
SILENT_NODES: Final = gauge(
    "hapax_cluster_nodes_silent", "Registered nodes that do not answer.",
    kafka="kafka.controller:type=KafkaController,name=FencedBrokerCount")
TOPICS: Final = gauge(
    "hapax_cluster_topics", "Topics, internal ones included.",
    kafka="kafka.controller:type=KafkaController,name=GlobalTopicCount")
PARTITIONS: Final = gauge(
    "hapax_cluster_partitions", "Partitions of all topics.",
    kafka="kafka.controller:type=KafkaController,name=GlobalPartitionCount")
LEADERLESS: Final = gauge(
    "hapax_cluster_partitions_leaderless", "Partitions without a leader, or whose leader does not accept writes yet.",
    kafka="kafka.controller:type=KafkaController,name=OfflinePartitionsCount")
UNDER_REPLICATED: Final = gauge(
    "hapax_cluster_partitions_under_replicated",
    "Partitions with a replica out of sync, according to the metadata store.",
    kafka="kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions")
OF_PARTITIONS: Final = (PARTITIONS, LEADERLESS, UNDER_REPLICATED)

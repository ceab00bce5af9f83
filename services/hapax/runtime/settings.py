"""Settings of every process: one table, three sources.

The class `Settings` is the table: each field has its type, default and meaning, and `docs/settings.md` is generated
from it. A setting's name is its attribute with dots for underscores (`log_segment_bytes` is `log.segment.bytes`),
and what Kafka has bears Kafka's name, unit and default. `load` reads, later wins:

1. the defaults below,
2. a file, properties (`log.segment.bytes=1048576`) or TOML (nested tables or quoted dotted keys),
3. the environment (`HAPAX_LOG_SEGMENT_BYTES`),
4. flags (`--set log.segment.bytes=1048576`).

An unknown name or a bad value raises `SettingsError`, which names the source and the nearest known name: a typing
error in `durability` must not pass for the default.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_type_hints

from hapax.core.cluster.topics import TOPIC_CONFIGS as KAFKA_TOPIC_CONFIGS
from hapax.runtime.addresses import Address, parse_listeners
from hapax.runtime.admin_settings import AdminSettings
from hapax.runtime.audit_settings import AuditSettings
from hapax.runtime.security_settings import (
    SSL,
    SecuritySettings,
    check_rules,
    protocol_map,
    protocols_of,
    split_override,
)
from hapax.runtime.setting_types import Between, Bytes, Count, Like, MaybeMillis, Millis, Unlimited, read_value

ENVIRONMENT_PREFIX: Final = "HAPAX_"

_NOT_SETTINGS: Final = re.compile(
    # Kubernetes describes every service to every pod; the rest are switches of the tests and of the set-up.
    r"HAPAX_(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP)(_.*)?)?)|HAPAX_(TEST|DEMO|SETUP|BENCH|SIM|LOCAL|UPDATE)_.*|HAPAX_(ETCD|BOOTSTRAP)"
)


class SettingsError(ValueError):
    """Unknown setting or bad value; the message has one line per fault, each with the source it came from."""


_SECURE_LISTENERS: Final = "SSL://127.0.0.1:9092"
"""The default of `listeners` with `security.inter.broker.protocol=SSL`."""
_HTTPS: Final = "https://"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, kw_only=True)
class Settings(AdminSettings, SecuritySettings, AuditSettings):
    """All settings of all services; each service reads those that concern it. Immutable.

    `load` checks what it reads; values given to the constructor are taken as they are.
    """

    given: ClassVar[frozenset[str]] = frozenset()
    """The attributes that `load` found in a source, also those that were given their default."""
    overrides: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Listener -> the attributes that it has of its own, and their values."""

    # --- identity and addresses ---
    node_id: Annotated[int, Between(0, 2**31 - 1)] = 0
    """Id of this node, unique in the cluster. Brokers count from 0, coordinators from 100, PID allocators from 200,
    controllers from 300."""
    node_id_generation_enable: bool = False
    """true: the process takes the lowest free id of the hundred that starts at `node.id`. Meant for PID allocators and
    controllers, which store nothing under their id: the pods of a Deployment have no stable number."""
    cluster_id: Annotated[str, Like(r"[A-Za-z0-9_-]{1,64}")] = "hapax"
    """Name of the cluster. All metadata lives in etcd below `/hapax/<cluster.id>`. A node refuses a data folder that
    belongs to another cluster."""
    broker_rack: str | None = None
    """Rack or availability zone of this node. Replicas of a partition are spread over racks."""
    broker_machine: str = ""
    """Name of the machine on which this broker runs, for instance of the Kubernetes node. Without `broker.rack`, the
    broker's rack is the one that the operator finds for this machine."""
    listeners: str = "PLAINTEXT://127.0.0.1:9092"
    """Addresses on which the Kafka listeners bind; port 0 picks a free port. Separate several with commas and name
    each: `PLAINTEXT://0.0.0.0:9092,EXTERNAL://0.0.0.0:9095`. The nodes themselves use the first one. A port may be
    written `30000+node.id`, which is the sum. With `security.inter.broker.protocol=SSL` the default is
    `SSL://127.0.0.1:9092`."""
    advertised_listeners: str | None = None
    """Addresses that clients are given to connect to, one for each listener name; default: the bound address. Set it
    where clients reach the node by another name, such as behind a load balancer. A port may be written `30000+node.id`,
    which is the sum."""
    rpc_listen: str = "127.0.0.1:0"
    """Address on which the internal gRPC services (`hapax.internal.v1`) listen; port 0 picks a free port. Only the
    cluster's own processes call them."""
    rpc_advertised: str | None = None
    """Address of `rpc.listen` that other services are given; default: the bound address. Set it where they reach the
    node by another name."""
    public_rpc_listen: str = "127.0.0.1:0"
    """Address on which the public gRPC services (`hapax.v1`) listen; port 0 picks a free port. Clients call them."""
    public_rpc_advertised: str | None = None
    """Address of `public.rpc.listen` that clients are given; default: the bound address. With TLS it may be written
    `NAME@host:port`: clients then expect a certificate for NAME, whatever `host` is. It is for processes without a name
    of their own, such as the pods of a Deployment."""
    rpc_hot_path: Literal["frames", "grpc"] = "frames"
    """How other services call this node for the calls that transactions wait for: verification of partitions, checks
    of multi-writer commits, and transaction markers. `frames`: on a listener of their own, which costs least CPU.
    `grpc`: like all other calls."""
    frames_listen: str = "127.0.0.1:0"
    """Address on which brokers and coordinators listen for frames, with `rpc.hot.path=frames`; port 0 picks a free
    port."""
    frames_advertised: str | None = None
    """Address of `frames.listen` that other services are given; default: the bound address."""
    rpc_former_calls: bool = False
    """Whether this node can be called by nodes and native clients of the release before `public.rpc.listen` (commit
    a76baed), while a cluster is upgraded from it. `rpc.listen` then takes calls that name no cluster, and frames in
    place of gRPC. Only for a cluster without TLS between its processes."""
    http_listen: str = "127.0.0.1:0"
    """Address on which /healthz, /readyz, /syncz and /metrics are served; port 0 picks a free port."""
    etcd_endpoints: str = "127.0.0.1:2379"
    """Addresses of etcd as `host:port`, separated by commas. `https://host:port`: by TLS, with the certificate of
    `etcd.ssl.*`."""
    etcd_timeout_ms: Millis = 5_000
    """Milliseconds after which a call to etcd counts as failed."""
    log_dir: str = "data"
    """Data folder of this process. A broker keeps its segments there; every node keeps its identity and the highest
    revision of the metadata store that it has seen."""
    broker_session_timeout_ms: Annotated[int, Between(500)] = 9_000
    """Milliseconds that a node's registration in etcd outlives its last renewal; etcd's own minimum is 2000. Then the
    node's partitions and shards move to other nodes. Lower values detect a lost node sooner, but a slow network may
    then end a healthy one's registration."""
    broker_heartbeat_interval_ms: Annotated[int, Between(50)] = 500
    """Milliseconds between two health checks of each broker and coordinator by the acting controller. The other
    controllers check the acting one at the same interval."""
    broker_heartbeat_timeout_ms: Annotated[int, Between(100)] = 3_000
    """A node that has not answered for this many milliseconds is treated as dead: other nodes take over its partitions
    and shards until it answers again. It stays registered."""
    drain_timeout_ms: Annotated[int, Between(0)] = 10_000
    """Milliseconds that requests in flight may take to finish after SIGTERM. On Kubernetes, keep the pod's termination
    grace period longer than this."""
    shutdown_linger_ms: Annotated[int, Between(0)] = 0
    """Milliseconds that a broker or coordinator keeps its listeners open after SIGTERM once other nodes have taken over
    what it led. It answers NOT_LEADER_OR_FOLLOWER or NOT_COORDINATOR, and tells who leads now. Without it, a client
    that calls a moment too late connects to an address that may not even refuse it. A second signal ends the process
    at once. 0: off. On Kubernetes the chart sets it (`lingerSeconds`), and the pod's termination grace period includes
    it."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of the log lines written to stderr."""

    # --- durability and the segment log ---
    durability: Literal["fsync", "page-cache"] = "fsync"
    """When a write is acknowledged. fsync: once it is on disk; concurrent writes share one sync. page-cache: once the
    operating system has it, as by Kafka's default; faster, but a power failure on all replicas at once loses
    acknowledged records."""
    log_segment_bytes: Annotated[int, Between(14, 2**31 - 1)] = 1 << 30
    """A new segment begins before the current one grows past this many bytes."""
    log_roll_hours: Annotated[int, Between(1)] = 168
    """A new segment begins when the current one is this many hours old. `log.roll.ms` takes precedence."""
    log_roll_ms: Annotated[int, Between(1)] | None = None
    """A new segment begins when the current one is this many milliseconds old; default: `log.roll.hours`."""
    log_index_interval_bytes: Annotated[int, Between(0)] = 4096
    """Bytes of log between two entries of the offset index. Smaller values find an offset faster and need a larger
    index."""
    log_index_size_max_bytes: Annotated[int, Between(4)] = 10 << 20
    """A new segment begins when the current one's offset index reaches this many bytes."""
    restoring: str = ""
    """Of a topic only: the backup from which `hapax restore` fills the topic. Until it is empty again, no client can
    write or read the topic."""
    log_retention_bytes: Unlimited = -1
    """While a partition is larger than this many bytes, its oldest segments are deleted; -1: no limit."""
    log_retention_hours: Annotated[int, Between(-1)] = 168
    """A segment is deleted when its newest record is this many hours old; -1: never. `log.retention.minutes` and
    `log.retention.ms` take precedence."""
    log_retention_minutes: Annotated[int, Between(-1)] | None = None
    """As `log.retention.hours`, in minutes; -1: never. `log.retention.ms` takes precedence."""
    log_retention_ms: MaybeMillis = None
    """As `log.retention.hours`, in milliseconds; -1: never."""
    log_retention_check_interval_ms: Millis = 300_000
    """Milliseconds between two checks for segments to delete."""
    log_cleanup_policy: Annotated[str, Like(r"((delete|compact)(,\s*(delete|compact))*)?")] = "delete"
    """delete: old segments are deleted. compact: only the last record of each key is kept. Both may be given, separated
    by a comma. Empty: neither."""
    log_cleaner_delete_retention_ms: Annotated[int, Between(0)] = 86_400_000
    """Milliseconds that a compacted topic keeps a tombstone after it was first cleaned. A consumer that reads from the
    beginning must reach the end within this time to see every deletion."""
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    """CreateTime: the producer sets a record's timestamp. LogAppendTime: the broker does."""
    log_message_timestamp_before_max_ms: Annotated[int, Between(0)] = 2**63 - 1
    """Milliseconds that a record's timestamp may lie before the broker's clock. A batch with an older record is refused
    (INVALID_TIMESTAMP). Not with LogAppendTime."""
    log_message_timestamp_after_max_ms: Annotated[int, Between(0)] = 3_600_000
    """As `log.message.timestamp.before.max.ms`, for timestamps after the broker's clock."""
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = "producer"
    """Compression of stored batches. producer: as the producer sent them. Otherwise the broker compresses batches that
    have another compression; that costs it CPU for each record byte."""
    compression_gzip_level: Annotated[int, Between(-1, 9)] = -1
    """Level of `compression.type=gzip`, 1 to 9; -1: the codec's default."""
    compression_lz4_level: Annotated[int, Between(1, 17)] = 9
    """Level of `compression.type=lz4`."""
    compression_zstd_level: Annotated[int, Between(-131_072, 22)] = 3
    """Level of `compression.type=zstd`."""
    log_snapshot_interval_bytes: Bytes = 64 << 20
    """Bytes of log between two snapshots of a partition's producers. After a crash the broker reads the log from the
    last snapshot on, so lower values shorten recovery and cost more writes."""
    message_max_bytes: Bytes = 1_048_588
    """Largest record batch in bytes, after compression, that is accepted."""

    log_flush_slow_ms: Millis = 5_000
    """When a sync takes more than this many milliseconds, the broker gives up its leaderships until its disk is fast
    again."""

    log_scrub_bytes_per_second: Annotated[int, Between(0)] = 16 << 20
    """Bytes per second read from closed segments to find damage before a reader does; 0: no scrubbing. Lower it where
    the disk is busy."""
    log_scrub_interval_ms: Millis = 7 * 24 * 3600 * 1000
    """Milliseconds between two scrubs of a closed segment."""

    # --- replicas ---
    replica_lag_time_max_ms: Annotated[int, Between(100)] = 30_000
    """A replica that has not caught up with its leader for this many milliseconds leaves the in-sync set."""
    replica_fetch_wait_max_ms: Annotated[int, Between(1, 30_000)] = 500
    """Longest time in milliseconds that a follower's fetch waits at a leader that has nothing new."""
    replica_fetch_max_bytes: Bytes = 1 << 20
    """Most bytes of one partition in an answer to a follower. A larger first batch is sent all the same."""
    replica_fetch_response_max_bytes: Bytes = 4 << 20
    """Most bytes in one answer to a follower, which appends them without a pause. Kafka's default is 10 MiB."""
    replica_fetch_backoff_ms: Millis = 1_000
    """Longest pause in milliseconds before a follower fetches again after an error."""
    replica_high_watermark_checkpoint_interval_ms: Millis = 5_000
    """Milliseconds between two writes of the high watermarks to `replication-offset-checkpoint`."""
    replica_selector_class: Literal[
        "org.apache.kafka.common.replica.LeaderSelector", "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    ] = "org.apache.kafka.common.replica.LeaderSelector"
    """Which replica serves a consumer. LeaderSelector: the leader. RackAwareReplicaSelector: an in-sync replica in the
    consumer's own rack (`client.rack`, `broker.rack`), if there is one. Set it alike on all brokers. The high watermark
    reaches the replicas some milliseconds later than the leader's readers."""
    leader_replication_throttled_rate: Annotated[int, Between(1)] = 100 << 20
    """Bytes per second that a broker sends to replicas that are not in sync. Lower it where catching up disturbs
    clients. Kafka's default has no limit."""
    follower_replication_throttled_rate: Annotated[int, Between(1)] = 100 << 20
    """Bytes per second that a broker fetches for replicas that are not in sync. Kafka's default has no limit."""

    # --- quotas ---
    quota_window_num: Annotated[int, Between(2, 1_000)] = 11
    """Windows over which the rate of a client is measured, including the one that runs."""
    quota_window_size_seconds: Annotated[int, Between(1, 3_600)] = 1
    """Seconds of one window."""
    controller_quota_window_num: Annotated[int, Between(2, 1_000)] = 11
    """Windows whose worth of `controller_mutation_rate` an idle client may use at once."""
    controller_quota_window_size_seconds: Annotated[int, Between(1, 3_600)] = 1
    """Seconds of one such window."""
    quota_meters_max: Annotated[int, Between(16)] = 10_000
    """Clients that a node meters at the same time, of rates and of changes each. Beyond it, those that were used least
    recently start over."""
    quota_client_ids_max: Annotated[int, Between(1)] = 100
    """Client ids of one user that have a default quota each, by key. All further ones share one: names that a client
    makes up give it no more."""

    # --- topics ---
    num_partitions: Count = 1
    """Partitions of a topic that is created without a partition count."""
    default_replication_factor: Annotated[int, Between(1, 32767)] = 1
    """Replicas of a topic that is created without a replication factor."""
    min_insync_replicas: Annotated[int, Between(1)] = 1
    """Replicas that must be in sync for a write with acks=all. Fewer: the write fails with NOT_ENOUGH_REPLICAS."""
    unclean_leader_election_enable: bool = False
    """true: when no in-sync replica is alive, a replica that is not in sync may lead. Records that it does not have are
    lost."""
    auto_leader_rebalance_enable: bool = True
    """true: the controller moves leadership back to each partition's preferred replica, a few partitions at a time."""
    auto_create_topics_enable: bool = True
    """true: a Metadata request for an unknown topic creates it, if the client allows that."""
    delete_topic_enable: bool = True
    """false: DeleteTopics is refused."""

    # --- producers ---
    producer_id_expiration_ms: Millis = 86_400_000
    """A partition forgets a producer that has written nothing for this many milliseconds, by log-append time."""
    transaction_partition_verification_enable: bool = True
    """true: the broker asks the coordinator before a transaction's first write to a partition. It prevents hanging
    transactions from late writes; leave it on."""
    pid_block_size: Annotated[int, Between(1, 1_000_000)] = 1_000
    """Producer ids that a node takes from the allocator at once. Larger blocks need fewer calls; the rest of a block is
    lost when the node restarts."""
    pid_lease_max_ms: Millis = 7 * 86_400_000
    """Longest lease of a single producer id in milliseconds."""

    # --- connections ---
    socket_request_max_bytes: Bytes = 100 << 20
    """Largest request in bytes. A larger one closes its connection."""
    connections_max_idle_ms: Annotated[int, Between(-1)] = 600_000
    """A connection that sends no request for this many milliseconds is closed; -1: never."""
    connections_frame_timeout_ms: Millis = 30_000
    """A connection that stops in the middle of a request is closed after this many milliseconds."""
    max_connections: Annotated[int, Between(1)] = 10_000
    """Most connections of one node. Further ones are closed at once."""
    queued_max_requests: Annotated[int, Between(1)] = 500
    """Most requests of one connection that are processed at once. Until one is answered, no further request is read
    from it."""
    queued_max_request_bytes: Annotated[int, Between(1)] = 256 << 20
    """Most bytes of requests that a node processes at once. Above it, the node reads from no connection."""
    metrics_partitions_max: Annotated[int, Between(0)] = 5_000
    """Most partitions of a broker that have metrics of their own. The sums count all partitions."""
    fetch_max_bytes: Annotated[int, Between(1024)] = 57_671_680
    """Most bytes that one Fetch returns."""
    max_incremental_fetch_session_cache_slots: Annotated[int, Between(0)] = 1_000
    """Most fetch sessions of a broker. When there are more consumers, a new session replaces one that was idle for two
    minutes, or an older one with fewer partitions. Consumers without a session work too; each of their fetches names
    all partitions."""
    max_incremental_fetch_session_cache_bytes: Annotated[int, Between(0)] = 128 << 20
    """Most memory of all fetch sessions of a broker, in bytes, as estimated: about 700 bytes for each partition that a
    consumer reads here."""
    request_timeout_ms: Millis = 30_000
    """Time-out in milliseconds of calls between services."""

    # --- coordinator ---
    transaction_state_log_num_partitions: Count = 50
    """Shards of the transaction coordinator. Fixed when the cluster is created."""
    transaction_state_log_replication_factor: Annotated[int, Between(1, 32767)] = 3
    """Replicas of the transaction log and of the event log; fewer while there are fewer brokers."""
    transaction_state_log_min_isr: Annotated[int, Between(1)] = 2
    """min.insync.replicas of the internal topics, once they have at least three replicas."""
    transaction_state_log_segment_bytes: Annotated[int, Between(14, 2**31 - 1)] = 4 << 20
    """Segment size of the transaction log in bytes. Only closed segments are compacted. A coordinator that takes over a
    shard therefore reads one record per transactional id and about one segment more. Kafka's default is 100 MiB."""
    transaction_max_timeout_ms: Millis = 900_000
    """Longest transaction time-out in milliseconds that a client may ask for. A longer one is refused."""
    transaction_two_phase_commit_enable: bool = False
    """Whether producers may take part in two-phase commit (KIP-939). Their transactions have no time limit: one that
    its producer never ends keeps consumers waiting until an operator commits or aborts it. false refuses such producers
    with TRANSACTIONAL_ID_AUTHORIZATION_FAILED; what they have left open stays open."""
    transactional_id_expiration_ms: Millis = 7 * 86_400_000
    """A transactional id that has been idle for this many milliseconds is removed."""
    transactional_token_expiration_ms: Millis = 365 * 86_400_000
    """As `transactional.id.expiration.ms`, for an id that holds a commit token."""
    transaction_single_use_retention_ms: Millis = 900_000
    """Milliseconds that the commit token of a scope with a single commit, such as a Spark batch write, is kept after
    that commit. A transactional id that had no other use is kept as long. A caller that lost the answer to its commit
    must repeat it within this time."""
    transaction_max_members: Annotated[int, Between(1)] = 1_000
    """Most writers of one multi-writer transaction, such as the task attempts of a Spark batch that write rows. The
    decision's record takes about 60 bytes for each, and two bits for each partition of its topics; the brokers'
    `socket.request.max.bytes` bounds that record."""
    transaction_max_scopes: Annotated[int, Between(1)] = 100
    """Most commit-token scopes that one transactional id holds."""
    transaction_remove_expired_transaction_cleanup_interval_ms: Millis = 3_600_000
    """Milliseconds between two searches for expired transactional ids."""
    transaction_completion_wait_ms: Annotated[int, Between(0)] = 1_000
    """Milliseconds that the first call of a new transaction waits for the markers of the previous one. After that the
    client is told to retry."""
    transaction_late_after_ms: Millis = 300_000
    """A transaction that has been open on a partition for `transaction.max.timeout.ms` plus this many milliseconds is
    aborted by the cluster."""
    offsets_topic_num_partitions: Count = 50
    """Shards of the group coordinator. Fixed when the cluster is created."""
    offsets_topic_replication_factor: Annotated[int, Between(1, 32767)] = 3
    """Replicas of the offsets topic; fewer while there are fewer brokers."""
    offsets_topic_segment_bytes: Annotated[int, Between(14, 2**31 - 1)] = 4 << 20
    """Segment size of the offsets topic in bytes; see `transaction.state.log.segment.bytes`. Kafka's default is 100
    MiB."""
    offsets_retention_minutes: Annotated[int, Between(1)] = 10_080
    """Minutes after which the committed offsets of an idle group are removed."""
    offsets_retention_check_interval_ms: Millis = 600_000
    """Milliseconds between two searches for expired offsets."""
    offset_metadata_max_bytes: Annotated[int, Between(0)] = 4_096
    """Longest metadata string of a committed offset in bytes."""
    group_min_session_timeout_ms: Millis = 6_000
    """Shortest session timeout that a member of a classic group may ask for, in milliseconds."""
    group_max_session_timeout_ms: Millis = 1_800_000
    """Longest session timeout that a member of a classic group may ask for, in milliseconds."""
    group_initial_rebalance_delay_ms: Annotated[int, Between(0)] = 3_000
    """Milliseconds for which the first round of an empty classic group waits for more members."""
    group_max_size: Annotated[int, Between(1)] = 2**31 - 1
    """Most members of a classic group."""
    group_max_metadata_bytes: Annotated[int, Between(1)] = 64 * 1024 * 1024
    """Most bytes of what the members of a group say about themselves, 1,000 bytes for each member included.
    A member that would exceed it is refused with GROUP_MAX_SIZE_REACHED."""
    group_consumer_session_timeout_ms: Annotated[int, Between(1)] = 45_000
    """Milliseconds without a heartbeat after which a member of a consumer group is removed."""
    group_consumer_heartbeat_interval_ms: Annotated[int, Between(1)] = 5_000
    """Milliseconds between two heartbeats, as members of consumer groups are told."""
    group_consumer_min_session_timeout_ms: Annotated[int, Between(1)] = 45_000
    """Shortest `consumer.session.timeout.ms` that a group may be configured with, in milliseconds."""
    group_consumer_max_session_timeout_ms: Annotated[int, Between(1)] = 60_000
    """Longest `consumer.session.timeout.ms` that a group may be configured with, in milliseconds."""
    group_consumer_min_heartbeat_interval_ms: Annotated[int, Between(1)] = 5_000
    """Shortest `consumer.heartbeat.interval.ms` that a group may be configured with, in milliseconds."""
    group_consumer_max_heartbeat_interval_ms: Annotated[int, Between(1)] = 15_000
    """Longest `consumer.heartbeat.interval.ms` that a group may be configured with, in milliseconds."""
    group_consumer_min_assignment_interval_ms: Annotated[int, Between(0)] = 0
    """Shortest `consumer.assignment.interval.ms` that a group may be configured with, in milliseconds."""
    group_consumer_max_assignment_interval_ms: Annotated[int, Between(0)] = 15_000
    """Longest `consumer.assignment.interval.ms` that a group may be configured with, in milliseconds."""
    group_consumer_max_size: Annotated[int, Between(1)] = 2**31 - 1
    """Most members of a consumer group."""
    group_consumer_assignors: Literal["uniform,range", "range,uniform", "uniform", "range"] = "uniform,range"
    """Assignors that members of consumer groups may choose, the default first."""
    group_consumer_assignment_interval_ms: Annotated[int, Between(0)] = 1_000
    """Milliseconds between two computed assignments of a consumer group."""
    group_consumer_regex_refresh_interval_ms: Annotated[int, Between(10_000)] = 600_000
    """Milliseconds after which a regular expression in a subscription is matched again."""
    group_consumer_migration_policy: Literal["disabled", "upgrade", "downgrade", "bidirectional"] = "bidirectional"
    """Which groups with members may change between the classic and the consumer protocol. Empty groups always may."""

    # --- views ---

    @property
    def kafka_addresses(self) -> dict[str, Address]:
        """Where each Kafka listener binds, by its name; the nodes' own first."""
        return parse_listeners(self.listeners, self.node_id)

    @property
    def security_protocols(self) -> dict[str, str]:
        """The security protocol of each Kafka listener, by its name."""
        return protocols_of(
            self.kafka_addresses, self.listener_security_protocol_map, self.security_inter_broker_protocol)

    def of_listener(self, name: str) -> Settings:
        """These settings as they are for one listener."""
        return replace(self, **self.overrides.get(name, {}))

    @property
    def rpc_address(self) -> Address:
        return Address.parse(self.rpc_listen)

    @property
    def http_address(self) -> Address:
        return Address.parse(self.http_listen)

    @property
    def admin_address(self) -> Address:
        return Address.parse(self.admin_listen)

    @property
    def etcd_addresses(self) -> list[Address]:
        return [Address.parse(_without_scheme(endpoint)) for endpoint in self.etcd_endpoints.split(",")]

    @property
    def etcd_over_tls(self) -> bool:
        return self.etcd_endpoints.strip().startswith(_HTTPS)

    def advertised_kafka(self, bound: Mapping[str, Address]) -> dict[str, Address]:
        """What clients are told, by listener: advertised.listeners, or where it is bound (`bound`: the real ports)."""
        told = {} if self.advertised_listeners is None else parse_listeners(self.advertised_listeners, self.node_id)
        return {
            name: Address((told[name].host, told[name].port or address.port)) if name in told else address
            for name, address in bound.items()
        }

    def advertised_rpc(self, bound: Address) -> Address:
        return _advertised(self.rpc_advertised, bound)

    def advertised_public_rpc(self, bound: Address) -> Address:
        return _advertised(self.public_rpc_advertised, bound)

    def advertised_frames(self, bound: Address) -> Address:
        return _advertised(self.frames_advertised, bound)

    @property
    def roll_ms(self) -> int:
        return self.log_roll_ms if self.log_roll_ms is not None else self.log_roll_hours * 3_600_000

    @property
    def retention_ms(self) -> int:
        """-1: kept for ever."""
        if self.log_retention_ms is not None:
            return self.log_retention_ms
        if self.log_retention_minutes is not None:
            return self.log_retention_minutes * 60_000 if self.log_retention_minutes >= 0 else -1
        return self.log_retention_hours * 3_600_000 if self.log_retention_hours >= 0 else -1

    def for_topic(self, config: Mapping[str, str]) -> Settings:
        """These settings with a topic's own configuration (`segment.bytes`, `retention.ms`, ...) on top.

        Names that Kafka has and that mean nothing here are passed over. Raises SettingsError for any other name and
        for a bad value.
        """
        values: dict[str, str] = {}
        for name, value in config.items():
            if name in TOPIC_CONFIGS:
                values[TOPIC_CONFIGS[name]] = value
            elif name not in KAFKA_TOPIC_CONFIGS:
                raise SettingsError(_unknown(name, TOPIC_CONFIGS, "topic configuration"))
        return _validated(self, [("topic configuration", values)])


TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.insync.replicas": "min.insync.replicas",
    "restoring": "restoring",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""A topic's configuration name -> the setting whose value it overrides."""

SETTING_NAMES: Final[tuple[str, ...]] = tuple(field.name.replace("_", ".") for field in fields(Settings))


def load(
    flags: Sequence[str] = (),
    *,
    file: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """`flags` are `name=value` strings (what follows `--set`). Raises SettingsError, or OSError for the file."""
    sources: list[tuple[str, Mapping[str, str]]] = []
    if file is not None:
        sources.append((f"file {file}", read_file(Path(file))))
    sources.append(("environment", _read_environment(os.environ if environment is None else environment)))
    sources.append(("--set", parse_assignments(flags)))
    return _validated(Settings(), sources)


def parse_arguments(arguments: Sequence[str]) -> Settings:
    """Settings from a service's command line: `[--config FILE] [--set name=value ...]`. Raises SettingsError."""
    flags: list[str] = []
    file: str | None = None
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        option, equals, attached = word.partition("=")
        if option not in ("--set", "--config"):
            raise SettingsError(f"{word}: expected --set name=value or --config FILE")
        if not equals and not rest:
            raise SettingsError(f"{word}: a value must follow")
        value = attached if equals else rest.pop(0)
        if option == "--set":
            flags.append(value)
        else:
            file = value
    return load(flags, file=file)


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`["a.b=1"]` -> `{"a.b": "1"}`; the last of two wins. Raises SettingsError."""
    values = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"{assignment!r}: expected name=value")
        values[name.strip()] = value.strip()
    return values


# --- sources ------------------------------------------------------------------------------------------------------


def read_file(path: Path) -> dict[str, str]:
    """Names and values of a file, properties or TOML. Raises SettingsError, OSError."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        import tomllib

        try:
            return _flatten(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"file {path}: {error}") from error
    lines = (line.strip() for line in text.splitlines())
    return parse_assignments(line for line in lines if line and line[0] not in "#!")


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            values |= _flatten(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = as_text(value)
    return values


def _read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "."): value
        for name, value in sorted(environment.items())
        if name.startswith(ENVIRONMENT_PREFIX) and not _NOT_SETTINGS.fullmatch(name)
    }


# --- validation ---------------------------------------------------------------------------------------------------


def _validated(base: Settings, sources: Sequence[tuple[str, Mapping[str, str]]]) -> Settings:
    values: dict[str, Any] = {}
    overrides = {name: dict(own) for name, own in base.overrides.items()}
    faults: dict[str, str] = {}
    for source, assigned in sources:
        for name, text in assigned.items():
            try:
                listener, setting = split_override(name, _listener_names(base, sources)) or ("", name)
                if setting not in SETTING_NAMES:
                    raise SettingsError(_unknown(name, SETTING_NAMES, source))
                field = setting.replace(".", "_")
                value = read_value(field_types()[field], text)
                _CHECKED.get(field, str)(text)
                (overrides.setdefault(listener, {}) if listener else values)[field] = value
                faults.pop(name, None)
            except SettingsError as error:
                faults[name] = str(error)
            except ValueError as error:
                faults[name] = f"{name}={text} ({source}): {error}"
    if faults:
        raise SettingsError("\n".join(faults.values()))
    given = frozenset(values)
    if values.get("security_inter_broker_protocol") == SSL and values.get("rpc_former_calls"):
        raise SettingsError("rpc.former.calls=true: the former release has no TLS between processes")
    if values.get("security_inter_broker_protocol") == SSL and "listeners" not in base.given | values.keys():
        values["listeners"] = _SECURE_LISTENERS
    made = replace(base, **values)
    object.__setattr__(made, "given", base.given | given)
    object.__setattr__(made, "overrides", overrides)
    if unknown := set(overrides) - set(made.kafka_addresses):
        raise SettingsError(f"listener.name.{min(unknown).lower()}: listeners names no {min(unknown)}")
    try:
        made.security_protocols  # noqa: B018
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if bool(made.etcd_username) != bool(made.etcd_password_location):
        raise SettingsError("etcd.username and etcd.password.location must be given together")
    if made.audit_log_destination == "file" and not made.audit_log_dir:
        raise SettingsError("audit.log.destination=file needs audit.log.dir")
    nowhere = set(parse_listeners(made.advertised_listeners or made.listeners)) - set(made.kafka_addresses)
    if nowhere:
        raise SettingsError(f"advertised.listeners names {', '.join(sorted(nowhere))}, and listeners does not")
    return made


@lru_cache(maxsize=1)
def field_types() -> dict[str, Any]:
    """Attribute of `Settings` -> its type with what bounds it."""
    return get_type_hints(Settings, include_extras=True)


def _endpoints(text: str) -> None:
    endpoints = text.split(",")
    for endpoint in endpoints:
        Address.parse(_without_scheme(endpoint))
    if len({endpoint.strip().startswith(_HTTPS) for endpoint in endpoints}) > 1:
        raise ValueError("either all addresses begin with https:// or none does")


def _without_scheme(endpoint: str) -> str:
    return endpoint.strip().removeprefix("http://").removeprefix(_HTTPS)


def _listener_names(base: Settings, sources: Sequence[tuple[str, Mapping[str, str]]]) -> list[str]:
    text = next((given["listeners"] for _, given in reversed(sources) if "listeners" in given), base.listeners)
    try:
        return list(parse_listeners(text))
    except ValueError:  # is said elsewhere
        return []


_CHECKED: Final[Mapping[str, Callable[[str], object]]] = {
    "listeners": parse_listeners, "advertised_listeners": parse_listeners, "rpc_listen": Address.parse,
    "rpc_advertised": Address.parse, "public_rpc_listen": Address.parse, "public_rpc_advertised": Address.parse,
    "frames_listen": Address.parse, "frames_advertised": Address.parse, "http_listen": Address.parse,
    "etcd_endpoints": _endpoints, "admin_listen": Address.parse, "listener_security_protocol_map": protocol_map,
    "ssl_principal_mapping_rules": check_rules,
}  # fmt: skip
"""Settings whose text must be more than its type says."""


def _unknown(name: str, known: Iterable[str], source: str) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"{name} ({source}): no such setting" + (f"; did you mean {close[0]}?" if close else "")


def _advertised(text: str | None, bound: Address) -> Address:
    if text is None:
        return bound
    advertised = Address.parse(text)
    return advertised if advertised.port else Address((advertised.host, bound.port))


def as_text(value: object) -> str:
    """The value in the form that `load` reads."""
    return str(value).lower() if isinstance(value, bool) else str(value)

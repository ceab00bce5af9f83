"""One of everything that is stored, with fixed ids and times, written by today's code into a folder:

    broker-0/       a data folder: segments, indexes, snapshots, checkpoints, properties
    etcd.json       a value of every kind of key of the metadata store
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from golden.partition_writer import PartitionWriter
from hapax.codec import metadata as etcd
from hapax.codec import offsets_log, transaction_log
from hapax.codec.internal_records import KeyValue, encode_batch
from hapax.codec.records import encode_records
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.control import LEASE_COUNTED, Marker, ProducerExpiry, ProducerFence, ShardFence
from hapax.core.group.offsets import CommittedOffset, OffsetRecord
from hapax.core.group.values import (
    ClassicFacade,
    ClassicGroupRecord,
    ClassicGroupValue,
    ClassicMemberValue,
    CurrentRecord,
    CurrentValue,
    GroupEpochRecord,
    GroupEpochValue,
    MemberRecord,
    MembershipRecord,
    MemberValue,
    ProtocolOffer,
    RegexRecord,
    RegexValue,
    TargetEpochRecord,
    TargetEpochValue,
    TargetRecord,
)
from hapax.core.quota.entities import entity_of
from hapax.core.sasl.scram_keys import ScramCredential, ScramMechanism
from hapax.core.transaction.record import (
    NO_LIMIT,
    NO_TIMEOUT_MS,
    CommittedToken,
    Delta,
    Fencing,
    FencingCause,
    Fingerprint,
    Holder,
    LastOutcome,
    Member,
    PartitionSet,
    Policy,
    ProducerIdentity,
    Token,
    Tombstone,
    Transaction,
    TransactionPartition,
)
from hapax.core.transaction.states import State
from hapax.core.types import (
    LeaderEpoch,
    Millis,
    NodeId,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    RegistrationEpoch,
    Serial,
    ShardEpoch,
    ShardId,
    TimestampMs,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)
from hapax.log.config import LogConfig
from hapax.log.layout import CLEAN_SHUTDOWN, HIGH_WATERMARK_CHECKPOINT, encode_high_watermarks
from hapax.runtime.disk import RealDisk, open_folder
from hapax.runtime.node_ids import claim_folder
from hapax.runtime.rollback_guard import RollbackGuard
from hapax.wire.events import encode_event

CLUSTER_ID = "golden-cluster"
T0 = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=8_192, index_interval_bytes=512, checkpoint_bytes=1 << 20)


def topic_id(number: int) -> TopicId:
    return TopicId(bytes([number]) * 16)


FLIGHTS, TXN_STATE, OFFSETS, EVENTS = map(topic_id, (1, 2, 3, 4))


async def write_everything(folder: Path) -> None:
    await write_data_folder(folder / "broker-0")
    values = {key: json.loads(value) for key, value in sorted(etcd_values())}
    # One value a line, as text: what a person reviews is what is stored.
    lines = [f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in values.items()]
    (folder / "etcd.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


async def write_data_folder(root: Path) -> None:
    """A node's data folder after a clean stop."""
    disk = open_folder(str(root))
    try:
        await claim_folder(disk, CLUSTER_ID, NodeId(0), random.Random(1))
        guard = RollbackGuard(CLUSTER_ID, disk)
        guard.check_revision(42)
        guard.note_producer_id(3_000)
        await guard.close()
        writers = [
            await _flights(disk), await _transaction_state(disk), await _consumer_offsets(disk), await _events(disk),
        ]  # fmt: skip
        ends = {_place(writer): writer.machine.high_watermark for writer in writers}
        sizes = {writer.folder: await writer.close() for writer in writers}
        await disk.write_atomically(HIGH_WATERMARK_CHECKPOINT, encode_high_watermarks(ends))
        clean = {"version": 0, "brokerEpoch": -1, "sizes": sizes}
        await disk.write_atomically(CLEAN_SHUTDOWN, json.dumps(clean).encode())
    finally:
        disk.close()


def _place(writer: PartitionWriter) -> TopicPartition:
    topic, _, index = writer.folder.rpartition("-")
    return TopicPartition(topic, PartitionIndex(int(index)))


# --- partitions ---------------------------------------------------------------------------------------------------


def data(
    producer: tuple[int, int, int], values: Sequence[bytes], at_ms: int, *, transactional: bool = False
) -> bytearray:
    """One batch of (producer id, epoch, first sequence)."""
    records = [(at_ms + i, b"k%d" % i, value, [("h", b"1")]) for i, value in enumerate(values)]
    producer_id, epoch, sequence = producer
    return encode_records(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )


async def _flights(disk: RealDisk) -> PartitionWriter:
    """Clients' records: plain, idempotent, committed, aborted, still open; a lease, and one that is counted and
    forgotten; two leaders; three segments."""
    writer = PartitionWriter(disk, "flights", 0, FLIGHTS, SMALL)
    writer.control(ProducerFence(2_990, 2, T0 + 1), T0)
    writer.control(ProducerFence(2_990, 32_767, LEASE_COUNTED), T0 + 2)
    for i in range(12):
        writer.append(data((1_000, 0, 3 * i), [b"%03d" % i * 100] * 3, T0 + 1_000 * i))
        if i == 5:
            writer.append(data((2_000, 4, 0), [b"committed"] * 2, T0 + 5_100, transactional=True))
            writer.append(data((2_001, 0, 0), [b"aborted"], T0 + 5_200, transactional=True))
            writer.control(Marker(2_000, 5, commit=True, coordinator_epoch=7, serial=1, shard=33), T0 + 5_300)
            writer.control(Marker(2_001, 1, commit=False, coordinator_epoch=7, serial=9, shard=33), T0 + 5_400)
    await writer.checkpoint()
    writer.leader_epoch = 3
    writer.append(data((-1, -1, -1), [b"of no producer"], T0 + 20_000))
    writer.control(ProducerFence(3_000, 2, T0 + 600_000), T0 + 20_100)
    writer.append(data((3_000, 2, 0), [b"leased"] * 4, T0 + 20_200))
    writer.control(ProducerExpiry(4, T0 + 20_300), T0 + 20_300)
    writer.machine.sweep_dead()
    for i in range(10):
        writer.append(data((2_000, 5, 2 * i), [b"again %d" % i * 60] * 2, T0 + 21_000 + i, transactional=True))
    writer.control(Marker(2_000, 6, commit=False, coordinator_epoch=8, serial=2, shard=33), T0 + 22_000)
    writer.append(data((2_002, 0, 0), [b"open"] * 2, T0 + 23_000, transactional=True))
    return writer


def transaction_records() -> Iterator[KeyValue]:
    """Every state, every field."""
    partitions = (
        TransactionPartition("flights", FLIGHTS, PartitionIndex(0)),
        TransactionPartition("flights", FLIGHTS, PartitionIndex(3)),
        TransactionPartition("__consumer_offsets", OFFSETS, PartitionIndex(3)),
    )
    common = {
        "producer_id": ProducerId(2_000), "producer_epoch": ProducerEpoch(5), "timeout_ms": 30_000,
        "client_version": 2, "start_ms": TimestampMs(T0), "last_update_ms": TimestampMs(T0 + 1),
        "serial": Serial(2), "holder": Holder("rdkafka", "10.0.0.1:4000"),
    }  # fmt: skip
    for state in State:
        with_partitions = {"partitions": partitions} if state not in (State.EMPTY, State.DEAD) else {}
        yield _transaction(f"t-{state.name}", state, **common, **with_partitions)
    yield _transaction(
        "exhausted", State.PREPARE_COMMIT, **common, partitions=partitions[:1],
        last_producer_epoch=ProducerEpoch(32_766), previous_producer_id=ProducerId(1_999),
        next_producer_id=ProducerId(2_050), elapsed_ms=Millis(1_200), limit_ms=Millis(30_000),
    )
    two_phase = {**common, "timeout_ms": NO_TIMEOUT_MS, "two_phase": True}
    yield _transaction("two-phase", State.EMPTY, **two_phase)
    kept = {
        **two_phase, "partitions": partitions[:1], "elapsed_ms": Millis(90_000), "limit_ms": NO_LIMIT,
        "next_producer_id": ProducerId(2_000), "next_producer_epoch": ProducerEpoch(7),
    }  # fmt: skip
    yield _transaction("kept", State.ONGOING, **kept)
    yield _transaction(
        "kept-deciding", State.PREPARE_COMMIT, **{**kept, "next_producer_id": ProducerId(2_051)},
        previous_producer_id=ProducerId(2_050), last_producer_epoch=ProducerEpoch(32_766))
    fencing = Fencing(
        FencingCause.INITIALIZED, TimestampMs(T0 + 5), "new", "10.0.0.2:4001", ProducerId(2_000), ProducerEpoch(5),
        Serial(2), Holder("old", "10.0.0.1:4000"),
    )
    yield _transaction("fenced", State.COMPLETE_ABORT, **common, fencing=fencing,
                       policy=Policy(("flights", "delays"), 120_000))  # fmt: skip
    yield _transaction(
        "spark-q", State.PREPARE_COMMIT, **{**common, "holder": None},
        tokens=(CommittedToken("q", 6, 100, Serial(1), TimestampMs(T0)),), open_token=Token("q", 7),
        members=(
            Member("task-0", ProducerId(10), ProducerEpoch(1), PartitionSet.of(partitions[:2]),
                   PartitionSet.of(partitions[:1])),
            Member("task-1", ProducerId(11), ProducerEpoch(0)),
        ),
        idle_members=(ProducerIdentity(ProducerId(12), ProducerEpoch(3)),),
    )
    yield _transaction("spark-r", State.ONGOING, **{**common, "holder": None}, open_token=Token("r", 0),
                       members=(Member("task-0", ProducerId(13), ProducerEpoch(0)),))  # fmt: skip
    registered = Member("task-1", ProducerId(14), ProducerEpoch(2), PartitionSet.of(partitions))
    for member in (registered, None):
        yield from transaction_log.encode_record(Delta(
            transactional_id="spark-r", serial=Serial(2), elapsed_ms=Millis(20), limit_ms=Millis(40_000),
            last_update_ms=TimestampMs(T0 + 2), member=member,
        ))
    yield from transaction_log.encode_record(Tombstone("forgotten", (ProducerId(15),)))
    owned = CommittedToken(
        "q", 9, 250, Serial(4), TimestampMs(T0 + 3), "owner", 3,
        (Fingerprint("offsets", bytes(range(32))), Fingerprint("records", bytes(16))), past=bytes(range(64, 80)),
    )  # fmt: skip
    single = CommittedToken("write", 0, 5, Serial(5), TimestampMs(T0 + 4), single_use=True)
    yield _transaction(
        "spark-owned", State.ONGOING, **{**common, "holder": None}, tokens=(owned, single),
        open_token=Token("q", 10, "owner", 3), runs=("run-1", "run-2"), outcome=LastOutcome(True, TimestampMs(T0 + 4)),
        members=(Member("task-0", ProducerId(16), ProducerEpoch(0)),),
    )


def _transaction(name: str, state: State, **fields: object) -> KeyValue:
    transaction = Transaction(transactional_id=name, state=state, **fields)  # type: ignore[arg-type]
    return transaction_log.encode_key(name), transaction_log.encode_value(transaction)


async def _transaction_state(disk: RealDisk) -> PartitionWriter:
    writer = PartitionWriter(disk, "__transaction_state", 33, TXN_STATE, LogConfig(compact=True, delete=False))
    writer.control(ShardFence(7, 100), T0)
    writer.append(encode_batch(list(transaction_records()), T0 + 1))
    return writer


def offset_records() -> Iterator[KeyValue]:
    """Versions 1, 3 and 4, a tombstone, and those of groups and their members."""
    where = TopicPartition("flights", PartitionIndex(0))
    for group, offset in (
        ("v3", CommittedOffset(Offset(5), 2, "m", TimestampMs(T0))),
        ("v1", CommittedOffset(Offset(6), -1, "", TimestampMs(T0), TimestampMs(T0 + 9))),
        ("v4", CommittedOffset(Offset(7), 3, "", TimestampMs(T0), topic_id=FLIGHTS)),
    ):
        record = OffsetRecord(group, where, offset)
        yield offsets_log.encode_key(record), offsets_log.encode_value(record)
    yield offsets_log.encode_key(OffsetRecord("gone", where, None)), None
    for member in group_records():
        yield offsets_log.encode_key(member), None if member.value is None else offsets_log.encode_value(member)


def group_records() -> Iterator[MembershipRecord]:
    """Every kind, with each field set, and a tombstone of each."""
    values: list[MembershipRecord] = [
        ClassicGroupRecord("classic", ClassicGroupValue("consumer", 4, "range", "m-1", TimestampMs(T0), (
            ClassicMemberValue("m-1", "i-1", "client", "/10.0.0.1", 60_000, 45_000, b"subscription", b"assignment"),
        ))),
        GroupEpochRecord("consumer", GroupEpochValue(7, 2**62)),
        MemberRecord("consumer", "m-1", MemberValue(
            "i-1", "rack-a", "client", "/10.0.0.1", ("flights",), "delays-.*", 45_000, "uniform",
            ClassicFacade(10_000, (ProtocolOffer("range", b"subscription"),)))),
        TargetEpochRecord("consumer", TargetEpochValue(6, TimestampMs(T0))),
        TargetRecord("consumer", "m-1", frozenset({(FLIGHTS, 0), (FLIGHTS, 2)})),
        CurrentRecord("consumer", "m-1", CurrentValue(6, 5, 1, ((FLIGHTS, 0, 4),), ((FLIGHTS, 1, 3),))),
        RegexRecord("consumer", "delays-.*", RegexValue(("delays-1", "delays-2"), 99, TimestampMs(T0))),
    ]
    yield from values
    for value in values:
        yield value._replace(group="gone", value=None)


async def _consumer_offsets(disk: RealDisk) -> PartitionWriter:
    writer = PartitionWriter(disk, "__consumer_offsets", 3, OFFSETS, LogConfig(compact=True, delete=False))
    writer.control(ShardFence(2, 101), T0)
    records = list(offset_records())
    writer.append(encode_batch(records, T0 + 1))
    for producer_id, commit in ((2_000, True), (2_001, False)):
        writer.append(encode_batch(records[:1], T0 + 2, producer_id=producer_id, producer_epoch=5))
        writer.control(Marker(producer_id, 6, commit=commit, coordinator_epoch=8, serial=3, shard=33), T0 + 3)
    return writer


async def _events(disk: RealDisk) -> PartitionWriter:
    writer = PartitionWriter(disk, "__hapax_events", 0, EVENTS, LogConfig())
    fenced = encode_event("producer_fenced", T0, NodeId(100), {"transactional_id": "fenced", "producer_id": 2_000})
    writer.append(encode_batch([fenced], T0))
    return writer


# --- the metadata store -------------------------------------------------------------------------------------------


def etcd_values() -> Iterator[tuple[str, bytes]]:
    """A value for every kind of key, each optional field set."""
    keys = etcd.Keys(CLUSTER_ID)
    nodes = (NodeId(0), NodeId(1), NodeId(2))
    yield keys.cluster, etcd.ClusterRecord(CLUSTER_ID, 50, 50, T0).encode()
    yield keys.node(nodes[0]), etcd.NodeRecord(
        nodes[0], "broker", "10.0.0.1", 9092, "10.0.0.1:9093", "10.0.0.1:9094", bytes(range(16)), "a", "folder-1",
        RegistrationEpoch(12), "draining", (("EXTERNAL", "broker-0.example.org", 30_000),), heeds_passed_over=True,
        public_rpc_address="10.0.0.1:9096", frames_address="10.0.0.1:9097",
    ).encode()
    yield keys.topic("flights"), etcd.TopicRecord(
        FLIGHTS, "flights", 2, 3, {"retention.ms": "1000"}, assignment=(nodes,), made_by="uid-1"
    ).encode()
    yield keys.topic("__consumer_offsets"), etcd.TopicRecord(
        OFFSETS, "__consumer_offsets", 50, 3, {"cleanup.policy": "compact"}, internal=True
    ).encode()
    yield keys.outside, etcd.OutsideRecord(
        {NodeId(0): ("192.0.2.7", 9095), NodeId(100): ("a.example", 443)}, {NodeId(0): "uid-of-the-service"}).encode()
    yield keys.racks, etcd.RacksRecord("topology.kubernetes.io/zone", {"node-1": "a", "node-2": ""}).encode()
    yield keys.draining(nodes[2]), etcd.DrainingRecord(T0, "BrokerPool").encode()
    yield keys.silent(nodes[0]), etcd.SilentRecord(RegistrationEpoch(20), T0).encode()
    yield keys.throttle, etcd.ThrottleRecord(10_000_000, T0).encode()
    yield keys.deleted(topic_id(9)), etcd.DeletedTopicRecord(topic_id(9), "old", T0).encode()
    yield keys.partition(FLIGHTS, PartitionIndex(0)), etcd.PartitionRecord(
        nodes[1], LeaderEpoch(3), RegistrationEpoch(20), nodes, nodes[1:], LeaderEpoch(3),
        (RegistrationEpoch(20), RegistrationEpoch(21)), adding=nodes[2:], removing=nodes[:1],
        unclean_epoch=LeaderEpoch(2), unclean_ms=T0 - 1_000, passed_over=((nodes[0], RegistrationEpoch(19)),),
    ).encode()
    # Its leader has not accepted yet: the passed-over replicas have another name in the value.
    yield keys.partition(FLIGHTS, PartitionIndex(1)), etcd.PartitionRecord(
        nodes[2], LeaderEpoch(5), RegistrationEpoch(21), nodes, nodes[2:], LeaderEpoch(4), (RegistrationEpoch(21),),
        passed_over=((nodes[0], RegistrationEpoch(18)), (nodes[1], RegistrationEpoch(20))),
    ).encode()
    for kind in ("txn", "group"):
        yield keys.shard(kind, ShardId(7)), etcd.ShardRecord(  # type: ignore[arg-type]
            NodeId(100), RegistrationEpoch(30), ShardEpoch(7)
        ).encode()
    yield keys.pid_next, etcd.PidCounterRecord(ProducerId(5_000), floor=2_000).encode()
    where = TopicIdPartition(FLIGHTS, PartitionIndex(0))
    yield keys.pid_lease("loader/1"), etcd.PidLeaseRecord(
        "loader/1", ProducerId(3_000), ProducerEpoch(2), "loader on a", T0, T0 + 600_000, (where,), {where: 336_776},
        (ProducerId(2_998), ProducerId(2_999)), bytes(range(16)),
    ).encode()
    for policy in (
        etcd.PolicyRecord("loader", "", ("flights", "delays-*"), 5_000, "2026-01-01T00:00:00Z", "uid-1", "team/loader"),
        etcd.PolicyRecord("", "team-", None, 0, "2026-01-02T00:00:00Z", "uid-2", "team/all"),
    ):
        yield keys.policy(policy.uid), policy.encode()
    yield keys.group_config("team/readers"), etcd.GroupConfigRecord({
        "consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "10000"}).encode()
    for record in (
        etcd.AclRecord(Binding(
            ResourceType.TOPIC, "team-", Pattern.PREFIXED, Principal("User:CN=app,O=team"), "10.0.0.1",
            Operation.READ, Permission.ALLOW), "team/app"),
        etcd.AclRecord(Binding(
            ResourceType.CLUSTER, "kafka-cluster", Pattern.LITERAL, Principal("User:*"), "*", Operation.ALTER,
            Permission.DENY)),
    ):
        yield keys.acl(record.binding), record.encode()
    yield keys.scram_secret, etcd.ScramSecretRecord(bytes(range(32))).encode()
    for user, credential, owner in (
        ("alice", ScramCredential(
            ScramMechanism.SCRAM_SHA_256, b"salt of alice", bytes(32), bytes(range(32)), 4096), ""),
        ("team/bob é", ScramCredential(
            ScramMechanism.SCRAM_SHA_512, bytes(range(64)), bytes(range(64)), bytes(64), 16_384), "team/app"),
    ):
        yield keys.scram_credential(credential.mechanism, user), etcd.ScramCredentialRecord(credential, owner).encode()
    for quota in (
        etcd.QuotaRecord(entity_of({"user": "alice", "client-id": None}), {
            "producer_byte_rate": 1_048_576.0, "request_percentage": 12.5}, "team/app"),
        etcd.QuotaRecord(entity_of({"client-id": "a/b"}), {"controller_mutation_rate": 0.5}),
        etcd.QuotaRecord(entity_of({"ip": "10.0.0.1"}), {"connection_creation_rate": 5.0}),
    ):
        yield keys.quota(quota.entity), quota.encode()
    yield keys.controller, etcd.ControllerRecord(NodeId(300), "10.0.0.9:9093", RegistrationEpoch(4)).encode()

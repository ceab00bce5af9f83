"""Bad input at a real broker: the protocol's error or a closed connection with one log line; the broker stays up, its
memory bounded, and a well-behaved client beside it notices nothing."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import end_cluster, start_cluster
from hapax.core.errors import ErrorCode
from hapax.kafka.api import api_versions, metadata
from hapax.kafka.api import produce as produce_api
from hapax.kafka.registry import all_apis
from hapax.local.cluster import LocalCluster
from hapax.wire import messages
from hapax.wire.messages import set_unknown_tag
from integration.bad_input import (
    FRAME_TIMEOUT_MS,
    SETTINGS,
    ClusterProcess,
    Neighbour,
    Wire,
    batch,
    create_topic,
    fetch_fields,
    produce,
    raise_descriptors,
    resealed,
    wire,
)
from unit.kafka.samples import REQUESTS, mutate, request_frame

TOPIC = "target"
CONNECTIONS = 5000
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def hardened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of its own: these tests measure its memory and read its log."""
    cluster = start_cluster(tmp_path_factory.mktemp("bad-input"), settings=SETTINGS)
    yield cluster
    end_cluster(cluster)


@pytest.fixture(scope="module")
def broker(hardened: LocalCluster) -> ClusterProcess:
    node = ClusterProcess(hardened, "broker-0")
    with wire(node.address) as connection:
        assert create_topic(connection, TOPIC, 1) == 0
    return node


@pytest.fixture(scope="module")
def neighbour(broker: ClusterProcess) -> Neighbour:
    return Neighbour(broker)


@pytest.fixture(autouse=True)
def nothing_else_happens(broker: ClusterProcess, neighbour: Neighbour) -> Iterator[None]:
    """After each test the same process serves the same client, at its usual speed, from bounded memory."""
    before = broker.memory()
    yield
    assert neighbour.works() < 1.0
    assert broker.is_the_same_process()
    assert broker.memory() - before < 60 * MEBIBYTE


# --- frames -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("a 2 GiB header", struct.pack(">i", (1 << 31) - 1) + bytes(1000)),
        ("a negative length", struct.pack(">i", -5)),
        ("another protocol", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("random bytes", random.Random(1).randbytes(4000)),
        ("an empty frame", struct.pack(">i", 0)),
        ("a frame too short for a header", struct.pack(">i", 3) + b"abc"),
        ("a client id past the end", struct.pack(">ihhih", 12, 3, 1, 1, 99) + b"me"),
        ("an unknown API key", struct.pack(">ihhih", 10, 999, 0, 1, -1)),
        ("a negative API key", struct.pack(">ihhih", 10, -1, 0, 1, -1)),
        ("an unknown version", struct.pack(">ihhih", 10, metadata.ROW.key, 99, 1, -1)),
        ("Produce 2", struct.pack(">ihhih", 10, produce_api.ROW.key, 2, 1, -1) + bytes(100)),
        ("a body that is not one", struct.pack(">ihhih", 50, metadata.ROW.key, 1, 1, -1) + b"\x7f" * 40),
        ("a count that lies", struct.pack(">ihhihi", 14, metadata.ROW.key, 1, 1, -1, (1 << 31) - 1)),
        ("a Produce body that is not one", struct.pack(">ihhih", 50, produce_api.ROW.key, 9, 1, -1) + b"\xff" * 40),
        ("a long Metadata", struct.pack(">ihhih", 2 * MEBIBYTE, metadata.ROW.key, 1, 1, -1) + bytes(2 * MEBIBYTE)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_connection_that_does_not_speak_the_protocol_ends_with_one_line(
    broker: ClusterProcess, name: str, sent: bytes
) -> None:
    with wire(broker.address) as connection:
        connection.socket.sendall(sent)
        assert connection.ends()
        assert len(broker.lines_about(connection.name)) == 1


def test_half_a_frame_and_silence_ends_with_one_line(broker: ClusterProcess) -> None:
    with wire(broker.address) as connection:
        connection.socket.sendall(struct.pack(">i", 1000) + b"the beginning")
        began = time.monotonic()
        assert connection.ends()
        assert time.monotonic() - began < 3 * FRAME_TIMEOUT_MS / 1000
        (line,) = broker.lines_about(connection.name)
        assert "half a frame" in line


def test_claimed_lengths_cost_nothing(broker: ClusterProcess) -> None:
    before = broker.memory()
    connections = [Wire(broker.address) for _ in range(200)]
    for connection in connections:
        connection.socket.sendall(struct.pack(">i", 20 * MEBIBYTE) + b"x" * 100)
    with wire(broker.address) as last:
        assert last.ask("ApiVersions", 0) is not None
    assert broker.memory() - before < 20 * MEBIBYTE  # where the headers claim 4 GB
    for connection in connections:
        connection.close()


def test_a_newer_api_versions_is_answered_in_version_0_with_the_whole_list(broker: ClusterProcess) -> None:
    with wire(broker.address) as connection:
        connection.send(struct.pack(">hhih", api_versions.ROW.key, 77, 5, -1) + b"\x01whatever")
        frame = connection.read_frame()
        assert frame is not None
        answer = messages.ApiVersionsResponse.decode(memoryview(frame)[4:], version=0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert len(answer.api_keys) == len(all_apis())
        assert connection.ask("ApiVersions", 3, client_software_name="x", client_software_version="1").error_code == 0


# --- record batches -----------------------------------------------------------------------------------------------


def _bad_batches() -> dict[str, tuple[bytes | bytearray, set[int]]]:
    good = batch(b"payload")
    corrupt = batch(b"payload")
    corrupt[-1] ^= 1
    header_corrupt = batch(b"payload")
    header_corrupt[30] ^= 1
    lying_count = batch(b"payload")
    struct.pack_into(">i", lying_count, 57, 1000)
    negative_count = batch(b"payload")
    struct.pack_into(">i", negative_count, 57, -1)
    lying_delta = batch(b"payload")
    struct.pack_into(">i", lying_delta, 23, 99)
    longer = batch(b"payload")
    struct.pack_into(">i", longer, 8, len(longer) * 2)
    shorter = batch(b"payload")
    struct.pack_into(">i", shorter, 8, 10)
    negative_sequence = batch(b"payload", producer_id=77, base_sequence=5)
    struct.pack_into(">i", negative_sequence, 53, -7)
    no_epoch = batch(b"payload", producer_id=77, base_sequence=5)
    struct.pack_into(">h", no_epoch, 51, -1)
    control = batch(b"payload")
    struct.pack_into(">h", control, 21, 0x20)
    codec = batch(b"payload")
    struct.pack_into(">h", codec, 21, 7)
    future = bytearray(good)
    future[16] = 3
    invalid, corrupted = {int(ErrorCode.INVALID_RECORD)}, {int(ErrorCode.CORRUPT_MESSAGE)}
    return {
        "a wrong CRC": (corrupt, corrupted),
        "a header that its CRC does not cover": (header_corrupt, corrupted),
        "magic 0": (batch(b"payload", magic=0), {43, 87, 2}),
        "magic 1": (batch(b"payload", magic=1), {43, 87, 2}),
        "magic 3": (future, {43, 87, 2}),
        "a record count that lies": (resealed(lying_count), invalid),
        "a negative record count": (resealed(negative_count), invalid),
        "an offset delta that lies": (resealed(lying_delta), invalid),
        "a batch longer than its bytes": (longer, corrupted | invalid),
        "a batch shorter than its header": (shorter, corrupted | invalid),
        "a negative sequence": (resealed(negative_sequence), invalid | {45}),
        "a producer without an epoch": (resealed(no_epoch), invalid | {47}),
        "a control batch": (resealed(control), invalid),
        "an unknown compression": (resealed(codec), invalid | {76}),
        "two batches": (good + good, invalid),
        "bytes after the batch": (good + b"xyz", invalid | corrupted),
        "random bytes": (random.Random(3).randbytes(500), {43, 87, 2}),
        "half a header": (good[:30], invalid | corrupted),
    }


@pytest.mark.parametrize("name", _bad_batches())
def test_a_batch_that_is_not_one_is_refused_and_the_connection_goes_on(broker: ClusterProcess, name: str) -> None:
    records, codes = _bad_batches()[name]
    with wire(broker.address) as connection:
        for version in (3, 9):
            answer = produce(connection, TOPIC, records, version)
            assert answer is not None and answer.error_code in codes, answer
            assert answer.base_offset == -1
        before = produce(connection, TOPIC, batch(b"good"))
        assert before.error_code == 0, "nothing of the bad ones was written"


def test_the_bad_batches_left_no_trace_in_the_log(broker: ClusterProcess) -> None:
    with wire(broker.address) as connection:
        first = produce(connection, TOPIC, batch(b"before"))
        for records, _ in _bad_batches().values():
            assert produce(connection, TOPIC, records).error_code != 0
        second = produce(connection, TOPIC, batch(b"after"))
        assert second.base_offset == first.base_offset + 1


def test_an_oversized_batch_is_too_large(broker: ClusterProcess) -> None:
    with wire(broker.address) as connection:
        assert produce(connection, TOPIC, batch(bytes(2 * MEBIBYTE))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert produce(connection, TOPIC, batch(b"small")).error_code == 0


def test_nothing_to_write_is_refused(broker: ClusterProcess) -> None:
    data = messages.ProduceRequest.TopicProduceData
    with wire(broker.address) as connection:
        answer = connection.ask("Produce", 9, transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[
            data(name=TOPIC, partition_data=[data.PartitionProduceData(index=0, records=None)])])
        assert answer is None or answer.responses[0].partition_responses[0].error_code != 0


def test_acks_that_do_not_exist_are_refused(broker: ClusterProcess) -> None:
    data = messages.ProduceRequest.TopicProduceData
    with wire(broker.address) as connection:
        answer = connection.ask("Produce", 9, transactional_id=None, acks=7, timeout_ms=5000, topic_data=[
            data(name=TOPIC, partition_data=[data.PartitionProduceData(index=0, records=bytes(batch(b"x")))])])
        code = answer.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.INVALID_REQUIRED_ACKS


def test_an_error_without_acks_closes_the_connection(broker: ClusterProcess) -> None:
    data = messages.ProduceRequest.TopicProduceData
    with wire(broker.address) as connection:
        request = messages.ProduceRequest(transactional_id=None, acks=0, timeout_ms=5000, topic_data=[
            data(name="no-such-topic", partition_data=[
                data.PartitionProduceData(index=0, records=bytes(batch(b"x")))])])
        connection.send(connection.frame("Produce", 7, bytes(request.encode(version=7))))
        assert connection.ends()


# --- topics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no-such-topic", "a/b", "../../etc/passwd", "..", "", "\x00", "ключ", "x" * 300])
def test_a_topic_that_cannot_be_is_unknown_or_invalid_everywhere(
    broker: ClusterProcess, name: str, hardened: LocalCluster
) -> None:
    unknown = {int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.INVALID_TOPIC_EXCEPTION)}
    with wire(broker.address) as connection:
        assert produce(connection, name, batch(b"x")).error_code in unknown
        fetched = connection.ask("Fetch", 4, **fetch_fields(name))
        assert fetched.responses[0].partitions[0].error_code in unknown
        listed = messages.ListOffsetsRequest.ListOffsetsTopic
        offsets = connection.ask("ListOffsets", 2, replica_id=-1, isolation_level=0, topics=[
            listed(name=name, partitions=[listed.ListOffsetsPartition(
                partition_index=0, current_leader_epoch=-1, timestamp=-1)])])
        assert offsets.topics[0].partitions[0].error_code in unknown
        topic = messages.MetadataRequest.MetadataRequestTopic
        found = connection.ask("Metadata", 4, topics=[topic(name=name)], allow_auto_topic_creation=False)
        assert found.topics[0].error_code in unknown
        if name != "no-such-topic":
            assert create_topic(connection, name, 1) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert not list((hardened.folder.path / "broker-0").glob("**/passwd*"))


def test_unknown_ids_and_partitions(broker: ClusterProcess) -> None:
    import uuid

    data = messages.ProduceRequest.TopicProduceData
    with wire(broker.address) as connection:
        answer = connection.ask("Produce", 13, transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[
            data(topic_id=uuid.UUID(int=5), partition_data=[
                data.PartitionProduceData(index=0, records=bytes(batch(b"x")))])])
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        for partition in (1, -1, 2**31 - 1):
            refused = produce(connection, TOPIC, batch(b"x"), partition=partition)
            assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- trust --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets", "__hapax_events"])
@pytest.mark.parametrize("proof", [None, b"", b"short", struct.pack(">iq16s", 9, 1, b"0123456789abcdef")])
def test_clients_cannot_write_internal_topics(broker: ClusterProcess, topic: str, proof: bytes | None) -> None:
    data = messages.ProduceRequest.TopicProduceData
    with wire(broker.address) as connection:
        wanted = messages.MetadataRequest.MetadataRequestTopic
        found = connection.ask("Metadata", 12, topics=[wanted(name=topic, topic_id=None)],
                               allow_auto_topic_creation=False)
        request = messages.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=5000, topic_data=[
            data(topic_id=found.topics[0].topic_id, partition_data=[
                data.PartitionProduceData(index=0, records=bytes(batch(b"x")))])])
        if proof is not None:
            set_unknown_tag(request, 10000, proof)
        answer = connection.ask("Produce", 13, request)
        if answer is not None:  # a proof that is no proof may also end the connection
            code = answer.responses[0].partition_responses[0].error_code
            assert code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def test_a_fetch_with_a_forged_replica_id_gets_no_data(broker: ClusterProcess) -> None:
    with wire(broker.address) as connection:
        for version in (4, 14):
            fields = fetch_fields(TOPIC, replica_id=0)
            if version >= 13:
                wanted = messages.MetadataRequest.MetadataRequestTopic
                found = connection.ask("Metadata", 12, topics=[wanted(name=TOPIC, topic_id=None)],
                                       allow_auto_topic_creation=False)
                fields["topics"][0].topic_id = found.topics[0].topic_id
            answer = connection.ask("Fetch", version, **fields)
            if answer is None:
                return
            assert not any(p.records for t in answer.responses for p in t.partitions)
            assert answer.error_code or all(p.error_code for t in answer.responses for p in t.partitions)


def test_a_data_folder_of_another_cluster_is_refused(
    hardened: LocalCluster, tmp_path: Path, broker: ClusterProcess
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    shutil.copy(hardened.folder.path / "broker-0" / "meta.properties", folder)
    etcd = hardened.status().process("etcd").port

    def start(**settings: str) -> subprocess.CompletedProcess[str]:
        words = [f"--set={name.replace('_', '.')}={value}" for name, value in settings.items()]
        return subprocess.run(
            [sys.executable, "-m", "hapax.broker.main", f"--set=etcd.endpoints=127.0.0.1:{etcd}",
             f"--set=log.dir={folder}", "--set=listeners=PLAINTEXT://127.0.0.1:0", *words],
            capture_output=True, text=True, timeout=30, check=False)

    for settings in ({"cluster_id": "somebody-elses", "node_id": "0"},
                     {"cluster_id": hardened.status().cluster_id, "node_id": "5"}):
        done = start(**settings)
        assert done.returncode != 0
        lines = [line for line in done.stderr.splitlines() if " ERROR " in line or "refusing" in line]
        assert len(lines) == 1 and "meta.properties" in lines[0], done.stderr


# --- many, slow and greedy connections ----------------------------------------------------------------------------


def test_five_thousand_connections(broker: ClusterProcess, neighbour: Neighbour) -> None:
    if not raise_descriptors(CONNECTIONS + 500):
        pytest.skip(f"the system allows fewer than {CONNECTIONS + 500} open files")
    before = broker.memory()
    sockets: list[socket.socket] = []
    try:
        for number in range(CONNECTIONS):
            connection = socket.create_connection(broker.address, timeout=10)
            sockets.append(connection)
            if number % 500 == 499:
                assert neighbour.works() < 2.0
        request = struct.pack(">ihhih", 10, api_versions.ROW.key, 0, 1, -1)
        for connection in sockets:
            connection.sendall(request)
        for connection in sockets:
            assert connection.recv(8) != b"", "a connection among many is not served"
        assert broker.memory() - before < 100 * MEBIBYTE
    finally:
        for connection in sockets:
            connection.close()


def test_a_client_that_never_reads_its_answers(broker: ClusterProcess, neighbour: Neighbour) -> None:
    with wire(broker.address) as writer:
        for _ in range(20):
            assert produce(writer, TOPIC, batch(os.urandom(900_000))).error_code == 0
    before = broker.memory()
    greedy = [Wire(broker.address, receive_buffer=8192) for _ in range(10)]
    metadata = messages.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    for number, connection in enumerate(greedy):
        if number % 2:
            request = messages.FetchRequest(**fetch_fields(TOPIC) | {"max_bytes": 50 * MEBIBYTE})
            frame = connection.frame("Fetch", 4, bytes(request.encode(version=4)))
        else:
            frame = connection.frame("Metadata", 4, bytes(metadata.encode(version=4)))
        flood = (struct.pack(">i", len(frame)) + frame) * 5000
        connection.socket.settimeout(0.5)
        try:
            connection.socket.sendall(flood)
        except TimeoutError:
            pass  # the broker has stopped reading: that is the point
        else:
            assert len(flood) < 600_000, "the broker took every request of a client that reads nothing"
        assert neighbour.works() < 1.0
    assert broker.memory() - before < 60 * MEBIBYTE
    for connection in greedy:
        connection.close()


def test_requests_that_never_end_do_not_fill_the_memory(broker: ClusterProcess, neighbour: Neighbour) -> None:
    """Forty connections send almost all of a 20 MiB request each: 800 MB, of which the broker keeps what it may."""
    before = broker.memory()
    connections = [Wire(broker.address) for _ in range(40)]
    for connection in connections:
        connection.socket.settimeout(2)
        try:
            connection.socket.sendall(struct.pack(">i", 20 * MEBIBYTE) + bytes(19 * MEBIBYTE))
        except (TimeoutError, ConnectionError):
            continue
    assert neighbour.works() < 1.0
    assert broker.memory() - before < 100 * MEBIBYTE  # queued.max.request.bytes is 32 MiB here
    for connection in connections:
        connection.close()


# --- a short fuzz -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["broker-0", "coordinator-0"])
def test_mutated_frames_of_every_api_and_version(hardened: LocalCluster, name: str) -> None:
    node = ClusterProcess(hardened, name)
    rng = random.Random(f"{name} 1")
    already = hardened.log(name).count("traceback=")
    connection = Wire(node.address)
    for number in range(1500):
        key, api, version, flexible = rng.choice(REQUESTS)
        frame = mutate(request_frame(key, api, version, flexible, rng), rng)
        with contextlib.suppress(ConnectionError):
            connection.send(frame)
        if number % 5 == 0:  # the others go on on the same connection, behind whatever this frame did to it
            connection.close()
            connection = Wire(node.address)
    connection.close()
    with wire(node.address) as last:
        assert last.ask("ApiVersions", 0) is not None
    log = hardened.log(name)
    assert log.count("traceback=") == already, [line for line in log.splitlines() if "traceback=" in line][-3:]
    assert node.is_the_same_process()

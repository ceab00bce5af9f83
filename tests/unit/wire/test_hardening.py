"""The hardened codecs: what is valid decodes as the library decodes it, what is not is an exception at once."""

from __future__ import annotations

import io
import random
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hapax.wire import messages
from hapax.wire.messages import set_unknown_tag, unknown_tag
from unit.kafka.samples import REQUESTS, message


def _by_the_library(schema: Any, data: bytes, version: int) -> Any:
    """The library's other decoder, field by field over a stream; it is not replaced."""
    flexible = schema.flexible_version_q(version)
    stream = io.BytesIO(data)
    decoded = schema._struct.decode(stream, version=version, compact=flexible, tagged=flexible, data_class=schema)
    assert not stream.read(1)
    return decoded


@pytest.mark.parametrize("side", ["Request", "Response"])
def test_every_version_decodes_to_what_the_library_decodes(side: str) -> None:
    rng = random.Random(7)
    for _, name, version, _ in REQUESTS:
        schema = getattr(messages, name + side)
        for _ in range(2):
            data = bytes(message(name + side, version, rng).encode(version=version))
            if name + side == "ApiVersionsResponse":
                data = b"\0\0" + data[2:]  # with an error the body is always of version 0
            decoded = schema.decode(data, version=version)
            assert decoded == _by_the_library(schema, data, version), (name, side, version)
            decoded._header = None  # a decoded message has none, not even None
            assert bytes(decoded.encode(version=version)) == data, (name, side, version)


def test_unknown_tagged_fields_are_read_and_written() -> None:
    response = messages.DescribeClusterResponse(
        throttle_time_ms=0, error_code=0, error_message=None, endpoint_type=1, cluster_id="c", controller_id=1,
        brokers=[messages.DescribeClusterResponse.DescribeClusterBroker(
            broker_id=1, host="h", port=9, rack=None, is_fenced=False)],
        authorized_operations=None,
    )
    set_unknown_tag(response, 10001, b"second")
    set_unknown_tag(response, 10000, b"x" * 300)
    set_unknown_tag(response.brokers[0], 10000, b"")
    for version in range(3):
        decoded = messages.DescribeClusterResponse.decode(bytes(response.encode(version=version)), version=version)
        assert unknown_tag(decoded, 10000) == b"x" * 300
        assert unknown_tag(decoded, 10001) == b"second"
        assert unknown_tag(decoded.brokers[0], 10000) == b""
        assert unknown_tag(decoded, 10002) is None


def test_unknown_tags_stand_beside_known_ones() -> None:
    request = message("FetchRequest", 16, random.Random(1), tags=False)
    request.cluster_id = "cluster"
    request.replica_state = messages.FetchRequest.ReplicaState(replica_id=3, replica_epoch=9)
    set_unknown_tag(request, 10000, b"ours")
    decoded = messages.FetchRequest.decode(bytes(request.encode(version=16)), version=16)
    assert decoded.cluster_id == "cluster"
    assert (decoded.replica_state.replica_id, decoded.replica_state.replica_epoch) == (3, 9)
    assert unknown_tag(decoded, 10000) == b"ours"


METADATA_12_NO_TOPICS = b"\x00\x00\x00\x00"
HOSTILE = {
    "a varint without end": ("Metadata", 12, b"\xff" * 1_000_000),
    "a string past the end": ("FindCoordinator", 1, b"\x00\x10abc\x00"),
    "a compact string past the end": ("FindCoordinator", 3, b"\x20abc"),
    "a count past the end": ("Metadata", 4, b"\x7f\xff\xff\xff"),
    "a compact count past the end": ("Metadata", 12, b"\xff\xff\xff\xff\x07"),
    "a null where none may be": ("FindCoordinator", 1, b"\xff\xff\x00"),
    "a null array where none may be": ("ListOffsets", 2, b"\xff\xff\xff\xff\x00\xff\xff\xff\xff"),
    "a null element": ("DeleteTopics", 1, b"\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00"),
    "tagged fields past the end": ("Metadata", 12, METADATA_12_NO_TOPICS[:3] + b"\x01\x05\x7fab"),
    "a million tagged fields": ("Metadata", 12, METADATA_12_NO_TOPICS[:3] + b"\xc0\x84\x3d" + b"\x05\x00" * 400_000),
    "nothing": ("Metadata", 12, b""),
    "not UTF-8": ("FindCoordinator", 1, b"\x00\x02\xff\xfe\x00"),
}


REASON = {"a count past the end": "a count past", "a compact count past the end": "a count past"}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_bytes_are_refused_at_once(case: str) -> None:
    name, version, data = HOSTILE[case]
    schema = getattr(messages, name + "Request")
    began = time.process_time()
    with pytest.raises((ValueError, IndexError, struct.error, AssertionError), match=REASON.get(case)):
        schema.decode(data, version=version)
    assert time.process_time() - began < 0.5


def test_many_elements_with_tags_take_linear_time() -> None:
    element = b"\x00" * 16 + b"\x02a" + b"\x01\x05\x01x"
    count = 40_000
    data = b"\xc1\xb8\x02" + element * count + b"\x00\x00\x00"
    assert count == (0x41 | 0x38 << 7 | 2 << 14) - 1
    began = time.process_time()
    decoded = messages.MetadataRequest.decode(data, version=12)
    assert time.process_time() - began < 2
    assert len(decoded.topics) == count


def test_the_client_library_is_not_imported_with_the_messages() -> None:
    check = (
        "import sys; from hapax.wire.messages import ProduceRequest; "
        "assert 'kafka.consumer' not in sys.modules and 'kafka.net' not in sys.modules; "
        "from kafka import KafkaProducer; from kafka.protocol.producer import ProduceRequest as same; "
        "assert same is ProduceRequest"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_a_piece_of_another_shape_fails_at_import() -> None:
    """In a process of its own: here the pieces are replaced already."""
    subprocess.run([sys.executable, "-m", "unit.wire.broken_shapes"], check=True, cwd=Path(__file__).parents[2])

"""A look at records that are binary, compressed, damaged, or made to harm whoever looks."""

from __future__ import annotations

import base64
import socket
from pathlib import Path

import cramjam

from bench.raw_client import produce_frame
from hapax.client.blocking import Producer
from hapax.codec.batch import assemble_batch
from hapax.codec.compression import Compression
from hapax.codec.records import encode_records
from hapax.local.cluster import LocalCluster
from integration.admin_process import AdminProcess
from integration.waiting import wait_until


def send_raw(bootstrap: str, topic: str, batch: bytes) -> None:
    """To partition 0; returns once it is stored."""
    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(produce_frame(topic, 0, batch))
        answer = connection.recv(4096)
    name = len(topic.encode())
    assert int.from_bytes(answer[4 + 4 + 4 + 2 + name + 4 + 4 :][:2], "big", signed=True) == 0, answer


def garbage(codec: int, payload: bytes) -> bytes:
    """A batch whose CRC is right and whose records are not."""
    return bytes(assemble_batch(
        payload, record_count=3, attributes=codec, base_timestamp=1, max_timestamp=1, producer_id=-1,
        producer_epoch=-1))


def test_bytes_of_every_kind(rest: AdminProcess, cluster_bootstrap: str, topic: str) -> None:
    with Producer({"bootstrap.servers": cluster_bootstrap}) as producer:
        producer.send(topic, b"plain", b"key", partition=0, headers=[("h", b"\xff"), ("n", None)])
        producer.send(topic, bytes(range(256)), None, partition=0)
        producer.send(topic, "täglich\n".encode(), b"", partition=0)
        producer.send(topic, None, b"tombstone", partition=0)
        producer.send(topic, b"x" * 10_000, partition=0)
        producer.flush()
    found = rest.get(f"/v1/topics/{topic}/partitions/0/messages?field_bytes=100")
    first, binary, text, tombstone, long = found["records"]
    assert first["value"] == {"size": 5, "truncated": False, "base64": "cGxhaW4=", "text": "plain"}
    assert first["headers"][0]["value"]["base64"] == "/w==" and first["headers"][1]["value"] is None
    assert binary["key"] is None and binary["value"]["text"] is None
    assert base64.b64decode(binary["value"]["base64"]) == bytes(range(100))
    assert text["value"]["text"] == "täglich\n"
    assert tombstone["value"] is None
    assert (long["value"]["size"], long["value"]["truncated"], len(long["value"]["text"])) == (10_000, True, 100)
    assert found["next_offset"] == 5 and found["at_end"]
    limited = rest.get(f"/v1/topics/{topic}/partitions/0/messages?offset=1&limit=2")
    assert ([each["offset"] for each in limited["records"]], limited["next_offset"]) == ([1, 2], 3)
    assert [each["offset"] for each in rest.get(f"/v1/topics/{topic}/partitions/0/messages?last=1")["records"]] == [4]
    assert rest.call("GET", f"/v1/topics/{topic}/partitions/0/messages?offset=99").json["code"] == "OFFSET_OUT_OF_RANGE"
    assert rest.call("GET", f"/v1/topics/{topic}/partitions/2/messages").status == 404


def test_a_bad_batch_hides_no_good_one(rest: AdminProcess, cluster_bootstrap: str, topic: str) -> None:
    good = [(1, b"k", b"good %d" % number, ()) for number in range(3)]
    bomb = bytes(cramjam.zstd.compress(bytes(64 << 20)))
    assert len(bomb) < 64 << 10
    for codec in Compression:
        send_raw(cluster_bootstrap, topic, bytes(encode_records(good, compression=codec)))
    for codec in Compression:
        send_raw(cluster_bootstrap, topic, garbage(codec, b"\x00\xff nothing that anybody compressed" * 3))
    send_raw(cluster_bootstrap, topic, garbage(Compression.ZSTD, bomb))
    send_raw(cluster_bootstrap, topic, bytes(encode_records(good)))
    found = rest.get(f"/v1/topics/{topic}/partitions/0/messages?isolation=read_uncommitted")
    assert [each["compression"] for each in found["batches"][:5]] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert len(found["records"]) == 18
    assert {each["value"]["text"] for each in found["records"]} == {"good 0", "good 1", "good 2"}
    wrong = [each["error"] for each in found["batches"]]
    assert wrong[:5] == [None] * 5 and wrong[-1] is None
    assert all(each and each.startswith("CORRUPT_MESSAGE") for each in wrong[5:10]), wrong
    assert wrong[10].startswith("MESSAGE_TOO_LARGE")


def test_a_batch_that_the_disk_has_damaged(rest: AdminProcess, cluster: LocalCluster, topic: str) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for number in range(3):
            producer.send(topic, b"batch number %d" % number, partition=0)
            producer.flush()
    (log,) = Path(cluster.folder.data("broker-0")).rglob(f"{topic}*-0*/*.log")
    data = log.read_bytes()
    at = data.index(b"batch number 1")
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"B")
    found = rest.get(f"/v1/topics/{topic}/partitions/0/messages")
    assert [each["error"] is None for each in found["batches"]][:1] == [True]
    assert "CORRUPT_MESSAGE" in str(found["batches"][1]["error"])
    assert "batch number 1" not in str(found) and "atch number 1" not in str(found["records"])


def test_what_each_reader_sees(rest: AdminProcess, cluster_bootstrap: str, topic: str) -> None:
    with Producer({"bootstrap.servers": cluster_bootstrap, "transactional.id": topic}) as producer:
        for commit, value in ((True, b"kept"), (False, b"dropped")):
            producer.begin()
            producer.send(topic, value, partition=0)
            producer.flush()
            if commit:
                producer.commit()
            else:
                producer.abort()
    path = f"/v1/topics/{topic}/partitions/0/messages?isolation="
    # An end of a transaction is told once it is decided; its marker follows.
    wait_until(lambda: rest.get(path + "read_committed")["last_stable"] == 4, "second marker")
    everything, committed = rest.get(path + "read_uncommitted"), rest.get(path + "read_committed")
    assert [each["value"]["text"] for each in everything["records"]] == ["kept", "dropped"]
    assert [each["value"]["text"] for each in committed["records"]] == ["kept"]
    assert [each["hidden"] for each in committed["batches"]] == [None, None, "aborted", None]
    assert [each["kind"] for each in committed["batches"]] == ["transactional", "control"] * 2
    assert "commit" in committed["batches"][1]["control"].lower()

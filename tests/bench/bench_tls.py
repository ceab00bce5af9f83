"""The broker's CPU for Produce and Fetch over TLS, beside the same over plaintext to the same broker, in turns; what
OpenSSL alone takes; and handshakes.

Over TLS nothing leaves by `sendfile`: the broker reads the file, and OpenSSL encrypts and copies it.
"""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from pathlib import Path

from bench.bench_fetch import BATCH_BYTES, FETCH_BYTES, fill
from bench.bench_produce import IN_FLIGHT, PARTITIONS, ROUND_S, TOPIC, WARM_UP_S
from bench.figures import record
from bench.raw_client import Connection, Drain, Flood, cpu_seconds, flood, make_topic
from clients.secured import Secured, secured
from hapax.local.cluster import LocalCluster

ROUNDS = 8
LOG_BYTES = 64 << 20
PASSES = 12
HANDSHAKES = 400


def context_of(made: Secured) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(made.folder / "ca.crt"))
    context.load_cert_chain(made.folder / "client.crt", made.folder / "client.key")
    return context


def produce(pid: int, plain: str, made: Secured) -> tuple[float, float]:
    """CPU in µs per request of 16 KiB: (plaintext, TLS)."""
    make_topic(plain, TOPIC, PARTITIONS)
    kinds = {
        kind: [Flood(address, TOPIC, p, BATCH_BYTES, IN_FLIGHT, tls=tls) for p in range(PARTITIONS)]
        for kind, address, tls in (("plain", plain, None), ("tls", made.bootstrap, context_of(made)))}
    used, requests = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0)
    for floods in kinds.values():
        flood(floods, WARM_UP_S)
    for _ in range(ROUNDS):
        for kind, floods in kinds.items():
            before = cpu_seconds(pid)
            requests[kind] += flood(floods, ROUND_S)
            used[kind] += cpu_seconds(pid) - before
    plain_us, tls_us = (used[kind] / requests[kind] * 1e6 for kind in kinds)
    return plain_us, tls_us


def fetch(pid: int, plain: str, made: Secured) -> tuple[float, float]:
    """CPU seconds per GB: (plaintext, TLS)."""
    fill(plain, "drain", LOG_BYTES)
    readers = {
        "plain": Drain(plain, "drain", 0, FETCH_BYTES),
        "tls": Drain(made.bootstrap, "drain", 0, FETCH_BYTES, tls=context_of(made))}
    used = dict.fromkeys(readers, 0.0)
    for reader in readers.values():
        reader.run()
        reader.bytes = 0
    for _ in range(PASSES):
        for kind, reader in readers.items():
            before = cpu_seconds(pid)
            reader.run()
            used[kind] += cpu_seconds(pid) - before
    plain_s, tls_s = (used[kind] / readers[kind].bytes * 1e9 for kind in readers)
    return plain_s, tls_s


def openssl_alone(made: Secured, megabytes: int = 256) -> float:
    """CPU seconds per GB that OpenSSL takes to encrypt from memory to memory, without any socket."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.folder / "node.crt", made.folder / "node.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context_of(made).wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, ours]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    data = memoryview(os.urandom(16 << 10))
    before = time.process_time()
    for _ in range(megabytes * 64):
        ours.write(data)
        to_client.read()
    return (time.process_time() - before) / (megabytes << 20) * 1e9


def handshake(pid: int, made: Secured) -> float:
    """The broker's CPU in ms for one connection with certificates on both sides."""
    context = context_of(made)
    before = cpu_seconds(pid)
    for _ in range(HANDSHAKES):
        Connection(made.bootstrap, context).socket.close()
    return (cpu_seconds(pid) - before) / HANDSHAKES * 1e3


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        made = secured(Path(folder))
        cluster = LocalCluster(Path(folder) / "cluster")
        state = cluster.up(owned=True, settings=made.settings("durability=page-cache"))
        try:
            pid = state.process("broker-0").pid
            plain_us, tls_us = produce(pid, state.bootstrap, made)
            plain_s, tls_s = fetch(pid, state.bootstrap, made)
            alone = openssl_alone(made)
            each = handshake(pid, made)
        finally:
            cluster.down()
    record("tls_produce_cpu", tls_us, "µs/request of 16 KiB")
    record("tls_produce_over_plaintext", tls_us / plain_us, "times")
    record("tls_fetch_cpu", tls_s, "CPU-s/GB")
    record("tls_fetch_over_plaintext", tls_s / plain_s, "times")
    record("tls_openssl_alone", alone, "CPU-s/GB")
    record("tls_fetch_over_openssl", tls_s / alone, "times")
    record("tls_handshake_cpu", each, "ms")


if __name__ == "__main__":
    main()

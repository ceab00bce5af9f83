"""A secure local cluster as its processes see it: certificates, service ports and etcd, to be used rightly or not."""

from __future__ import annotations

import asyncio
import socket
import ssl
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from hapax.client.properties import read_properties
from hapax.codec.internal_records import encode_batch
from hapax.codec.metadata import Keys, NodeRecord
from hapax.core.types import NO_SHARD_EPOCH, PartitionIndex, RegistrationEpoch, TopicId
from hapax.local.cluster import LocalCluster
from hapax.local.folder import ProcessState
from hapax.local.secure import CLIENTS, ETCD_ROOT, SERVICES, SecureFolder
from hapax.runtime.etcd import EtcdStore
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import KeyValue
from hapax.runtime.process_tls import ProcessTls
from hapax.runtime.rpc import RpcIdentity
from hapax.runtime.settings import load
from hapax.runtime.tls import TlsCertificates, TlsOptions
from hapax.wire.internal_writes import PRODUCE_VERSION, InternalBatch, encode_produce, proof
from hapax.wire.messages import ProduceRequest
from hapax.wire.peer import Peer
from integration.scraping import Samples, parsed

T = TypeVar("T")


class Secure:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.state = cluster.status()
        self.cluster_id = cluster.folder.cluster_id()
        self.files = SecureFolder(cluster.folder)
        self.keys = Keys(self.cluster_id)

    @property
    def client(self) -> dict[str, str]:
        """Settings of a client that may do everything."""
        return read_properties(self.files.profile)

    def process(self, name: str) -> ProcessState:
        return self.state.process(name)

    # --- service ports ---

    def network(self, name: str) -> TcpNetwork:
        """Of who has the certificate of this process."""
        process = self.process(name)
        settings = self.files.settings(process) | {"cluster.id": self.cluster_id, "node.id": str(process.node_id)}
        tls = ProcessTls(process.role, load([f"{key}={value}" for key, value in settings.items()], environment={}))
        return TcpNetwork(RpcIdentity(self.cluster_id, f"{process.role}/{process.node_id}"), tls)

    def call(self, caller: str, called: str, method: str, request: bytes = b"") -> bytes:
        """Raises RpcError."""
        process = self.process(called)

        async def make() -> bytes:
            channel = self.network(caller).rpc_channel(
                f"{process.role}/{process.node_id}@127.0.0.1:{process.rpc_port}")
            try:
                return await channel.call(method, request, 10.0)
            finally:
                await channel.close()

        return asyncio.run(make())

    # --- etcd ---

    def store(self, who: str, work: Callable[[EtcdStore], Awaitable[T]], timeout_s: float = 3.0) -> T:
        """With the certificate of this process, or of `root`."""
        return self.store_with(
            TlsOptions(
                chain_location=str(self.files.file(f"{who}.crt")), key_location=str(self.files.file(f"{who}.key")),
                authorities_location=str(self.files.file(SERVICES + ".crt"))), work, timeout_s)

    def store_with(
        self, options: TlsOptions, work: Callable[[EtcdStore], Awaitable[T]], timeout_s: float = 3.0
    ) -> T:
        async def run() -> T:
            store = EtcdStore(
                [f"127.0.0.1:{self.process('etcd').port}"], timeout_s, TlsCertificates(options, "client", "test"))
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def record(self, key: str) -> KeyValue:
        found = self.store(ETCD_ROOT, lambda store: store.get(key))
        assert found is not None
        return found

    # --- Kafka's listeners ---

    def internal_write(self, topic_id: bytes, tls: Callable[[], Any], port: int) -> tuple[int, str]:
        """Produces to an internal topic with the proof of the live coordinator. Returns error and message."""
        node = self.record(self.keys.node(self.process("coordinator-0").node_id))  # type: ignore[arg-type]
        shown = proof(
            RegistrationEpoch(node.create_revision), NodeRecord.decode(node.value).session, NO_SHARD_EPOCH)
        batch = InternalBatch(TopicId(topic_id), PartitionIndex(0), encode_batch([(b"k", b"v")], 1))

        async def make() -> tuple[int, str]:
            peer = await Peer.connect(TcpNetwork(), "127.0.0.1", port, tls=tls())
            try:
                answer: Any = await peer.submit_raw(
                    ProduceRequest, PRODUCE_VERSION, encode_produce([batch], 5_000, shown))
                told = answer.responses[0].partition_responses[0]
                return int(told.error_code), told.error_message or ""
            finally:
                peer.close()

        return asyncio.run(make())

    # --- HTTP ---

    def trust(self, authority: str = SERVICES) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.files.file(authority + ".crt")))

    def get(self, name: str, path: str) -> str:
        url = f"https://127.0.0.1:{self.process(name).http_port}{path}"
        with urllib.request.urlopen(url, timeout=10, context=self.trust()) as answer:
            return str(answer.read().decode())

    def metrics(self, name: str) -> Samples:
        return parsed(self.get(name, "/metrics"))


def certificate_of(port: int, trust: ssl.SSLContext, own: tuple[Path, Path] | None = None) -> bytes:
    """What a port shows; DER."""
    if own is not None:
        trust.load_cert_chain(*own)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        trust.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


__all__ = ["CLIENTS", "ETCD_ROOT", "SERVICES", "Secure", "certificate_of"]

"""Public gRPC listeners of processes that have no name of their own: an address says which name the certificate has."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax.local.authority import Authority
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import RpcError, RpcPeer
from hapax.runtime.process_tls import ProcessTls
from hapax.runtime.rpc import RpcIdentity
from hapax.runtime.settings import load
from hapax.runtime.tls import TlsCertificates, TlsOptions

METHOD = "/hapax.v1.ProducerLeases/ListLeases"


async def test_the_certificate_must_be_for_the_name_in_the_address(tmp_path: Path) -> None:
    authority = Authority.make()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    authority.issue("CN=pids", ["pids.shop.svc"], use="server").write(tmp_path, "public")
    settings = load([
        "public.rpc.security.protocol=SSL", f"ssl.certificate.location={tmp_path}/public.crt",
        f"ssl.key.location={tmp_path}/public.key", f"ssl.truststore.location={tmp_path}/ca.crt"], environment={})

    async def handle(payload: bytes, peer: RpcPeer) -> bytes:
        return payload

    server = await TcpNetwork(RpcIdentity("c1", "pid"), ProcessTls("pid", settings)).serve_rpc(
        "127.0.0.1", 0, {METHOD: handle}, streams=False)
    client = TcpNetwork(RpcIdentity("c1", "client"))
    trust = TlsCertificates(TlsOptions(authorities_location=str(tmp_path / "ca.crt")), "client")
    try:
        named = client.public_channel(f"tls://pids.shop.svc@{server.address}", "c1", trust)
        assert await named.call(METHOD, b"m", 10.0) == b"m"
        for address in (f"tls://others.shop.svc@{server.address}", f"tls://{server.address}"):
            with pytest.raises(RpcError) as caught:
                await client.public_channel(address, "c1", trust).call(METHOD, b"m", 10.0)
            assert caught.value.status == "UNAVAILABLE", address
    finally:
        for channel in list(client._channels.values()):
            await channel.close()
        await server.close()


def test_such_an_address_is_told_as_it_was_set() -> None:
    settings = load(["public.rpc.advertised=pids.shop.svc@10.1.2.3:9096"], environment={})
    (bound,) = load(["public.rpc.listen=127.0.0.1:1"], environment={}).etcd_addresses
    assert str(settings.advertised_public_rpc(bound)) == "pids.shop.svc@10.1.2.3:9096"

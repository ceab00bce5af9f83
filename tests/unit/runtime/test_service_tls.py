"""Calls between processes under TLS: both sides are who they must be, and each method is for some roles only."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from hapax.local.authority import Authority, Issued
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import FrameConnection, FrameLimits, RpcError, RpcPeer, RpcServer
from hapax.runtime.process_tls import ProcessTls
from hapax.runtime.rpc import RpcIdentity
from hapax.runtime.rpc_frames import greeting
from hapax.runtime.settings import SettingsError, load
from unit.control_world import Recorded

MARKERS = "/hapax.internal.v1.PartitionBroker/WriteMarkers"
FENCE = "/hapax.internal.v1.PartitionBroker/FenceProducer"
SNAPSHOT = "/hapax.internal.v1.PartitionBroker/FetchSnapshot"
AUTHORITY = Authority.make()
FOREIGN = Authority.make()

_CALL = struct.pack(">QH", 1, len(MARKERS)) + MARKERS.encode() + b"m"
_GREETING = greeting(RpcIdentity("c1", "coordinator/100"))
WHOLE_CALL = b"".join(struct.pack(">I", len(each)) + each for each in (_GREETING, _CALL))


class World:
    """Broker 0's service port, and processes that call it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.peers: list[RpcPeer] = []
        self.networks: list[TcpNetwork] = []
        self.servers: list[RpcServer] = []
        self.audit = Recorded()
        (folder / "ca.crt").write_bytes(AUTHORITY.certificate)
        (folder / "foreign.crt").write_bytes(FOREIGN.certificate)

    def tls(
        self, role: str, node_id: int, *names: str, authority: Authority = AUTHORITY, trust: str = "ca.crt",
        issued: Issued | None = None, **more: object,
    ) -> ProcessTls:
        """Of a process whose certificate has these alternative names, by default the right one."""
        name = f"{role}-{node_id}"
        issued = issued or authority.issue(f"CN={name}", names or [f"spiffe://c1/{role}/{node_id}"])
        issued.write(self.folder, name)
        settings = {
            "security.inter.broker.protocol": "SSL", "cluster.id": "c1", "node.id": node_id,
            "service.ssl.certificate.location": self.folder / f"{name}.crt",
            "service.ssl.key.location": self.folder / f"{name}.key",
            "service.ssl.truststore.location": self.folder / trust, **more}
        return ProcessTls(role, load([f"{key}={value}" for key, value in settings.items()], environment={}))

    def network(self, tls: ProcessTls | None, caller: str) -> TcpNetwork:
        self.networks.append(TcpNetwork(RpcIdentity("c1", caller), tls, self.audit))
        return self.networks[-1]

    async def serve(self, tls: ProcessTls | None) -> str:
        """The address of broker 0."""

        async def handle(payload: bytes, peer: RpcPeer) -> bytes:
            self.peers.append(peer)
            return payload

        server = await self.network(tls, "broker/0").serve_rpc(
            "127.0.0.1", 0, dict.fromkeys((MARKERS, FENCE, SNAPSHOT), handle))
        self.servers.append(server)
        return server.address

    async def close(self) -> None:
        for network in self.networks:
            for channel in list(network._channels.values()):
                await channel.close()
        for server in self.servers:
            await server.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.close()


async def failure(network: TcpNetwork, address: str, method: str = MARKERS) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await network.rpc_channel(address).call(method, b"x", 5.0)
    return caught.value


async def test_both_sides_know_each_other(world: World) -> None:
    address = await world.serve(world.tls("broker", 0))
    coordinator = world.network(world.tls("coordinator", 100), "coordinator/100")
    assert await coordinator.rpc_channel(f"broker/0@{address}").call(MARKERS, b"m", 5.0) == b"m"
    (peer,) = world.peers
    assert (peer.role, peer.node_id, peer.authenticated) == ("coordinator", 100, True)
    assert peer.principal == "Service:coordinator/100"


@pytest.mark.parametrize(("role", "node_id", "allowed"), [
    ("coordinator", 100, {MARKERS}), ("pid", 200, {FENCE}), ("broker", 1, {SNAPSHOT}), ("controller", 300, set()),
    ("admin", 0, set()),
])
async def test_each_method_is_for_some_roles(world: World, role: str, node_id: int, allowed: set[str]) -> None:
    address = await world.serve(world.tls("broker", 0))
    network = world.network(world.tls(role, node_id), f"{role}/{node_id}")
    for method in (MARKERS, FENCE, SNAPSHOT):
        if method in allowed:
            assert await network.rpc_channel(f"broker/0@{address}").call(method, b"m", 5.0) == b"m"
        else:
            refusal = await failure(network, f"broker/0@{address}", method)
            assert refusal.status == "PERMISSION_DENIED" and role in refusal.detail
    assert len(world.peers) == len(allowed)


async def test_a_process_that_takes_any_id_needs_none_in_its_certificate(world: World) -> None:
    address = await world.serve(world.tls("broker", 0))
    pid = world.network(
        world.tls("pid", 200, "spiffe://c1/pid", **{"node.id.generation.enable": "true"}), "pid")
    assert await pid.rpc_channel(f"broker/0@{address}").call(FENCE, b"m", 5.0) == b"m"
    assert (world.peers[0].role, world.peers[0].node_id) == ("pid", -1)


async def test_another_process_than_the_dialled_one_is_not_called(world: World) -> None:
    address = await world.serve(world.tls("broker", 0))
    network = world.network(world.tls("coordinator", 100), "coordinator/100")
    for wanted in ("broker/1", "coordinator/0", "pid/0"):
        refusal = await failure(network, f"{wanted}@{address}")
        assert refusal.status == "UNAVAILABLE"
        assert f"names spiffe://c1/broker/0, and spiffe://c1/{wanted} is called" in refusal.detail
    assert "is called" in (await failure(network, address)).detail, "an address alone names no process"
    assert not world.peers


async def test_a_caller_is_who_its_certificate_says(world: World) -> None:
    """Not who its greeting says."""
    address = await world.serve(world.tls("broker", 0))
    for said in ("coordinator/101", "broker/1"):
        network = world.network(world.tls("coordinator", 100), said)
        refusal = await failure(network, f"broker/0@{address}")
        assert refusal.status == "UNAUTHENTICATED" and "spiffe://c1/coordinator/100" in refusal.detail
    assert not world.peers


@pytest.mark.parametrize("names", [
    (), ("127.0.0.1",), ("spiffe://c2/coordinator/100",), ("spiffe://c1/client/100",), ("https://c1/coordinator/100",),
    ("spiffe://c1/coordinator/100", "spiffe://c1/pid/200"),
])
async def test_a_sound_certificate_that_names_no_process_of_the_cluster_is_refused(
    world: World, names: tuple[str, ...]
) -> None:
    address = await world.serve(world.tls("broker", 0))
    issued = AUTHORITY.issue("CN=coordinator,OU=coordinator", names)
    await refused_client(world, address, issued)
    assert not world.peers


@pytest.mark.parametrize("kind", ["expired", "foreign", "server only", "none"])
async def test_an_unsound_certificate_is_refused(world: World, kind: str) -> None:
    address = await world.serve(world.tls("broker", 0))
    name = ["spiffe://c1/coordinator/100"]
    issued = {
        "expired": AUTHORITY.issue("CN=c", name, valid=timedelta(seconds=-1)),
        "foreign": FOREIGN.issue("CN=c", name),
        "server only": AUTHORITY.issue("CN=c", name, use="server"),
        "none": None,
    }[kind]
    await refused_client(world, address, issued)
    assert not world.peers


async def test_a_whole_call_of_one_who_is_let_in_is_answered(world: World) -> None:
    """What is refused above and below is refused for its certificate, then."""
    address = await world.serve(world.tls("broker", 0))
    issued = AUTHORITY.issue("CN=coordinator", ["spiffe://c1/coordinator/100"])
    with pytest.raises(pytest.fail.Exception):
        await refused_client(world, address, issued)
    assert len(world.peers) == 1


async def refused_client(world: World, address: str, issued: Issued | None) -> None:
    """A client that checks nothing and sends a whole call is sent nothing but the end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if issued is not None:
        context.load_cert_chain(*issued.write(world.folder, "client"))
    host, _, port = address.rpartition(":")
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        try:
            writer.write(WHOLE_CALL)
            await writer.drain()
            async with asyncio.timeout(5):
                await reader.readexactly(1)
        finally:
            writer.close()


async def test_plaintext_to_a_port_with_tls_and_the_reverse_say_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    secure = await world.serve(world.tls("broker", 0))
    plain = await world.serve(None)
    refusal = await failure(world.network(None, "coordinator/100"), f"frames://broker/0@{secure}")
    assert refusal.status == "UNAVAILABLE" and "TLS" in refusal.detail
    assert "the peer speaks no TLS" in [record.fields.get("reason") for record in caplog.records]  # type: ignore[attr-defined]
    network = world.network(world.tls("coordinator", 100), "coordinator/100")
    refusal = await failure(network, f"broker/0@{plain}")
    assert refusal.status == "UNAVAILABLE" and "TLS" in refusal.detail


async def test_half_a_handshake_is_ended_and_keeps_no_one_out(world: World) -> None:
    tls = world.tls("broker", 0, **{"ssl.handshake.timeout.ms": 200, "ssl.max.handshakes.per.ip": 5})
    address = await world.serve(tls)
    host, _, port = address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    network = world.network(world.tls("coordinator", 100), "coordinator/100")
    assert await network.rpc_channel(f"broker/0@{address}").call(MARKERS, b"m", 5.0) == b"m"
    for each in silent:
        each.setblocking(False)
        async with asyncio.timeout(5):
            with _either_end():
                assert await asyncio.get_running_loop().sock_recv(each, 1) == b""
        each.close()
    assert tls.services is not None
    assert sum(tls.services.certificates.outcomes[each] for each in ("timed out", "given up")) == 20


class _either_end:
    """The connection is reset or closed."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, ConnectionError)


async def test_new_certificates_are_taken_over_and_open_connections_stay(world: World) -> None:
    broker, coordinator = world.tls("broker", 0), world.tls("coordinator", 100)
    address = await world.serve(broker)
    network = world.network(coordinator, "coordinator/100")
    channel = network.rpc_channel(f"broker/0@{address}")
    assert await channel.call(MARKERS, b"1", 5.0) == b"1"
    assert broker.services is not None and coordinator.services is not None
    before = broker.services.certificates.der
    AUTHORITY.issue("CN=broker-0", ["spiffe://c1/broker/0"]).write(world.folder, "broker-0")
    await broker.services.reload_aside()
    assert broker.services.certificates.der != before
    connections = {id(channel._connection)}  # type: ignore[attr-defined]
    assert await channel.call(MARKERS, b"2", 5.0) == b"2"
    assert connections == {id(channel._connection)}, "the open connection went on"  # type: ignore[attr-defined]
    other = world.network(coordinator, "coordinator/100")
    assert await other.rpc_channel(f"broker/0@{address}").call(MARKERS, b"3", 5.0) == b"3"


async def test_files_that_do_not_fit_leave_the_former_in_use(world: World) -> None:
    broker = world.tls("broker", 0)
    address = await world.serve(broker)
    assert broker.services is not None
    other = AUTHORITY.issue("CN=broker-0", ["spiffe://c1/broker/0"])
    (world.folder / "broker-0.key").write_bytes(other.key)  # as amid a rotation
    await broker.services.reload_aside()
    assert "does not belong" in (broker.services.certificates.refusal or "")
    renamed = AUTHORITY.issue("CN=broker-0", ["spiffe://c1/broker/1"])
    renamed.write(world.folder, "broker-0")
    await broker.services.reload_aside()
    assert "spiffe://c1/broker/0" in (broker.services.certificates.refusal or "")
    network = world.network(world.tls("coordinator", 100), "coordinator/100")
    assert await network.rpc_channel(f"broker/0@{address}").call(MARKERS, b"m", 5.0) == b"m"


async def test_a_call_of_the_wrong_role_is_in_the_audit_log(world: World) -> None:
    """Abuse case 29: a node's certificate that tries another role's work is what an audit is for."""
    address = await world.serve(world.tls("broker", 0))
    await failure(world.network(world.tls("coordinator", 100), "coordinator/100"), f"broker/0@{address}", FENCE)
    ((event, principal, host, told),) = world.audit.events
    assert (event, principal, host) == ("refused", "Service:coordinator/100", "127.0.0.1")
    assert told == {
        "call": "FenceProducer", "operation": "Call", "resource_type": "Method", "resource": FENCE, "rule": None,
        "reason": "the method is not for this role"}


async def test_who_says_another_name_than_its_certificate_s_is_in_the_audit_log(world: World) -> None:
    address = await world.serve(world.tls("broker", 0))
    await failure(world.network(world.tls("coordinator", 100), "broker/1"), f"broker/0@{address}", SNAPSHOT)
    ((event, principal, _, told),) = world.audit.events
    assert (event, principal, told["listener"]) == ("login_failed", None, "services")
    assert "the caller says that it is broker/1" in str(told["reason"])


async def test_a_failed_handshake_is_in_the_audit_log(world: World) -> None:
    address = await world.serve(world.tls("broker", 0))
    foreign = world.tls("coordinator", 100, authority=FOREIGN)
    await failure(world.network(foreign, "coordinator/100"), f"broker/0@{address}")
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(10):
        await reader.read()
    writer.close()
    assert {each[:3] for each in world.audit.events} == {("login_failed", None, "127.0.0.1")}
    reasons = [str(each[3]["reason"]) for each in world.audit.events]
    assert "certificate verify failed" in reasons[0] and reasons[-1] == "the peer speaks no TLS"
    assert {each[3]["mechanism"] for each in world.audit.events} == {"TLS"}


async def test_a_new_certificate_that_names_two_processes_is_not_taken_over(world: World) -> None:
    """Its former names are all there, so it passes for the same. The other processes would refuse it."""
    broker = world.tls("broker", 0)
    address = await world.serve(broker)
    assert broker.services is not None
    AUTHORITY.issue("CN=broker-0", ["spiffe://c1/broker/0", "spiffe://c1/broker/1"]).write(world.folder, "broker-0")
    await broker.services.reload_aside()
    assert "several processes" in (broker.services.certificates.refusal or "")
    network = world.network(world.tls("coordinator", 100), "coordinator/100")
    assert await network.rpc_channel(f"broker/0@{address}").call(MARKERS, b"m", 5.0) == b"m"


def test_a_process_does_not_start_with_another_s_certificate(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(SettingsError, match="names spiffe://c1/broker/1, and this process is spiffe://c1/broker/0"):
        world.tls("broker", 0, "spiffe://c1/broker/1")
    with pytest.raises(SettingsError, match="names spiffe://c2/broker/0"):
        world.tls("broker", 0, "spiffe://c2/broker/0")
    with pytest.raises(SettingsError, match="names no process"):
        world.tls("broker", 0, "127.0.0.1")
    with pytest.raises(SettingsError, match="truststore"):
        world.tls("broker", 0, **{"service.ssl.truststore.location": ""})


async def test_a_framed_connection_to_a_node_is_checked_too(world: World) -> None:
    tls = world.tls("broker", 0)
    assert tls.services is not None
    network = world.network(tls, "broker/0")
    listener = await network.listen(
        "127.0.0.1", 0, lambda connection: Nothing(connection), FrameLimits(), tls.services.incoming)
    follower = world.network(world.tls("broker", 1), "broker/1")
    made = await follower.connect(
        "127.0.0.1", listener.port, Nothing, FrameLimits(), follower.node_tls("broker", 0))
    made.drop()
    with pytest.raises(ssl.SSLCertVerificationError, match="spiffe://c1/broker/2 is called"):
        await follower.connect("127.0.0.1", listener.port, Nothing, FrameLimits(), follower.node_tls("broker", 2))
    await listener.close()


class Nothing:
    def __init__(self, connection: FrameConnection) -> None: ...
    def on_frame(self, frame: memoryview) -> None: ...
    def on_drained(self) -> None: ...
    def on_closed(self, reason: str) -> None: ...

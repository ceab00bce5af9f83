"""The metadata store with a user and a password, against a real etcd whose authentication is on."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from aetcd.rpc import auth_pb2, rpc_pb2

from hapax.runtime.etcd import EtcdStore
from hapax.runtime.etcd_login import LoginRefused, PasswordLogin, password_in
from hapax.runtime.ports import MetadataUnavailable, Put
from integration.etcd_process import EtcdProcess

PREFIX = "/hapax/login/"
USER = "hapax"


class ClosedEtcd:
    """Its user may write below `PREFIX`, and nothing else: above all not read the key that signs of life ask for."""

    def __init__(self, process: EtcdProcess, folder: Path) -> None:
        self.process = process
        self.file = folder / "password"
        self.file.write_text("first\n")

    async def close_to_others(self) -> None:
        end = PREFIX[:-1].encode() + b"0"
        for method, fields in (
            ("RoleAdd", {"name": "root"}), ("UserAdd", {"name": "root", "password": "r"}),
            ("UserGrantRole", {"user": "root", "role": "root"}),
            ("RoleAdd", {"name": USER}), ("UserAdd", {"name": USER, "password": "first"}),
            ("UserGrantRole", {"user": USER, "role": USER}),
            ("RoleGrantPermission", {"name": USER, "perm": auth_pb2.Permission(
                permType=auth_pb2.Permission.READWRITE, key=PREFIX.encode(), range_end=end)}),
            ("AuthEnable", {}),
        ):
            await self.call(method, **fields)

    async def call(self, method: str, as_root: bool = False, **fields: Any) -> None:
        request = getattr(rpc_pb2, f"{method if method == 'AuthEnable' else 'Auth' + method}Request")
        answer = getattr(rpc_pb2, f"{method if method == 'AuthEnable' else 'Auth' + method}Response")
        async with grpc.aio.insecure_channel(self.process.endpoint) as channel:
            carried = await PasswordLogin("root", lambda: "r").metadata(channel, 5) if as_root else ()
            await channel.unary_unary(
                f"/etcdserverpb.Auth/{method}", request_serializer=request.SerializeToString,
                response_deserializer=answer.FromString,
            )(request(**fields), wait_for_ready=True, timeout=10, metadata=carried)

    async def end_tokens(self) -> None:
        """As a member that starts again does, unless it finds them in its log."""
        await self.call("UserChangePassword", as_root=True, name=USER, password="first")

    def store(self, members: int = 1, timeout_s: float = 30, user: str = USER) -> EtcdStore:
        """`members`: addresses, all of the one member."""
        _, _, port = self.process.endpoint.rpartition(":")
        return EtcdStore([f"{host}:{port}" for host in ("127.0.0.1", "localhost")[:members]], timeout_s,
                         login=PasswordLogin(user, password_in(self.file)))

    def logins(self) -> int:
        with urllib.request.urlopen(f"http://{self.process.endpoint}/metrics") as page:
            lines = page.read().decode().splitlines()
        return sum(int(line.split()[-1]) for line in lines
                   if line.startswith("grpc_server_started_total{") and '"Authenticate"' in line)


@pytest.fixture
async def closed(etcd: EtcdProcess, tmp_path: Path) -> ClosedEtcd:
    made = ClosedEtcd(etcd, tmp_path)
    await made.close_to_others()
    return made


@pytest.mark.parametrize("members", [1, 2])
async def test_every_kind_of_call_carries_the_login_and_one_login_serves_all(closed: ClosedEtcd, members: int) -> None:
    store, before = closed.store(members), closed.logins()
    await asyncio.gather(*(store.txn([], [Put(f"{PREFIX}{each}", b"x")]) for each in range(20)))
    assert closed.logins() == before + 1, "they share it"
    found, revision = await store.list(PREFIX)
    assert len(found) == 20
    lease = await store.grant_lease(30)
    assert await store.keep_alive(lease) > 0
    watching = store.watch(PREFIX, revision + 1)
    seen = asyncio.ensure_future(anext(watching))
    await store.txn([], [Put(f"{PREFIX}new", b"y", lease)])
    ((event,),) = (await asyncio.wait_for(seen, 10),)
    assert event.key == f"{PREFIX}new"
    await watching.aclose()
    await store.revoke_lease(lease)
    await store.close()
    without = EtcdStore([closed.process.endpoint], 0.5)
    with pytest.raises((MetadataUnavailable, ValueError), match="user name is empty"):
        await without.get(f"{PREFIX}0")
    await without.close()


@pytest.mark.parametrize("members", [1, 2])
async def test_a_token_that_etcd_has_forgotten_is_replaced_and_the_write_is_made_once(
    closed: ClosedEtcd, members: int
) -> None:
    store = closed.store(members)
    await store.txn([], [Put(f"{PREFIX}a", b"1")])
    await closed.end_tokens()
    await store.txn([], [Put(f"{PREFIX}a", b"2")])  # a write whose outcome is unknown would raise
    found = await store.get(f"{PREFIX}a")
    assert found is not None and found.value == b"2"
    await closed.end_tokens()
    lease = await store.grant_lease(30)
    await closed.end_tokens()
    assert await store.keep_alive(lease) > 0
    await closed.end_tokens()
    try:
        assert await anext(store.watch(PREFIX, 1))
    except MetadataUnavailable as error:
        assert re.search(r"invalid auth token|permission denied", str(error))
        assert await anext(store.watch(PREFIX, 1)), "the next one has a new token"
    await store.close()


async def test_a_new_password_is_read_from_the_file_and_a_wrong_one_says_whose_it_is(closed: ClosedEtcd) -> None:
    store, patient = closed.store(timeout_s=1), closed.store(timeout_s=30)
    await patient.get(f"{PREFIX}a")
    await patient.txn([], [Put(f"{PREFIX}a", b"1")])
    await closed.call("UserChangePassword", as_root=True, name=USER, password="second")
    with pytest.raises(MetadataUnavailable, match=f"login of {USER} at etcd: "):
        await store.get(f"{PREFIX}a")  # a change of a password ends its tokens
    with pytest.raises(MetadataUnavailable, match=f"login of {USER} at etcd: "):
        await anext(store.watch(PREFIX, 1))
    with pytest.raises(LoginRefused, match="authentication failed, invalid user ID or password"):
        async with grpc.aio.insecure_channel(closed.process.endpoint) as channel:
            await PasswordLogin(USER, password_in(closed.file)).metadata(channel, 30)
    closed.file.write_text("second\n")
    assert await patient.get(f"{PREFIX}a") is not None
    await patient.close()
    closed.file.unlink()
    other = closed.store(timeout_s=0.5)
    with pytest.raises(MetadataUnavailable, match="the password for etcd cannot be read"):
        await other.get(f"{PREFIX}a")
    await store.close()
    await other.close()


async def test_a_login_at_an_open_etcd_is_no_fault(etcd: EtcdProcess, tmp_path: Path) -> None:
    opened = ClosedEtcd(etcd, tmp_path)
    store = opened.store()
    await store.txn([], [Put(f"{PREFIX}a", b"1")])
    await opened.close_to_others()
    await store.txn([], [Put(f"{PREFIX}a", b"2")])  # closed meanwhile
    await store.close()

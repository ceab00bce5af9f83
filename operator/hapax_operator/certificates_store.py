"""etcd's users and rights, and the passwords of the first users, before any process of the cluster uses the store.

It may be repeated at any time. A password that is in the store already is not written again.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library's own lines are not ours

import grpc
from aetcd.rpc import rpc_pb2

from hapax.codec.metadata import Keys, MetadataFormatError, ScramCredentialRecord, ScramSecretRecord
from hapax.core.sasl.scram_keys import ScramMechanism, credential_of, salted_password
from hapax.runtime.etcd_login import AUTHENTICATE, Metadata
from hapax.runtime.etcd_users import EtcdUsersError, set_up
from hapax.runtime.tls import Material

_ITERATIONS: Final = 8192
_SECRET_BYTES: Final = 32
_TIMEOUT_S: Final = 10.0


class StoreNotReady(Exception):
    """etcd does not answer yet, or refused a change."""


def set_up_store(
    endpoints: tuple[str, ...], root: Material, cluster_id: str, passwords: Mapping[str, str],
    *, users_of_etcd: bool = True, login: tuple[str, str] | None = None,
) -> int:
    """`endpoints`: of the members. `root`: certificate of etcd's user of that name, or `login`: a user and its
    password. `passwords`: by user. `users_of_etcd`: whether etcd's users and rights are set up too. Returns the number
    of changes. Raises StoreNotReady. Takes up to ten seconds for each member that does not answer."""
    failure: Exception = StoreNotReady("etcd has no address")
    for endpoint in endpoints:
        try:
            changed = set_up(endpoint, root, cluster_id) if users_of_etcd else 0
            return changed + _store_passwords(endpoint, root, cluster_id, passwords, login)
        except EtcdUsersError as error:
            failure = error
        except grpc.RpcError as error:
            failed: Any = error
            failure = StoreNotReady(f"etcd at {endpoint}: {failed.code().name} {failed.details()}")
    raise StoreNotReady(str(failure)) from None


def _store_passwords(
    endpoint: str, root: Material, cluster_id: str, passwords: Mapping[str, str], login: tuple[str, str] | None
) -> int:
    credentials = grpc.ssl_channel_credentials(root.authorities, root.key or None, root.chain or None)
    channel: Any = grpc.secure_channel(endpoint, credentials, options=(("grpc.enable_http_proxy", 0),))
    try:
        store, keys = _Store(channel, () if login is None else _token(channel, *login)), Keys(cluster_id)
        changed = 0
        if store.get(keys.scram_secret)[0] is None:
            changed += store.put(keys.scram_secret, ScramSecretRecord(secrets.token_bytes(_SECRET_BYTES)).encode(), 0)
        for mechanism in ScramMechanism:
            for user, password in passwords.items():
                key = keys.scram_credential(mechanism, user)
                value, revision = store.get(key)
                if value is None or not _is_of(value, password):
                    changed += store.put(key, _record(mechanism, password), revision)
        return changed
    finally:
        channel.close()


def _is_of(value: bytes, password: str) -> bool:
    try:
        found = ScramCredentialRecord.decode(value).credential
    except MetadataFormatError:
        return False
    salted = salted_password(found.mechanism, password, found.salt, found.iterations)
    return credential_of(found.mechanism, found.salt, salted, found.iterations) == found


def _record(mechanism: ScramMechanism, password: str) -> bytes:
    salt = secrets.token_bytes(16)
    salted = salted_password(mechanism, password, salt, _ITERATIONS)
    return ScramCredentialRecord(credential_of(mechanism, salt, salted, _ITERATIONS)).encode()


def _token(channel: Any, user: str, password: str) -> Metadata:
    authenticate = channel.unary_unary(
        AUTHENTICATE, request_serializer=rpc_pb2.AuthenticateRequest.SerializeToString,
        response_deserializer=rpc_pb2.AuthenticateResponse.FromString)
    request = rpc_pb2.AuthenticateRequest(name=user, password=password)
    return (("token", authenticate(request, timeout=_TIMEOUT_S, wait_for_ready=True).token),)


class _Store:
    def __init__(self, channel: Any, carried: Metadata) -> None:
        self._carried = carried
        self._range = channel.unary_unary(
            "/etcdserverpb.KV/Range", request_serializer=rpc_pb2.RangeRequest.SerializeToString,
            response_deserializer=rpc_pb2.RangeResponse.FromString)
        self._txn = channel.unary_unary(
            "/etcdserverpb.KV/Txn", request_serializer=rpc_pb2.TxnRequest.SerializeToString,
            response_deserializer=rpc_pb2.TxnResponse.FromString)

    def get(self, key: str) -> tuple[bytes | None, int]:
        """The value and its revision, 0 if there is none."""
        found = self._range(
            rpc_pb2.RangeRequest(key=key.encode()), timeout=_TIMEOUT_S, wait_for_ready=True, metadata=self._carried).kvs
        return (found[0].value, found[0].mod_revision) if found else (None, 0)

    def put(self, key: str, value: bytes, revision: int) -> int:
        """Only over this revision. Returns the number of keys written. Raises StoreNotReady if another writer came
        first, which happens to two keepers at a time: the next look finds what that one wrote."""
        name = key.encode()
        done = self._txn(rpc_pb2.TxnRequest(
            compare=[rpc_pb2.Compare(
                result=rpc_pb2.Compare.EQUAL, target=rpc_pb2.Compare.MOD, key=name, mod_revision=revision)],
            success=[rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=name, value=value))],
        ), timeout=_TIMEOUT_S, wait_for_ready=True, metadata=self._carried)
        if not done.succeeded:
            raise StoreNotReady(f"{key} was changed by another writer in the meantime")
        return 1

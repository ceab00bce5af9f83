"""The first step of a secure local cluster: etcd's users and their rights, and the passwords of the first users.

It runs in a process of its own: the runner that starts it must not use gRPC.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from hapax.codec.metadata import Keys, ScramCredentialRecord, ScramSecretRecord
from hapax.core.sasl.scram_keys import ScramMechanism, credential_of, salted_password
from hapax.local.secure import ETCD_ROOT, SERVICES, USERS, SecureFolder
from hapax.runtime.etcd_users import set_up
from hapax.runtime.tls import Material

_ITERATIONS: Final = 8192
_SECRET_BYTES: Final = 32


def prepare_store(secure: SecureFolder, endpoint: str, cluster_id: str) -> None:
    """`endpoint`: host:port of etcd. Raises EtcdUsersError, OSError."""
    root = Material(
        secure.file(f"{ETCD_ROOT}.crt").read_bytes(), secure.file(f"{ETCD_ROOT}.key").read_bytes(),
        secure.file(f"{SERVICES}.crt").read_bytes())
    changed = set_up(endpoint, root, cluster_id)
    keys = Keys(cluster_id)
    records = {keys.scram_secret: ScramSecretRecord(secrets.token_bytes(_SECRET_BYTES)).encode()}
    for mechanism in ScramMechanism:
        for user in USERS:
            salt = secrets.token_bytes(16)
            credential = credential_of(
                mechanism, salt, salted_password(mechanism, secure.password(user), salt, _ITERATIONS), _ITERATIONS)
            records[keys.scram_credential(mechanism, user)] = ScramCredentialRecord(credential).encode()
    _create(endpoint, root, records)
    print(f"etcd: {changed} changes of users and rights", flush=True)


def _create(endpoint: str, root: Material, records: dict[str, bytes]) -> None:
    """Those that do not exist."""
    import grpc
    from aetcd.rpc import rpc_pb2

    credentials = grpc.ssl_channel_credentials(root.authorities, root.key, root.chain)
    channel: Any = grpc.secure_channel(endpoint, credentials, options=(("grpc.enable_http_proxy", 0),))
    txn = channel.unary_unary(
        "/etcdserverpb.KV/Txn", request_serializer=rpc_pb2.TxnRequest.SerializeToString,
        response_deserializer=rpc_pb2.TxnResponse.FromString)
    for key, value in records.items():
        name = key.encode()
        txn(rpc_pb2.TxnRequest(
            compare=[rpc_pb2.Compare(
                result=rpc_pb2.Compare.EQUAL, target=rpc_pb2.Compare.CREATE, key=name, create_revision=0)],
            success=[rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=name, value=value))],
        ), timeout=10, wait_for_ready=True)
    channel.close()

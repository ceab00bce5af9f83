"""Users of etcd: one for each role of the cluster's processes, with the rights of `codec/store_rights.py`.

A user is who has a certificate with its name as the common name (etcd's `--client-cert-auth`); users have no
passwords. `set_up` may be run again at any time, also while the cluster works: it grants what is missing and takes
back what is too much.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the library's own lines are not ours

import grpc
from aetcd.rpc import auth_pb2, rpc_pb2

from hapax.codec.store_rights import KeyRange, all_rights
from hapax.runtime.tls import Material

ROOT: Final = "root"
"""etcd's own name for who may do everything. It must exist before the authentication can be turned on."""
PREFIX: Final = "hapax-"
_SERVICE: Final = "/etcdserverpb.Auth/"
_TIMEOUT_S: Final = 10.0


class EtcdUsersError(Exception):
    """etcd did not answer, or refused a change."""


def user_of(role: str) -> str:
    """The user of a role's processes, and so the common name of their certificates."""
    return PREFIX + role


def set_up(endpoint: str, root: Material, cluster_id: str) -> int:
    """Users, roles and rights, and authentication on. `root`: the certificate of etcd's user `root`. Returns how
    much was changed. Raises EtcdUsersError."""
    credentials = grpc.ssl_channel_credentials(root.authorities, root.key, root.chain)
    channel: Any = grpc.secure_channel(endpoint, credentials, options=(("grpc.enable_http_proxy", 0),))
    try:
        return _Auth(channel).set_up(cluster_id)
    except grpc.RpcError as error:
        failed: Any = error
        raise EtcdUsersError(f"etcd at {endpoint}: {failed.code().name} {failed.details()}") from None
    finally:
        channel.close()


class _Auth:
    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.done = 0

    def set_up(self, cluster_id: str) -> int:
        users, roles = set(self._call("UserList").users), set(self._call("RoleList").roles)
        if ROOT not in roles:
            self._call("RoleAdd", name=ROOT)
        self._user(ROOT, ROOT, users)
        for role, wanted in all_rights(cluster_id).items():
            name = user_of(role)
            self._role(name, wanted, roles)
            self._user(name, name, users)
        if not self._call("AuthStatus").enabled:
            self._call("AuthEnable")
            self.done += 1
        return self.done

    def _user(self, name: str, role: str, users: set[str]) -> None:
        if name not in users:
            self._call("UserAdd", name=name, options=auth_pb2.UserAddOptions(no_password=True))
            self.done += 1
        present = set(self._call("UserGet", name=name).roles)
        if role not in present:
            self._call("UserGrantRole", user=name, role=role)
            self.done += 1
        for each in present - {role}:  # rights of another role, however they came there
            self._call("UserRevokeRole", name=name, role=each)
            self.done += 1

    def _role(self, name: str, wanted: Sequence[KeyRange], roles: set[str]) -> None:
        if name not in roles:
            self._call("RoleAdd", name=name)
            self.done += 1
        # Rights of the same range replace each other, so the former ones are compared by range and kind.
        present = {(each.key, each.range_end): each.permType for each in self._call("RoleGet", role=name).perm}
        asked = {(each.key, each.end): _kind(each) for each in wanted}
        for (key, end), kind in asked.items():
            if present.get((key, end)) != kind:
                self._call("RoleGrantPermission", name=name, perm=auth_pb2.Permission(
                    permType=kind, key=key, range_end=end))
                self.done += 1
        for key, end in present.keys() - asked.keys():
            self._call("RoleRevokePermission", role=name, key=key, range_end=end)
            self.done += 1

    def _call(self, method: str, **fields: Any) -> Any:
        request, answer = _MESSAGES[method]
        call = self._channel.unary_unary(
            _SERVICE + method, request_serializer=request.SerializeToString, response_deserializer=answer.FromString)
        return call(request(**fields), timeout=_TIMEOUT_S, wait_for_ready=True)


def _kind(right: KeyRange) -> Any:
    return auth_pb2.Permission.READWRITE if right.write else auth_pb2.Permission.READ


_MESSAGES: Final[dict[str, tuple[Any, Any]]] = {
    method: (getattr(rpc_pb2, f"Auth{method}Request"), getattr(rpc_pb2, f"Auth{method}Response"))
    for method in (
        "UserAdd", "UserGet", "UserList", "UserGrantRole", "UserRevokeRole", "RoleAdd", "RoleGet", "RoleList",
        "RoleGrantPermission", "RoleRevokePermission")
} | {
    "AuthEnable": (rpc_pb2.AuthEnableRequest, rpc_pb2.AuthEnableResponse),
    "AuthStatus": (rpc_pb2.AuthStatusRequest, rpc_pb2.AuthStatusResponse),
}

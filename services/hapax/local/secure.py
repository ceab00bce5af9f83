"""What a local cluster with `--secure` needs: authorities, certificates, the first user, and each process's settings.

    D/tls/services-ca.crt     the authority of the cluster's own processes and of etcd; its key beside it
    D/tls/clients-ca.crt      the authority of what clients see; its key beside it
    D/tls/NAME.crt, .key      by which a process proves itself to the others, and to etcd
    D/tls/NAME-public.crt     what its clients see
    D/admin.properties        settings of a client that may do everything (`--command-config`)
    D/tls/rest.properties     the same for the REST API

There are two authorities, so that no certificate of a client can pass for one of a process. Authorities and the first
user are made once, certificates at each start. All of it is for the owner's eyes only.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hapax.core.access.services import ServiceName
from hapax.local.folder import Folder, ProcessState

if TYPE_CHECKING:
    from hapax.local.authority import Authority

# What makes certificates is imported where it is needed: 10 MB and 0.1 s that a look at a cluster need not pay.

SERVICES: Final = "services-ca"
CLIENTS: Final = "clients-ca"
NODES_LISTENER: Final = "INTERNAL"
CLIENTS_LISTENER: Final = "CLIENTS"
USER: Final = "admin"
"""The first user, who may do everything."""
REST_USER: Final = "rest"
"""The user of the REST API, which judges itself what its callers may do."""
USERS: Final = (USER, REST_USER)
ETCD_ROOT: Final = "root"
ETCD_USERS: Final = "hapax-"
"""Before a role, the user of etcd (`runtime/etcd_users.py`, which a process without gRPC cannot import)."""
_HOSTS: Final = ("127.0.0.1", "localhost")
_VALID: Final = timedelta(days=365)
DEFAULTS: Final = {
    "authorizer.class.name": "acl", "super.users": f"User:{USER};User:{REST_USER}", "public.rpc.auth": "passwords"}
"""Settings of every process that may be given otherwise."""
_COMMON: Final = {
    "security.inter.broker.protocol": "SSL",
    "listener.security.protocol.map": f"{NODES_LISTENER}:SSL,{CLIENTS_LISTENER}:SASL_SSL",
    "public.rpc.security.protocol": "SSL",
    "http.security.protocol": "SSL",
    "admin.security.protocol": "SSL",
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]+)(,.*)?$/$1/,DEFAULT",
    # Public gRPC takes the listener's users. It can ask for a certificate of all clients or of none.
    "ssl.client.auth": "none",
    "listener.name.clients.ssl.client.auth": "none",
}


class SecureFolder:
    """The files of a secure cluster. Making the object creates nothing."""

    def __init__(self, folder: Folder, hosts: Callable[[ProcessState], Sequence[str]] = lambda process: _HOSTS) -> None:
        """`hosts`: names and addresses that a process serves under."""
        self._folder = folder
        self._hosts = hosts
        self.path = folder.path / "tls"

    @property
    def profile(self) -> Path:
        """The first user's file of client settings."""
        return self._folder.path / "admin.properties"

    @property
    def made(self) -> bool:
        """Whether the cluster in the folder is secure: then it stays so."""
        return self.path.exists()

    def file(self, name: str) -> Path:
        return self.path / name

    # --- certificates ---

    def prepare(self, cluster_id: str, processes: list[ProcessState], bootstrap: str) -> None:
        """Authorities and the first user's password where there are none, and a certificate for each process."""
        from hapax.local.authority import replace_file

        self.path.mkdir(mode=0o700, exist_ok=True)
        self.renew(cluster_id, processes)
        for user in USERS:
            path = self.profile_of(user)
            password = self.password(user) if path.exists() else secrets.token_urlsafe(24)
            replace_file(path, self._profile(bootstrap, user, password).encode(), 0o600)

    def renew(self, cluster_id: str, processes: list[ProcessState]) -> None:
        """New certificates and keys for all processes, which take them over while they run, and for the first users."""
        from hapax.local.authority import replace_file

        services, clients = self.authority(SERVICES), self.authority(CLIENTS)
        for process in processes:
            self.issue(services, clients, cluster_id, process)
        root = services.issue(f"CN={ETCD_ROOT}", use="client", valid=_VALID)
        with self._root_pair(fcntl.LOCK_EX):
            root.write(self.path, ETCD_ROOT)
        for user in USERS:
            issued = clients.issue(f"CN={user}", use="client", valid=_VALID)
            replace_file(self.file(f"{user}.pem"), issued.key + issued.certificate, 0o600)

    def add_authorities(self) -> None:
        """The first step of a change of both authorities: new ones, trusted beside the former. Certificates are
        issued by them from the next `renew` on, which must wait until all trust them; etcd reads whom it trusts only
        when it starts."""
        from hapax.local.authority import Authority, replace_file

        for name in (SERVICES, CLIENTS):
            made = Authority.make(_title(name))
            former = self.file(f"{name}.crt").read_bytes()
            replace_file(self.file(f"{name}.key"), made.key, 0o600)
            replace_file(self.file(f"{name}.crt"), made.certificate + former)

    def drop_former_authorities(self) -> None:
        """The last step, once all have certificates of the new ones."""
        from hapax.local.authority import replace_file

        for name in (SERVICES, CLIENTS):
            replace_file(self.file(f"{name}.crt"), self.authority(name).certificate)

    def issue(self, services: Authority, clients: Authority, cluster_id: str, process: ProcessState) -> None:
        if process.role == "etcd":
            services.issue("CN=etcd", self._hosts(process), valid=_VALID).write(self.path, process.name)
            return
        name = ServiceName(cluster_id, process.role, process.node_id)
        services.issue(f"CN={ETCD_USERS}{process.role}", [*self._hosts(process), str(name)], valid=_VALID).write(
            self.path, process.name)
        clients.issue(f"CN={process.name}", self._hosts(process), use="server", valid=_VALID).write(
            self.path, f"{process.name}-public")

    def authority(self, name: str) -> Authority:
        """The newest of that name, made where there is none."""
        from hapax.local.authority import Authority, replace_file

        certificate, key = self.file(f"{name}.crt"), self.file(f"{name}.key")
        if key.exists():
            return Authority.read(certificate.read_bytes(), key.read_bytes())
        authority = Authority.make(_title(name))
        replace_file(key, authority.key, 0o600)
        replace_file(certificate, authority.certificate)
        return authority

    # --- the first user ---

    def profile_of(self, user: str) -> Path:
        return self.profile if user == USER else self.file(f"{user}.properties")

    def _profile(self, bootstrap: str, user: str, password: str) -> str:
        return "".join(f"{line}\n" for line in (
            "# Settings of a client that may do everything. Keep this file to yourself.",
            f"bootstrap.servers={bootstrap}",
            "security.protocol=SASL_SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.file(CLIENTS + '.crt')}",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={self.file(user + '.pem')}",
            "sasl.mechanism=SCRAM-SHA-512",
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
            f' username="{user}" password="{password}";',
        ))

    def password(self, user: str) -> str:
        """As it was at first."""
        return self.profile_of(user).read_text().rpartition(' password="')[2].partition('"')[0]

    def trust(self) -> ssl.SSLContext:
        """For questions to the processes' HTTP ports and to etcd, which asks for a certificate itself."""
        context = ssl.create_default_context(cafile=str(self.file(SERVICES + ".crt")))
        with self._root_pair(fcntl.LOCK_SH):
            context.load_cert_chain(self.file(f"{ETCD_ROOT}.crt"), self.file(f"{ETCD_ROOT}.key"))
        return context

    @contextmanager
    def _root_pair(self, how: int) -> Iterator[None]:
        """Root's certificate and key are two files, which another thread or process may be replacing. Readers
        (`LOCK_SH`) must not find one of the former pair and one of the next, which `LOCK_EX` writes."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, how)
            yield
        finally:
            os.close(folder)

    # --- settings ---

    def settings(self, process: ProcessState) -> dict[str, str]:
        """Those of one process that make it secure."""
        own, public = self.file(process.name), self.file(f"{process.name}-public")
        found = _COMMON | {
            "service.ssl.certificate.location": f"{own}.crt", "service.ssl.key.location": f"{own}.key",
            "service.ssl.truststore.location": str(self.file(SERVICES + ".crt")),
            "ssl.certificate.location": f"{public}.crt", "ssl.key.location": f"{public}.key",
            "ssl.truststore.location": str(self.file(CLIENTS + ".crt")),
        }
        if process.role == "admin":
            found |= {
                "admin.auth": "tokens,passwords,certificates", "ssl.client.auth": "requested",
                "admin.client.config": str(self.profile_of(REST_USER))}
        if process.role in ("broker", "coordinator"):
            found["listeners"] = (
                f"{NODES_LISTENER}://127.0.0.1:{process.nodes_port},{CLIENTS_LISTENER}://127.0.0.1:{process.port}")
        else:
            found["listeners"] = f"{NODES_LISTENER}://127.0.0.1:0,{CLIENTS_LISTENER}://127.0.0.1:0"
        return found

    def etcd_options(self) -> list[str]:
        own = self.file("etcd")
        authority = self.file(SERVICES + ".crt")
        return [
            f"--cert-file={own}.crt", f"--key-file={own}.key", f"--trusted-ca-file={authority}", "--client-cert-auth",
            f"--peer-cert-file={own}.crt", f"--peer-key-file={own}.key", f"--peer-trusted-ca-file={authority}",
            "--peer-client-cert-auth", "--tls-min-version=TLS1.2",
        ]


def _title(name: str) -> str:
    return f"Hapax {name.removesuffix('-ca')}"


def readable_by_others(path: Path) -> bool:
    return bool(os.stat(path).st_mode & 0o077)

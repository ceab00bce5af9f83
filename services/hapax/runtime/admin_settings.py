"""Settings of the REST API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from hapax.runtime.sasl_settings import split_list
from hapax.runtime.setting_types import Between, Like

_WAY: Final = "(?:tokens|passwords|oauthbearer|certificates)"


@dataclass(frozen=True, kw_only=True)
class AdminSettings:
    """A part of `settings.Settings`."""

    admin_listen: str = "127.0.0.1:8080"
    """Address on which the REST API is served; port 0 picks a free port. For TLS see
    `admin.security.protocol`."""
    admin_auth: Annotated[str, Like(rf"none|{_WAY}(?:,\s*{_WAY})*")] = "tokens"
    """How callers of the REST API prove who they are; several ways are separated by commas. tokens: a bearer token from
    `admin.tokens.file`. passwords: HTTP Basic with a user's password, which is compared with its SCRAM credentials.
    oauthbearer: a signed bearer token of the issuer in `sasl.oauthbearer.*`. certificates: a client's certificate, see
    `ssl.client.auth` and `ssl.principal.mapping.rules`. Passwords and signed tokens need TLS. none, alone: every client
    that reaches the port is `User:ANONYMOUS`, and without an authoriser may do everything."""
    admin_tokens_file: str | None = None
    """File of bearer tokens, one per line: `NAME ROLE TOKEN`. Its holder is the principal `User:NAME`. The role is
    `acl` (what ACLs permit), `read-only` (also reads all metadata, and changes nothing) or `admin` (everything); the
    token is plain or `sha256:HEX` of it. The file is read again when it changes."""
    admin_client_config: str | None = None
    """File of client settings (as `--command-config`) by which the REST API reaches the cluster: its login, its
    certificate, and with `bootstrap.servers` the listener. Default: it connects to the nodes' own listener without a
    login."""
    admin_request_max_bytes: Annotated[int, Between(1024, 64 << 20)] = 256 << 10
    """Largest request body in bytes. A larger one is refused as soon as its size is known."""
    admin_request_timeout_ms: Annotated[int, Between(100)] = 30_000
    """A call that takes more than this many milliseconds is answered 503. A client may ask for less with the header
    `Request-Timeout-Ms`."""
    admin_receive_timeout_ms: Annotated[int, Between(100)] = 10_000
    """Milliseconds each for receiving a request's headers, for receiving its body and for sending the answer. A slower
    client gets status 408 or is disconnected."""
    admin_idle_timeout_ms: Annotated[int, Between(100)] = 30_000
    """A connection without a request is closed after this many milliseconds."""
    admin_max_connections: Annotated[int, Between(1)] = 2_000
    """Most connections. With one more, the connection that has gone longest without a complete request is closed."""

    @property
    def admin_ways(self) -> tuple[str, ...]:
        """Of `admin.auth`."""
        return split_list(self.admin_auth)

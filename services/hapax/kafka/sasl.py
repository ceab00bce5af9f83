"""What a listener with SASL demands: its mechanisms, the credentials behind them, and how many may be logging in."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from hapax.core.sasl.exchange import (
    OAUTHBEARER,
    PLAIN,
    Exchange,
    Failure,
    PasswordCheck,
    Success,
    TokenCheck,
)
from hapax.core.sasl.oauthbearer import OAuthBearerExchange
from hapax.core.sasl.plain import PlainExchange
from hapax.core.sasl.scram import ScramExchange
from hapax.core.sasl.scram_keys import ScramCredential, ScramMechanism
from hapax.runtime.addresses import source_of
from hapax.runtime.lobby import Lobby
from hapax.runtime.password_checks import PasswordChecks
from hapax.runtime.ports import Clock, Ports
from hapax.runtime.sasl_settings import SaslSettings, enabled_mechanisms
from hapax.runtime.scram_image import ScramImage

if TYPE_CHECKING:
    from hapax.runtime.key_sets import IssuerKeys

_NONCE_BYTES: Final = 24
_SCRAM: Final = {each.sasl_name: each for each in ScramMechanism}

SUCCEEDED: Final = "succeeded"
RENEWED: Final = "renewed"
FAILED: Final = "failed"
TIMED_OUT: Final = "timed out"
GIVEN_UP: Final = "given up"


class Revocable(Protocol):
    """A session that rests on a user's password."""

    def revoked(self) -> None: ...


class SaslListener:
    """Shared by the connections of one listener."""

    def __init__(
        self, settings: SaslSettings, scram: ScramImage, ports: Ports, passwords: PasswordChecks[Success | Failure],
        *, tls: bool,
    ) -> None:
        """`settings`: as they are for this listener. Raises ValueError."""
        self.mechanisms = enabled_mechanisms(settings, tls=tls)
        self.lobby = Lobby(settings.sasl_max_logins, settings.sasl_max_logins_per_ip)
        self.max_frame_bytes = settings.sasl_server_max_receive_size
        self.login_timeout_ms = settings.sasl_login_timeout_ms
        self.max_reauth_ms = settings.connections_max_reauth_ms
        self.refresh_ms = settings.sasl_oauthbearer_jwks_endpoint_refresh_ms
        self.clock: Clock = ports.clock
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """Logins by mechanism and outcome."""
        self.keys: IssuerKeys | None = None
        self._scram = scram
        self._random = ports.random
        self._passwords = passwords
        self._sessions: dict[tuple[ScramMechanism, str], dict[Revocable, None]] = {}
        scram.on_withdrawn(self._withdrawn)
        if OAUTHBEARER in self.mechanisms:
            from hapax.runtime.key_sets import issuer_keys  # 10 MB that other listeners do not need

            self.keys = issuer_keys(settings, asyncio.get_running_loop().time)

    def exchange(self, mechanism: str) -> Exchange:
        """A new one of an enabled mechanism."""
        if mechanism == PLAIN:
            return PlainExchange(self._scram.find_for_plain)
        if mechanism == OAUTHBEARER:
            return OAuthBearerExchange()
        nonce = base64.urlsafe_b64encode(self._random.randbytes(_NONCE_BYTES)).decode()
        return ScramExchange(partial(self._scram.find, _SCRAM[mechanism]), nonce)

    def admit(self, session: Revocable, name: str, credential: ScramCredential) -> bool:
        """Ends the session when the credential is removed or replaced. False: it was already."""
        if not self._scram.is_current(name, credential):
            return False
        self._sessions.setdefault((credential.mechanism, name), {})[session] = None
        return True

    def forget(self, session: Revocable, name: str, credential: ScramCredential) -> None:
        of_user = self._sessions.get((credential.mechanism, name), {})
        of_user.pop(session, None)
        if not of_user:
            self._sessions.pop((credential.mechanism, name), None)

    def _withdrawn(self, mechanism: ScramMechanism, name: str) -> None:
        for session in self._sessions.pop((mechanism, name), {}):
            session.revoked()

    async def check_password(self, check: PasswordCheck, peer: str) -> Success | Failure:
        return await self._passwords.run(source_of(peer), check.outcome)

    async def check_token(self, exchange: Any, check: TokenCheck) -> Any:
        """The exchange's next outcome."""
        assert self.keys is not None
        return exchange.checked(await self.keys.check(check.token, self.clock.now_ms() / 1000))

"""The admin client's calls for users' SCRAM credentials (KIP-554)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from hapax.client.connected import Connected
from hapax.client.errors import SettingsError, from_code
from hapax.core.errors import ErrorCode
from hapax.core.sasl.client import password_fault
from hapax.core.sasl.exchange import PLAIN
from hapax.core.sasl.scram_keys import ScramMechanism, salted_password
from hapax.runtime.aside import aside
from hapax.wire import messages
from hapax.wire.peer import Peer, PeerError

DEFAULT_ITERATIONS: Final = 4096
"""Of Kafka's tools."""
_ENCRYPTED: Final = ("SSL", "SASL_SSL")
_SALT_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_LENGTH: Final = 26
"""As Kafka's tools make it, so that a user is not told apart by the salt."""


class ScramCredentialInfo(NamedTuple):
    user: str
    mechanism: ScramMechanism
    iterations: int


class ScramUpsertion(NamedTuple):
    """A password for one mechanism. The cluster learns a salted hash of it, which is still enough to log in."""

    user: str
    mechanism: ScramMechanism
    password: str
    iterations: int = DEFAULT_ITERATIONS
    salt: bytes = b""
    """Empty: a random one."""

    def __repr__(self) -> str:
        return f"ScramUpsertion({self.user!r}, {self.mechanism.sasl_name}, {self.iterations} iterations)"


class ScramDeletion(NamedTuple):
    user: str
    mechanism: ScramMechanism


class UserAdmin(Connected):
    async def describe_user_scram_credentials(self, users: Iterable[str] = ()) -> list[ScramCredentialInfo]:
        """The SCRAM credentials of these users, or of all; in order. Raises FatalError with code RESOURCE_NOT_FOUND for
        a user who has none."""
        what = "describing SCRAM credentials"
        Name = messages.DescribeUserScramCredentialsRequest.UserName
        message = messages.DescribeUserScramCredentialsRequest(
            users=[Name(name=name) for name in dict.fromkeys(users)] or None)

        async def attempt() -> list[ScramCredentialInfo]:
            answer = await self._cluster.call_any(lambda: message)
            if answer.error_code:
                raise from_code(answer.error_code, what, answer.error_message)
            found = []
            for result in answer.results:
                if result.error_code:
                    raise from_code(result.error_code, f"user {result.user!r}", result.error_message)
                found += [
                    ScramCredentialInfo(result.user, ScramMechanism(each.mechanism), int(each.iterations))
                    for each in result.credential_infos]
            return sorted(found)

        return await self._cluster.within(self._timeout, what, attempt)

    async def alter_user_scram_credentials(self, changes: Iterable[ScramUpsertion | ScramDeletion]) -> None:
        """Sets and removes credentials, at most one of a user with one call. Raises the first refusal, after all were
        asked for; SettingsError where the connection is not encrypted."""
        Message = messages.AlterUserScramCredentialsRequest
        options = self._options
        deletions, upsertions = [], []
        for change in changes:
            if isinstance(change, ScramDeletion):
                deletions.append(Message.ScramCredentialDeletion(name=change.user, mechanism=int(change.mechanism)))
                continue
            # The cluster refuses it too, but then it has already been sent for all to read.
            if options["security.protocol"] not in _ENCRYPTED and not options["sasl.allow.secrets.without.tls"]:
                raise SettingsError(
                    "a password is set over TLS only, since what is sent is enough to log in: use "
                    "security.protocol=SSL or SASL_SSL, or set sasl.allow.secrets.without.tls=true")
            if fault := password_fault(change.user, change.password):
                raise SettingsError(fault)
            salt = change.salt or self._salt()
            salted = await aside(partial(
                salted_password, change.mechanism, change.password, salt, change.iterations))
            upsertions.append(Message.ScramCredentialUpsertion(
                name=change.user, mechanism=int(change.mechanism), iterations=change.iterations, salt=salt,
                salted_password=salted))
        message = Message(deletions=deletions, upsertions=upsertions)
        removed = {each.name for each in deletions}
        in_doubt = False

        async def attempt() -> None:
            nonlocal in_doubt
            peer = await self._any_node()
            try:
                answer = await peer.call(message)
            except PeerError:
                in_doubt = True
                raise
            for result in answer.results:
                gone = result.error_code == ErrorCode.RESOURCE_NOT_FOUND and result.user in removed
                if result.error_code and not (gone and in_doubt):
                    raise from_code(result.error_code, f"user {result.user!r}", result.error_message)

        await self._cluster.within(self._timeout, "altering SCRAM credentials", attempt)

    def order_of_changes(self, user: str, mechanisms: Iterable[ScramMechanism]) -> list[ScramMechanism]:
        """In which to change this user's credentials, one call for each. A change ends the sessions that rest on it. So
        where this client is the user, the credential that it logs in with comes last: after that it cannot log in."""
        jaas, mechanism = self._options["sasl.jaas.config"], self._options["sasl.mechanism"]
        mechanism = mechanism or self._options["sasl.mechanisms"]
        own_name = self._options["sasl.username"] if jaas is None else jaas.name
        own = ScramMechanism.SCRAM_SHA_256 if mechanism == PLAIN else next(
            (each for each in ScramMechanism if each.sasl_name == mechanism), None)
        return sorted(mechanisms, key=lambda each: (user == own_name and each is own, each))

    async def _any_node(self) -> Peer:
        """Raises PeerError, HapaxError."""
        nodes = sorted(self._cluster.nodes)
        if not nodes:
            raise PeerError("no node is known")
        return await self._cluster.peer(nodes[self._ports.random.randrange(0, len(nodes))])

    def _salt(self) -> bytes:
        draw = self._ports.random.randrange
        return "".join(_SALT_LETTERS[draw(0, len(_SALT_LETTERS))] for _ in range(_SALT_LENGTH)).encode()

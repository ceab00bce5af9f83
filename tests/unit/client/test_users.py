"""Users' passwords through the admin client: what is sent, what is never sent, and answers that were lost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.admin import Admin
from hapax.client.errors import FatalError, SettingsError
from hapax.client.users import ScramDeletion, ScramUpsertion
from hapax.core.errors import ErrorCode
from hapax.core.sasl.scram_keys import ScramMechanism, credential_of, default_shape, shape_of
from hapax.wire.peer import PeerClosed

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


class Cluster:
    """One node, which answers each request with the next of `answers`."""

    def __init__(self, *answers: object) -> None:
        self.nodes = {0: ("a", 1)}
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def peer(self, node_id: int) -> Cluster:
        return self

    async def call(self, message: Any) -> Any:
        self.asked.append(message)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        codes = answer if isinstance(answer, dict) else {"alice": answer}
        return SimpleNamespace(results=[
            SimpleNamespace(user=user, error_code=int(code), error_message="why") for user, code in codes.items()])

    async def within(self, timeout_ms: int, what: str, attempt: Callable[[], Any]) -> Any:
        while True:
            try:
                return await attempt()
            except PeerClosed:
                continue


def admin(cluster: Cluster, **settings: object) -> Admin:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    made = Admin({"bootstrap.servers": "a:1", "security.protocol": "SSL", **dotted})
    made._cluster = cluster  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_a_password_is_sent_as_a_salted_hash_only(mechanism: ScramMechanism) -> None:
    cluster = Cluster(0, 0)
    for _ in range(2):
        await admin(cluster).alter_user_scram_credentials([ScramUpsertion("alice", mechanism, "hidden wörd", 5000)])
    (one,), (other,) = (message.upsertions for message in cluster.asked)
    assert (one.name, one.mechanism, one.iterations) == ("alice", int(mechanism), 5000)
    assert one.salted_password == hashlib.pbkdf2_hmac(mechanism.digest, "hidden wörd".encode(), one.salt, 5000)
    assert one.salt != other.salt and "hidden" not in str(cluster.asked)


async def test_a_credential_looks_like_those_that_unknown_users_seem_to_have() -> None:
    cluster = Cluster(0)
    await admin(cluster).alter_user_scram_credentials([ScramUpsertion("alice", SHA_256, "secret")])
    (sent,) = cluster.asked[0].upsertions
    assert shape_of(credential_of(SHA_256, sent.salt, sent.salted_password, sent.iterations)) == default_shape(SHA_256)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
async def test_nothing_is_sent_in_clear(protocol: str) -> None:
    login = {} if protocol == "PLAINTEXT" else {
        "sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "admin", "sasl_password": "x"}
    cluster = Cluster(0, 0)
    change = ScramUpsertion("alice", SHA_256, "hidden")
    with pytest.raises(SettingsError, match="over TLS only"):
        await admin(cluster, security_protocol=protocol, **login).alter_user_scram_credentials([change])
    assert cluster.asked == []
    allowed = admin(cluster, security_protocol=protocol, sasl_allow_secrets_without_tls=True, **login)
    await allowed.alter_user_scram_credentials([change])
    removing = admin(cluster, security_protocol=protocol, **login)
    await removing.alter_user_scram_credentials([ScramDeletion("alice", SHA_256)])
    assert len(cluster.asked) == 2


async def test_refusals_are_told() -> None:
    cluster = Cluster(ErrorCode.UNACCEPTABLE_CREDENTIAL)
    with pytest.raises(FatalError, match="user 'alice': UNACCEPTABLE_CREDENTIAL: why") as refused:
        await admin(cluster).alter_user_scram_credentials([ScramUpsertion("alice", SHA_256, "hidden")])
    assert "hidden" not in str(refused.value)
    with pytest.raises(SettingsError, match="password is empty"):
        await admin(cluster).alter_user_scram_credentials([ScramUpsertion("alice", SHA_256, "")])


async def test_a_removal_whose_answer_was_lost_may_be_repeated() -> None:
    removal = [ScramDeletion("alice", SHA_256)]
    await admin(Cluster(PeerClosed("lost"), ErrorCode.RESOURCE_NOT_FOUND)).alter_user_scram_credentials(removal)
    with pytest.raises(FatalError, match="RESOURCE_NOT_FOUND"):
        await admin(Cluster(ErrorCode.RESOURCE_NOT_FOUND)).alter_user_scram_credentials(removal)


def test_a_change_does_not_show_the_password() -> None:
    change = ScramUpsertion("alice", SHA_512, "hidden")
    assert "hidden" not in repr(change) and "alice" in repr(change)


@pytest.mark.parametrize(("login", "user", "expected"), [
    ({"sasl_mechanism": "SCRAM-SHA-256"}, "alice", [SHA_512, SHA_256]),
    ({"sasl_mechanisms": "SCRAM-SHA-256"}, "alice", [SHA_512, SHA_256]),
    ({"sasl_mechanism": "PLAIN"}, "alice", [SHA_512, SHA_256]),
    ({"sasl_mechanism": "SCRAM-SHA-512"}, "alice", [SHA_256, SHA_512]),
    ({"sasl_mechanism": "SCRAM-SHA-256"}, "bob", [SHA_256, SHA_512]),
])
def test_a_user_changes_the_own_credential_last(
    login: dict[str, str], user: str, expected: list[ScramMechanism]
) -> None:
    """Its session ends with it, and the other credential could not be changed any more."""
    jaas = ('org.apache.kafka.common.security.{}LoginModule required username="alice" password="x";'.format(
        "plain.Plain" if "PLAIN" in login.values() else "scram.Scram"))
    for who in ({"sasl_username": "alice", "sasl_password": "x"}, {"sasl_jaas_config": jaas}):
        made = admin(Cluster(), security_protocol="SASL_SSL", **login, **who)
        assert made.order_of_changes(user, list(ScramMechanism)) == expected

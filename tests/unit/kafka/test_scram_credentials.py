"""The calls about SCRAM credentials: through a node, the acting controller, the store, and back."""

from __future__ import annotations

from typing import Any

from hapax.core.access.principals import user
from hapax.core.errors import ErrorCode
from hapax.core.sasl.scram_keys import ScramMechanism, keys_of
from hapax.wire import messages
from unit.control_world import KEYS, ControlWorld, run
from unit.kafka.test_node_apis import AnsweringNode, cluster

OPEN = {"sasl_allow_secrets_without_tls": True}
SHA_256 = ScramMechanism.SCRAM_SHA_256
SALTED = bytes(range(32))


def setting(name: str, **fields: Any) -> Any:
    return messages.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(**{
        "name": name, "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": SALTED, **fields})


def removal(name: str, mechanism: int = 1) -> Any:
    return messages.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=mechanism)


async def alter(node: AnsweringNode, *asked: Any, by: str = "PLAINTEXT") -> dict[str, int]:
    """Error codes by user."""
    answer = await node.ask(
        "AlterUserScramCredentials", 0, by=by, deletions=[each for each in asked if not hasattr(each, "salt")],
        upsertions=[each for each in asked if hasattr(each, "salt")])
    assert all(bool(each.error_message) == (each.error_code not in (0, 31)) for each in answer.results)
    return {each.user: each.error_code for each in answer.results}


async def described(node: AnsweringNode, *names: str) -> dict[str, Any]:
    named = messages.DescribeUserScramCredentialsRequest.UserName
    answer = await node.ask("DescribeUserScramCredentials", 0, users=[named(name=each) for each in names] or None)
    assert answer.error_code == 0
    return {
        each.user: each.error_code or {info.mechanism: info.iterations for info in each.credential_infos}
        for each in answer.results}


def stored(world: ControlWorld) -> set[str]:
    return {key.removeprefix(KEYS.prefix) for key in world.model._kvs if "/scram/" in key}


def test_what_was_set_is_described_and_removed() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, **OPEN)
        assert await described(node) == {}
        assert await alter(node, setting("alice"), setting("b/ob", iterations=16384)) == {"alice": 0, "b/ob": 0}
        assert await alter(node, setting("alice", mechanism=2, salted_password=bytes(64))) == {"alice": 0}
        assert await described(node) == {"alice": {1: 4096, 2: 4096}, "b/ob": {1: 16384}}
        assert await described(node, "b/ob", "carol") == {"b/ob": {1: 16384}, "carol": 91}
        assert await described(node, "alice", "alice") == {"alice": 92}
        assert stored(world) == {
            "scram/secret", "scram/users/scram-sha-256/alice", "scram/users/scram-sha-512/alice",
            "scram/users/scram-sha-256/b%2Fob"}
        assert await alter(node, removal("alice"), removal("b/ob", 2)) == {"alice": 0, "b/ob": 91}
        assert await described(node) == {"alice": {2: 4096}, "b/ob": {1: 16384}}

    run(scenario)


def test_the_node_that_answers_knows_the_credential() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, **OPEN)
        for iterations in (4096, 5000, 6000):
            await alter(node, setting("alice", iterations=iterations))
            found = node.view.scram.find(SHA_256, "alice")
            assert (found.iterations, found.decoy) == (iterations, False)
            assert (found.stored_key, found.server_key) == keys_of(SHA_256, SALTED)
        await alter(node, removal("alice"))
        assert node.view.scram.find(SHA_256, "alice").decoy
        assert SALTED.hex() not in repr(world.model._kvs) and repr(SALTED)[2:-1] not in repr(world.model._kvs)

    run(scenario)


def test_the_secret_of_decoys_is_made_once() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, **OPEN)
        await alter(node, removal("alice"))
        assert stored(world) == set()
        await alter(node, setting("alice"))
        secret = node.view.scram.secret
        assert secret is not None and len(secret) == 32
        await alter(node, setting("bob"))
        await alter(node, removal("bob"))
        assert node.view.scram.secret == secret

    run(scenario)


def test_each_user_has_its_own_result() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, **OPEN)
        assert await alter(node, setting("good")) == {"good": 0}
        found = await alter(
            node, setting("few", iterations=4095), setting("many", iterations=16385), setting("odd", mechanism=3),
            setting("", ), setting("bad\nname"), setting("saltless", salt=b""), setting("short", salted_password=b"x"),
            setting("twice"), setting("twice", mechanism=2, salted_password=bytes(64)), removal("good"),
            setting("alice"), removal("nowhere"), removal("odd2", 0))
        assert found == {
            "few": 93, "many": 93, "odd": 33, "": 93, "bad\nname": 93, "saltless": 93, "short": 93, "twice": 92,
            "good": 0, "alice": 0, "nowhere": 91, "odd2": 33}
        assert set(await described(node)) == {"alice"}
        assert await alter(node, setting("alice"), removal("alice")) == {"alice": 92}

    run(scenario)


def test_a_salted_password_is_refused_without_tls() -> None:
    """Abuse case 19: it is enough to log in. A removal carries no secret."""

    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        assert await alter(node, setting("alice")) == {"alice": int(ErrorCode.POLICY_VIOLATION)}
        assert await alter(node, removal("alice")) == {"alice": 91}
        assert stored(world) == set()

    run(scenario)


def test_it_needs_a_permission() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(
            world, authorizer_class_name="acl", super_users="User:root;User:ANONYMOUS", **OPEN)
        node.sessions["EXTERNAL"].principal = user("alice")
        assert await alter(node, setting("bob"), removal("carol"), by="EXTERNAL") == {"bob": 31, "carol": 31}
        answer = await node.ask("DescribeUserScramCredentials", 0, by="EXTERNAL", users=None)
        assert (answer.error_code, answer.results) == (31, [])
        assert await alter(node, setting("bob")) == {"bob": 0}

    run(scenario)

"""Users' credentials in the image: found, forgotten, and indistinguishable from those of users who do not exist."""

from __future__ import annotations

import random

from hapax.codec.metadata import ScramCredentialRecord, ScramSecretRecord
from hapax.core.sasl.scram_keys import ScramCredential, ScramMechanism, shape_of
from hapax.runtime.ports import KeyValue
from hapax.runtime.scram_image import ScramImage

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def made(mechanism: ScramMechanism = SHA_256, iterations: int = 4096, salt: bytes = b"abc123") -> ScramCredential:
    size = mechanism.key_bytes
    return ScramCredential(mechanism, salt, b"k" * size, b"s" * size, iterations)


def stored(value: bytes, revision: int = 5) -> KeyValue:
    return KeyValue("key", value, revision, revision)


def image(*users: tuple[str, ScramCredential]) -> ScramImage:
    found = ScramImage(random.Random(1))
    found.apply_secret(stored(ScramSecretRecord(b"s" * 32).encode()))
    for name, credential in users:
        found.apply(credential.mechanism, name, stored(ScramCredentialRecord(credential).encode()))
    return found


def test_a_credential_is_that_of_its_mechanism() -> None:
    found = image(("alice", made()), ("bob", made(SHA_512)))
    assert found.find(SHA_256, "alice") == made()
    assert found.find(SHA_512, "alice").decoy and found.find(SHA_256, "bob").decoy
    assert found.users() == ["alice", "bob"]
    assert found.of_user("alice") == {SHA_256: 4096} and found.of_user("carol") == {}
    found.apply(SHA_256, "alice", None)
    assert found.find(SHA_256, "alice").decoy and found.users() == ["bob"]


def test_any_credential_serves_a_password_in_clear() -> None:
    found = image(("alice", made(SHA_512)), ("bob", made()), ("bob", made(SHA_512)))
    assert found.find_for_plain("alice").mechanism is SHA_512
    assert found.find_for_plain("bob").mechanism is SHA_256
    assert found.find_for_plain("carol").decoy


def test_a_decoy_has_the_shape_that_some_user_s_credential_has_now() -> None:
    found = image(("alice", made(iterations=8192, salt=bytes(64))))
    assert shape_of(found.find(SHA_256, "mallory")) == shape_of(made(iterations=8192, salt=bytes(range(64))))
    assert found.find_for_plain("mallory").iterations == 8192
    found.apply(SHA_256, "alice", stored(ScramCredentialRecord(made(iterations=16384)).encode(), 6))
    assert found.find(SHA_256, "mallory").iterations == 16384
    found.apply(SHA_256, "alice", None)
    assert found.find(SHA_256, "mallory").iterations == 4096


def test_passwords_in_clear_have_decoys_of_the_credential_that_they_are_compared_with() -> None:
    found = image(("alice", made(iterations=8192)), ("alice", made(SHA_512, 16384)))
    assert found.find_for_plain("mallory").iterations == 8192
    found.apply(SHA_256, "alice", None)
    decoy = found.find_for_plain("mallory")
    assert (decoy.mechanism, decoy.iterations) == (SHA_512, 16384)


def test_a_credential_that_is_removed_or_replaced_is_told() -> None:
    found, told = image(("alice", made())), []
    found.on_withdrawn(lambda mechanism, name: told.append((mechanism, name)))
    found.apply(SHA_512, "alice", stored(ScramCredentialRecord(made(SHA_512)).encode()))
    found.apply(SHA_256, "alice", stored(ScramCredentialRecord(made()).encode(), 6))  # the same one again
    assert told == [] and found.is_current("alice", made())
    found.apply(SHA_256, "alice", stored(ScramCredentialRecord(made(iterations=5000)).encode(), 7))
    assert told == [(SHA_256, "alice")] and not found.is_current("alice", made())
    found.apply(SHA_512, "alice", None)
    found.apply(SHA_512, "alice", None)
    assert told == [(SHA_256, "alice"), (SHA_512, "alice")] and not found.is_current("alice", made(SHA_512))


def test_nodes_agree_on_decoys() -> None:
    assert image().find(SHA_256, "mallory") == image().find(SHA_256, "mallory")
    alone = ScramImage(random.Random(1))
    assert alone.find(SHA_256, "mallory") == alone.find(SHA_256, "mallory")
    assert alone.find(SHA_256, "mallory").salt != image().find(SHA_256, "mallory").salt


def test_nodes_agree_in_whatever_order_they_came_to_know_the_users() -> None:
    users = [(f"user{number}", made(iterations=4096 + number)) for number in range(200)]
    one, other = image(*users), image(*reversed(users))
    for each in (one, other):
        for name, credential in users[10:90]:
            each.apply(SHA_256, name, None)
            each.apply(SHA_256, name, stored(ScramCredentialRecord(credential).encode(), 6))
        for name, _ in users[:5]:
            each.apply(SHA_256, name, None)
    for number in range(50):
        assert one.find(SHA_256, f"unknown{number}") == other.find(SHA_256, f"unknown{number}")
        assert one.find_for_plain(f"unknown{number}") == other.find_for_plain(f"unknown{number}")

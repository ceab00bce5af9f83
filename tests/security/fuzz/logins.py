"""Tokens of each SASL mechanism, JSON Web Tokens, and sets of keys."""

from __future__ import annotations

import base64
import json
import random
from typing import Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from hapax.codec.json_web_tokens import UnknownKey, read_key_set, verify
from hapax.core.sasl.exchange import Challenge, Failure, PasswordCheck, Success, TokenCheck
from hapax.core.sasl.oauthbearer import OAuthBearerExchange
from hapax.core.sasl.plain import PlainExchange
from hapax.core.sasl.scram import ScramExchange
from hapax.core.sasl.scram_keys import ScramMechanism, decoy, default_shape
from security.fuzz.target import mutated, text_of
from unit.codec.test_json_web_tokens import CLAIMS, EC_KEY, KEYS, NOW, RSA_KEY, RULES, entry
from unit.core.sasl.test_scram import ALICE, SECRET, credential, proof_of

ADMIN: Final = {mechanism: credential("of the administrator", mechanism) for mechanism in ScramMechanism}
_OTHER: Final = ec.generate_private_key(ec.SECP256R1())
_WEAK: Final = rsa.generate_private_key(65537, 1024)


class Login(NamedTuple):
    """Of a client that knows the password of alice, or none."""

    header: bytes
    name: bytes
    nonce: bytes
    password: str
    spoil_first: int
    spoil_last: int
    """Seeds of changes to what is sent; 0: it is sent as it is."""
    replayed: bool
    """The last message is that of another, honest exchange."""
    extension: bytes
    cut: int
    """Bytes of the nonce that the last message leaves out (CVE-2024-56128)."""
    repeated: bytes
    """The header that the last message says; honest ones say the first message's."""


class Scram:
    kinds: Final = frozenset({"refused at first", "refused at last", "let in"})

    def __init__(self, mechanism: ScramMechanism) -> None:
        self.name = mechanism.sasl_name.lower()
        self._mechanism = mechanism

    def make(self, rng: random.Random) -> Login:
        if rng.random() < 0.5:  # honest but for one thing at most, so that many come to the last message
            honest = Login(b"n,,", b"alice", b"client", "secret", 0, 0, False, b"", 0, b"n,,")
            return honest._replace(**rng.choice((
                {}, {"password": "guess"}, {"spoil_last": rng.randrange(1, 1 << 30)}, {"replayed": True},
                {"extension": b",x=y"}, {"cut": rng.choice((1, len(b"server")))}, {"repeated": b"y,,"},
                {"header": b"n,a=admin,", "repeated": b"n,a=admin,"})))
        header = rng.choice((b"n,,", b"n,,", b"y,,", b"n,a=admin,", b"n,a=alice,", b"p=tls-unique,,", b"n,a=", b",,"))
        return Login(
            header,
            rng.choice((b"alice", b"alice", b"admin", b"a=2Cb", b"=", b"alice,n=admin", b"mallory", b"ali\xc2\xadce")),
            rng.choice((b"client", b"c" * 1025, b"", b"a,b", b"\xff", b"c")),
            rng.choice(("secret", "secret", "", "guess")), rng.choice((0, 0, rng.randrange(1 << 30))),
            rng.choice((0, 0, rng.randrange(1 << 30))), rng.random() < 0.1, rng.choice((b"", b"", b",x=y", b",m=z")),
            rng.choice((0, 0, 0, 1, len(b"server"))), header)

    def check(self, made: Login) -> str:
        found = self._exchange("server")
        bare = b"n=" + made.name + b",r=" + made.nonce
        first = _spoilt(made.header + bare, made.spoil_first)
        answer = found.step(first)
        if not isinstance(answer, Challenge):
            assert isinstance(answer, Failure)
            assert isinstance(found.step(first), Failure), "an exchange has one end"
            return "refused at first"
        salt, iterations = (answer.token.split(b",")[index][2:] for index in (1, 2))
        challenge = answer.token
        if made.replayed:
            other = self._exchange("another")
            honest = b"n=alice,r=client"
            challenged = other.step(b"n,," + honest)
            assert isinstance(challenged, Challenge)
            last = self._last(b"n,,", honest, challenged.token, "secret", b"", 0)
            assert isinstance(other.step(last), Success)
        else:
            last = self._last(made.repeated, bare, challenge, made.password, made.extension, made.cut,
                              base64.b64decode(salt), int(iterations))
        outcome = found.step(_spoilt(last, made.spoil_last))
        assert isinstance(outcome, (Success, Failure))
        assert isinstance(found.step(last), Failure), "an exchange has one end"
        if isinstance(outcome, Failure):
            return "refused at last"
        assert not made.cut or made.spoil_last, "a part of the nonce was enough"
        assert made.password == "secret" and not made.replayed, "it does not know the password"
        assert made.repeated == made.header or made.spoil_first, "it began with another header"
        assert b"a=admin" not in first.split(b",")[1], "it gets the rights of another"
        assert outcome.name == "alice", "it knows the password of alice alone"
        return "let in"

    def _exchange(self, nonce: str) -> ScramExchange:
        mechanism = self._mechanism
        known = {"alice": ALICE[mechanism], "admin": ADMIN[mechanism]}
        return ScramExchange(lambda name: known.get(name) or decoy(SECRET, name, [default_shape(mechanism)]), nonce)

    def _last(self, header: bytes, bare: bytes, challenge: bytes, password: str, extension: bytes, cut: int,
              salt: bytes = b"salt", iterations: int = 4096) -> bytes:
        nonce = challenge.split(b",")[0]
        nonce = nonce[: len(nonce) - cut]
        without = b"c=" + base64.b64encode(header) + b"," + nonce + extension
        said = bare + b"," + challenge + b"," + without
        return without + b",p=" + proof_of(password, said, salt, iterations, self._mechanism)


def _spoilt(message: bytes, seed: int) -> bytes:
    return mutated(message, random.Random(seed)) if seed else message


class Plain:
    name = "plain"
    kinds: Final = frozenset({"refused", "to be checked"})

    def make(self, rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return rng.randbytes(rng.randrange(60))
        message = b"\0".join((
            rng.choice((b"", b"alice", b"admin")),
            rng.choice((b"alice", b"admin", b"", b"n" * 1025, "\u00ad".encode())),
            rng.choice((b"secret", b"", b"p" * 4097, "\u00fc".encode()))))
        return mutated(message, rng) if rng.random() < 0.5 else message

    def check(self, made: bytes) -> str:
        found = PlainExchange(lambda name: ALICE[ScramMechanism.SCRAM_SHA_256])
        step = found.step(made)
        assert isinstance(found.step(made), Failure), "an exchange has one end"
        if isinstance(step, Failure):
            return "refused"
        assert isinstance(step, PasswordCheck)
        authzid, given, password = made.decode().split("\0")
        assert authzid in ("", given), "it gets the rights of another"
        assert step.password == password and repr(step) == f"PasswordCheck({step.name!r})", "it shows the password"
        assert step.name.strip() and "\0" not in step.name
        return "to be checked"


class OAuthBearer:
    name = "oauthbearer"
    kinds: Final = frozenset({"refused", "refused after its word", "the rights of another", "let in"})

    def make(self, rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return rng.randbytes(rng.randrange(80))
        pairs = rng.choices(
            (b"auth=Bearer aa.bb.cc", b"auth=bearer aa.bb.", b"host=h", b"port=1", b"auth=Basic x", b"auth=Bearer a.b"),
            k=rng.choice((1, 1, 1, 2, 3)))
        authzid = rng.choice((b"", b"", b"a=alice", b"a=admin", b"a=ali=2Cce"))
        message = b"n," + authzid + b",\x01" + b"".join(pair + b"\x01" for pair in pairs) + b"\x01"
        return mutated(message, rng) if rng.random() < 0.5 else message

    def check(self, made: bytes) -> str:
        found = OAuthBearerExchange()
        step = found.step(made)
        if isinstance(step, Failure):
            return "refused"
        if isinstance(step, Challenge):
            assert isinstance(found.step(b"n,,\x01auth=Bearer aa.bb.cc\x01\x01"), Failure), "it asks once more"
            assert isinstance(found.step(b"\x01"), Failure)
            return "refused after its word"
        assert isinstance(step, TokenCheck)
        assert step.token.encode() in made and step.token not in repr(step) and step.token.count(".") == 2
        outcome = found.checked(Success("alice"))
        authzid = made.split(b",")[1]
        assert isinstance(outcome, Success) is (authzid in (b"", b"a=alice")), "it gets the rights of another"
        assert isinstance(found.step(made), Failure), "an exchange has one end"
        return "let in" if isinstance(outcome, Success) else "the rights of another"


class Signed(NamedTuple):
    header: dict[str, Any]
    claims: dict[str, Any]
    key: str
    spoil: int


class Tokens:
    name = "jwt"
    kinds: Final = frozenset({"refused", "unknown key", "let in"})
    _values: Final = {
        "iss": ("https://issuer", "https://issuer", "https://else", None, ["https://issuer"], 7),
        "aud": ("hapax", ["x", "hapax"], "other", "else", [], None, {"hapax": 1}),
        "sub": ("alice", "alice", "", "a\nb", "ANONYMOUS", 7, None, "x" * 1025, "system:serviceaccount:team:loader"),
        "exp": (NOW + 600, NOW + 600, NOW - 29, NOW - 30, None, True, "soon", 1e300, float("nan"), -1, 2**70),
        "nbf": (NOW, NOW + 30, NOW + 31, "x", True), "iat": (NOW, NOW + 31, -5, []),
    }

    def make(self, rng: random.Random) -> Signed:
        claims = dict(CLAIMS)
        if rng.random() < 0.5:  # honest but for one thing at most
            kid, key = rng.choice((("ec", "ec"), ("rsa", "rsa"), ("ps", "ps"), ("ps", "rsa"), ("ec", "other")))
            told: dict[str, Any] = {"kid": kid}
            if kid == key and rng.random() < 0.3:
                told["crit"] = ["exp"]
            elif kid == key and rng.random() < 0.6:
                name = rng.choice(sorted(self._values))
                claims[name] = rng.choice(self._values[name])
            return Signed(told, claims, key, 0)
        for name, values in self._values.items():
            if rng.random() < 0.3:
                claims[name] = rng.choice(values)
        header: dict[str, Any] = {"kid": rng.choice(("ec", "ec", "ec", "rsa", "ed", "new", "", 7))}
        if rng.random() < 0.1:
            header[rng.choice(("crit", "b64", "jwk", "x5u"))] = rng.choice((["exp"], True, "https://evil"))
        return Signed(header, claims, rng.choice(("ec", "ec", "ec", "rsa", "other")),
                      rng.choice((0, 0, rng.randrange(1, 1 << 30))))

    def check(self, made: Signed) -> str:
        key: Any = {"ec": EC_KEY, "rsa": RSA_KEY, "ps": RSA_KEY, "other": _OTHER}[made.key]
        claims = {name: value for name, value in made.claims.items() if value is not None}
        honest = jwt.api_jws.PyJWS().encode(
            json.dumps(claims).encode(), key, {"rsa": "RS256", "ps": "PS256"}.get(made.key, "ES256"),
            headers={k: v for k, v in made.header.items() if k != "b64"} | ({"typ": "JWT"} if made.spoil else {}),
        ) if isinstance(made.header["kid"], str) else "e30.e30.AA"
        text = text_of(_spoilt(honest.encode(), made.spoil))
        outcome = verify(text, KEYS, RULES, NOW)
        if isinstance(outcome, UnknownKey):
            return "unknown key"
        if isinstance(outcome, Failure):
            return "refused"
        assert made.key == made.header["kid"], "another key has signed it"
        assert _decoded(text) == _decoded(honest), "what was changed after it was signed is believed"
        assert "crit" not in made.header
        assert claims["iss"] == RULES.issuer
        audience = claims["aud"]
        assert set(audience if isinstance(audience, list) else [audience]) & set(RULES.audiences)
        assert claims["exp"] + RULES.skew_s > NOW and claims["exp"] < 2**60
        assert all(claims[name] - RULES.skew_s <= NOW for name in ("nbf", "iat") if name in claims)
        assert outcome.name == claims["sub"] and outcome.name.isprintable() and outcome.name != "ANONYMOUS"
        return "let in"


def _decoded(token: str) -> list[bytes]:
    """Base64 has several spellings of the same bytes."""
    return [base64.urlsafe_b64decode(part + "==") for part in token.split(".")]


class KeySets:
    name = "jwks"
    kinds: Final = frozenset({"no key set", "1 keys", "2 keys"})

    def make(self, rng: random.Random) -> bytes:
        entries: list[Any] = [
            entry(key, kid) for key, kid in ((EC_KEY, "ec"), (RSA_KEY, "rsa"), (_WEAK, "weak")) if rng.random() < 0.8]
        for each in entries:
            for name in rng.sample(sorted(each), rng.randrange(3)):
                each[name] = rng.choice((None, 7, "", "AA", "RSA", "EC", "oct", ["EC"], {"x": 1}, "\ud800"))
        document = json.dumps({"keys": rng.choice((entries, [entries], {"ec": entries}, None, entries))}).encode()
        return mutated(document, rng) if rng.random() < 0.5 else document

    def check(self, made: bytes) -> str:
        try:
            found = read_key_set(made)
        except ValueError:
            return "no key set"
        assert all(key.algorithms and not any(each.startswith(("HS", "none")) for each in key.algorithms)
                   for key in found.values())
        assert "weak" not in found
        return f"{len(found)} keys"

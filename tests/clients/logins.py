"""A real cluster whose clients log in, its users, and an issuer of tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from clients.secured import Secured

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "hapax"
PASSWORD: Final = "secret, with = and ü"
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")


class Logins(NamedTuple):
    tls: Secured
    key: ec.EllipticCurvePrivateKey

    @property
    def bootstrap(self) -> str:
        return self.tls.bootstrap

    @property
    def key_set(self) -> Path:
        return self.tls.folder / "keys.json"

    def write_keys(self, **keys: ec.EllipticCurvePrivateKey) -> None:
        """By key id."""
        self.key_set.write_text(json.dumps({"keys": [
            {**json.loads(ECAlgorithm.to_jwk(key.public_key())), "kid": kid} for kid, key in keys.items()]}))

    def token(self, name: str = "alice", *, seconds: float = 600, kid: str = "first", key: Any = None,
              algorithm: str = "ES256", **claims: Any) -> str:
        now = time.time()
        return jwt.encode(
            {"iss": ISSUER, "aud": AUDIENCE, "sub": name, "iat": now, "exp": now + seconds, **claims},
            key or self.key, algorithm, headers={"kid": kid})

    def settings(self, *more: str) -> list[str]:
        """Of a local cluster that has the listener besides its own, which may set the first passwords."""
        return [
            f"listeners=SASL_SSL://127.0.0.1:{self.tls.port}+node.id",
            f"ssl.certificate.location={self.tls.folder / 'node.crt'}",
            f"ssl.key.location={self.tls.folder / 'node.key'}",
            "sasl.enabled.mechanisms=" + ",".join(MECHANISMS),
            f"sasl.oauthbearer.expected.issuer={ISSUER}", f"sasl.oauthbearer.expected.audience={AUDIENCE}",
            f"sasl.oauthbearer.jwks.endpoint.url={self.key_set.as_uri()}",
            "listener.name.plaintext.sasl.allow.secrets.without.tls=true", *more]

    def librdkafka(self, mechanism: str, name: str = "alice", password: str = PASSWORD, **more: Any) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism,
            "ssl.ca.location": str(self.tls.folder / "ca.crt"), "log_level": 0, **more}
        if mechanism == "OAUTHBEARER":
            return {**settings, "oauth_cb": lambda config: (self.token(name), time.time() + 600)}
        return {**settings, "sasl.username": name, "sasl.password": password}


    def java(self, mechanism: str) -> Path:
        """A file of settings for Kafka's own client."""
        module = {"PLAIN": "plain.PlainLoginModule", "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule"}.get(
            mechanism, "scram.ScramLoginModule")
        who = "" if mechanism == "OAUTHBEARER" else f' username="alice" password="{PASSWORD}"'
        settings = {
            "security.protocol": "SASL_SSL", "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.tls.folder / "ca.crt"), "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required{who};"}
        if mechanism == "OAUTHBEARER":
            (self.tls.folder / "token").write_text(self.token())
            settings["sasl.oauthbearer.token.endpoint.url"] = (self.tls.folder / "token").as_uri()
            settings["sasl.login.callback.handler.class"] = (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler")
        path = self.tls.folder / f"{mechanism}.properties"
        # Properties are read as Latin-1.
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()).encode(
            "ascii", "backslashreplace").decode().replace("\\xfc", "\\u00fc"))
        return path


def logins(tls: Secured) -> Logins:
    made = Logins(tls, ec.generate_private_key(ec.SECP256R1()))
    made.write_keys(first=made.key)
    return made


def set_password(bootstrap: str, name: str, password: str = PASSWORD, iterations: int = 4096, **more: Any) -> None:
    """For both mechanisms."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **more})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        for done in admin.alter_user_scram_credentials([UserScramCredentialUpsertion(
                name, ScramCredentialInfo(mechanism, iterations), password.encode())]).values():
            done.result(30)

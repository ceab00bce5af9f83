"""Fuzzers of what strangers send and of what administrators write: handshakes, tokens, filters, rules, lines.

Some inputs are bytes by chance, others honest ones with parts changed. Each target has a model that says what may come
of an input: none raises, none takes long, none lets in who should not be. Inputs are made from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hapax.core.sasl.scram_keys import ScramMechanism
from security.fuzz.handshakes import Handshakes
from security.fuzz.logins import KeySets, OAuthBearer, Plain, Scram, Tokens
from security.fuzz.target import Found, Target, fuzz
from security.fuzz.texts import AclFilters, JaasLines, PrincipalNames

TARGETS: Final[dict[str, Callable[[], Target]]] = {
    "tls": Handshakes,
    "scram-sha-256": lambda: Scram(ScramMechanism.SCRAM_SHA_256),
    "scram-sha-512": lambda: Scram(ScramMechanism.SCRAM_SHA_512),
    "plain": Plain,
    "oauthbearer": OAuthBearer,
    "jwt": Tokens,
    "jwks": KeySets,
    "acl-filters": AclFilters,
    "principal-rules": PrincipalNames,
    "jaas": JaasLines,
}

__all__ = ["TARGETS", "Found", "Target", "fuzz"]

"""Clients that log in (SASL) at a listener of their own, and whose sessions end every few seconds."""

from __future__ import annotations

from typing import Final

from hapax.client import Admin
from hapax.client.environment import ClientPorts
from hapax.client.users import ScramUpsertion
from hapax.core.sasl.scram_keys import ScramMechanism

PORT_OFFSET: Final = 500
"""From a node's own listener to the one with logins."""
NODE_SETTINGS: Final = ("connections.max.reauth.ms=2500", "sasl.allow.secrets.without.tls=true")
CLIENT_SETTINGS: Final = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "program",
    "sasl.password": "of the simulation"}


def listeners(port: int) -> str:
    """Of a node."""
    return f"PLAINTEXT://sim:{port},SASL_PLAINTEXT://sim:{port + PORT_OFFSET}"


async def create_user(servers: str, ports: ClientPorts) -> None:
    """`servers`: listeners without logins."""
    settings = {"bootstrap.servers": servers, "sasl.allow.secrets.without.tls": "true"}
    async with Admin(settings, ports=ports) as admin:
        await admin.alter_user_scram_credentials([ScramUpsertion(
            CLIENT_SETTINGS["sasl.username"], ScramMechanism.SCRAM_SHA_256, CLIENT_SETTINGS["sasl.password"])])

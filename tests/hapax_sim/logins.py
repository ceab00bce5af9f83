"""Clients that log in (SASL) at a listener of their own, and whose sessions end every few seconds."""

from __future__ import annotations

from typing import Final

from hapax.client import Admin
from hapax.client.environment import ClientPorts
from hapax.client.users import ScramUpsertion
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import user
from hapax.core.access.resources import CLUSTER_NAME, Operation, Pattern, Permission, ResourceType
from hapax.core.sasl.scram_keys import ScramMechanism

PORT_OFFSET: Final = 500
"""From a node's own listener to the one with logins."""
NODE_SETTINGS: Final = (
    "connections.max.reauth.ms=2500", "sasl.allow.secrets.without.tls=true",
    "listener.name.sasl_plaintext.sasl.enabled.mechanisms=SCRAM-SHA-256,PLAIN",
    # Nodes, and who administers, use the listener without logins; programs have what `permit` gives them.
    "authorizer.class.name=acl", "super.users=User:ANONYMOUS",
)
CLIENT_SETTINGS: Final = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "program",
    "sasl.password": "of the simulation", "sasl.allow.secrets.without.tls": "true"}
MECHANISMS: Final = ("SCRAM-SHA-256", "PLAIN")
"""Of programs, by turns."""
PROGRAM: Final = user(CLIENT_SETTINGS["sasl.username"])
RIGHTS: Final = (
    *((ResourceType.TOPIC, "*", each) for each in (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER)),
    *((ResourceType.GROUP, "*", each) for each in (Operation.READ, Operation.DELETE)),
    (ResourceType.TRANSACTIONAL_ID, "*", Operation.WRITE), (ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALTER),
)
"""What programs need: resource type, name and operation."""


def listeners(port: int) -> str:
    """Of a node."""
    return f"PLAINTEXT://sim:{port},SASL_PLAINTEXT://sim:{port + PORT_OFFSET}"


def without(servers: str) -> str:
    """The listeners without logins of the same nodes."""
    return ",".join(f"sim:{int(each.rpartition(':')[2]) - PORT_OFFSET}" for each in servers.split(","))


def binding(kind: ResourceType, name: str, operation: Operation, permission: Permission) -> Binding:
    return Binding(kind, name, Pattern.LITERAL, PROGRAM, "*", operation, permission)


async def permit(servers: str, ports: ClientPorts) -> None:
    async with Admin({"bootstrap.servers": servers}, ports=ports) as admin:
        await admin.create_acls([binding(*right, Permission.ALLOW) for right in RIGHTS])


async def create_user(servers: str, ports: ClientPorts) -> None:
    """`servers`: listeners without logins."""
    settings = {"bootstrap.servers": servers, "sasl.allow.secrets.without.tls": "true"}
    async with Admin(settings, ports=ports) as admin:
        await admin.alter_user_scram_credentials([ScramUpsertion(
            CLIENT_SETTINGS["sasl.username"], ScramMechanism.SCRAM_SHA_256, CLIENT_SETTINGS["sasl.password"])])

"""ACLs that every node knows: the node that answers a change has it at once, the others follow within moments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hapax.client.acls import EVERY_ACL
from hapax.runtime.network import TcpNetwork
from hapax.runtime.tls import TlsCertificates, TlsOptions
from hapax.wire.messages import DescribeAclsRequest, MetadataRequest
from hapax.wire.peer import Peer
from integration.waiting import until

_EVERY = DescribeAclsRequest(
    resource_type_filter=EVERY_ACL.kind, resource_name_filter=None, pattern_type_filter=EVERY_ACL.pattern,
    principal_filter=None, host_filter=None, operation=EVERY_ACL.operation, permission_type=EVERY_ACL.permission)


def known_everywhere(settings: Mapping[str, str]) -> None:
    """Waits until all nodes decide by the same ACLs. For the time after a change that was answered: the answering node
    has it, so then all have it. `settings`: of a native client that may describe the cluster."""
    asyncio.run(_known_everywhere(settings))


async def _known_everywhere(settings: Mapping[str, str]) -> None:
    tls = None
    if settings.get("security.protocol") == "SSL":
        tls = TlsCertificates(TlsOptions(
            authorities_location=settings["ssl.ca.location"], chain_location=settings["ssl.certificate.location"],
            key_location=settings["ssl.key.location"]), "client")
    network = TcpNetwork()
    peers: list[Peer] = []
    try:
        host, _, port = settings["bootstrap.servers"].rpartition(":")
        peers.append(await Peer.connect(network, host, int(port), tls=tls))
        nodes = await peers[0].call(MetadataRequest(topics=[]))
        peers += [await Peer.connect(network, node.host, node.port, tls=tls) for node in nodes.brokers]

        async def the_same() -> bool:
            answers = [await peer.call(_EVERY) for peer in peers]
            assert all(answer.error_code == 0 for answer in answers), answers
            return len({repr(answer.resources) for answer in answers}) == 1

        await until(the_same, "agreement of the nodes on the ACLs")
    finally:
        for peer in peers:
            peer.close()

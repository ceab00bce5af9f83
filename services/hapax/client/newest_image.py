"""Every topic that any node knows. A node's image of the cluster may lag behind the others'."""

from __future__ import annotations

import asyncio
from typing import Any

from hapax.client.cluster import ClusterClient
from hapax.client.metadata import Topic
from hapax.wire import messages
from hapax.wire.image_revision import image_revision
from hapax.wire.peer import PeerError


async def newest_topics(cluster: ClusterClient, timeout_ms: int) -> dict[str, Topic]:
    """Every topic, including internal ones, as the newest image of all nodes says. A topic whose records were
    acknowledged before the call is among them: its leaders have known it. Raises HapaxError, also where a node that is
    alive does not answer within `timeout_ms`: it may be the one that knows."""

    async def attempt() -> dict[str, Topic]:
        await cluster.all_topics()  # lists the nodes that are there now
        answers: dict[int, Any] = {}
        silent: dict[int, PeerError] = {}

        async def ask(node: int) -> None:
            try:
                peer = await cluster.peer(node)
                answers[node] = await peer.call(messages.MetadataRequest(topics=None, allow_auto_topic_creation=False))
            except PeerError as error:
                silent[node] = error

        found: dict[str, Topic] = {}
        while unasked := cluster.nodes.keys() - answers.keys() - silent.keys():
            await asyncio.gather(*(ask(node) for node in sorted(unasked)))
            if answers:
                found = cluster.heard(answers[_newest(answers)])  # may name nodes that the others have not heard of
        if not (answers or silent):
            raise PeerError("the cluster names no node")
        if silent:
            await _check_gone(cluster, answers, silent)
        return found

    return await cluster.within(timeout_ms, "listing topics", attempt)


async def _check_gone(cluster: ClusterClient, answers: dict[int, Any], silent: dict[int, PeerError]) -> None:
    """Coordinators are listed for a while after they have left. Raises PeerError for a node that has not."""
    if not answers:
        raise next(iter(silent.values()))
    described = await (await cluster.peer(_newest(answers))).call(messages.DescribeClusterRequest())
    for each in described.brokers:
        if each.broker_id in silent:
            raise silent[each.broker_id]


def _newest(answers: dict[int, Any]) -> int:
    """The node whose image is the newest."""
    return max(answers, key=lambda node: image_revision(answers[node]) or 0)

"""Finds the other clusters of this Kubernetes cluster: one list of BrokerPools every half a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from hapax.runtime import telemetry
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.clusters import Clusters
from hapax_operator.resources import GROUP, VERSION

log = telemetry.logger("clusters")

_POOLS: Final = f"/apis/{GROUP}/{VERSION}/brokerpools"
_EVERY_S: Final = 30.0
_AGAIN_S: Final = 5.0
_ANNOUNCED_S: Final = 0.5
_ANNOUNCED_LOOKS: Final = 40
"""For 20 seconds: a BrokerPool that cannot be made, because its StatefulSet is gone, must hold up nothing else."""


async def look(clusters: Clusters, api: KubeApi) -> bool:
    """True: the other clusters are not those of before. Raises KubeUnavailable, KubeRefused."""
    if not clusters.own:
        return False
    return clusters.saw((await api.listed(_POOLS, ""))["items"])


async def first_look(clusters: Clusters, api: KubeApi, announces: bool = False) -> None:
    """Returns when the other clusters are known: an operator that does not know them takes its own for the only one.
    `announces`: this cluster's BrokerPool is being made. Who looks only once its own is there cannot miss another that
    does the same at this moment: one of the two was there first."""
    left = _ANNOUNCED_LOOKS if announces else 0
    while True:
        try:
            await look(clusters, api)
            if clusters.announced or not clusters.own or not left:
                return
            left -= 1
            await asyncio.sleep(_ANNOUNCED_S)
        except (KubeUnavailable, KubeRefused) as error:
            log.warning("cannot look for other clusters, trying again; nothing is reconciled until then", error=error)
            await asyncio.sleep(_AGAIN_S)


async def keep_looking(clusters: Clusters, api: KubeApi, changed: Callable[[], None]) -> None:
    """Runs until it is cancelled."""
    while True:
        await asyncio.sleep(_EVERY_S)
        try:
            if await look(clusters, api):
                log.info("the clusters beside this one have changed", clusters=",".join(clusters.others))
                changed()
        except (KubeUnavailable, KubeRefused) as error:
            log.warning("cannot look for other clusters", error=error)

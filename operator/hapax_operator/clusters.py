"""Which of several clusters in one Kubernetes cluster a resource belongs to.

A resource names its cluster by the label hapax.dev/cluster, as NAMESPACE.NAME of the release. Without the label it
belongs to the cluster that its status names, and before a status says so, to the only one in its own namespace, or to
the only cluster there is. Among several, none acts on it until it has the label. The clusters are known by their
BrokerPools. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from hapax_operator.conditions import Condition
from hapax_operator.resources import CLUSTER, Meta

_POOL_SUFFIX: Final = "-broker"


class Clusters:
    """`own`: this operator's cluster, as NAMESPACE.NAME; empty: it acts on every resource."""

    def __init__(self, own: str = "") -> None:
        self.own = own
        self.others: tuple[str, ...] = ()
        self.announced = False
        """Whether the last BrokerPools were seen with that of this cluster, so that others see it too."""

    def owns(self, meta: Meta) -> bool:
        if not self.own:
            return True
        return meta.cluster == self.own or (not meta.cluster and self._nearest(meta) == (self.own,))

    def unnamed(self, meta: Meta) -> bool:
        """Whether the resource has to say which cluster it means: it does not, or it means one that is not there. One
        that has taken the resource may be away for a moment, and comes back to it."""
        if not self.own:
            return False
        if meta.cluster:
            return meta.cluster not in (self.own, *self.others) and meta.taken_by != meta.cluster
        return len(self._nearest(meta)) > 1

    def _nearest(self, meta: Meta) -> tuple[str, ...]:
        """The clusters of the resource's namespace, or where none is there, all."""
        known = (self.own, *self.others)
        return tuple(each for each in known if each.partition(".")[0] == meta.ref.namespace) or known

    def question(self, meta: Meta) -> Condition:
        """The same from every operator, so that they do not write over each other."""
        known = ", ".join(sorted({self.own, *self.others}))
        if meta.cluster:
            why = f"the label {CLUSTER} names {meta.cluster}, which is not there: {known}"
            return Condition("Ready", "False", "ClusterUnknown", why)
        why = f"there are several clusters, name one by the label {CLUSTER}: {known}"
        return Condition("Ready", "False", "ClusterNotNamed", why)

    def saw(self, pools: Iterable[Mapping[str, Any]]) -> bool:
        """Takes all BrokerPools. True: the other clusters are not those of before."""
        named = {
            f"{each['metadata']['namespace']}.{each['metadata']['name'].removesuffix(_POOL_SUFFIX)}" for each in pools}
        self.announced = self.own in named
        former, self.others = self.others, tuple(sorted(named - {self.own}))
        return former != self.others

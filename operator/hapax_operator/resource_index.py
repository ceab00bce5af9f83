"""The resources as last seen, with indexes by topic, lease and producer, so that no look-up scans all resources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from hapax_operator.clusters import Clusters
from hapax_operator.resources import Meta, ProducerResource, Ref, Resource, SparkJobResource, TopicResource

_Resource = TypeVar("_Resource", TopicResource, ProducerResource, SparkJobResource)
_Key = TypeVar("_Key", str, Ref)


class ResourceIndex:
    """What belongs to other clusters is known, and left out where it says so."""

    def __init__(self, clusters: Clusters | None = None) -> None:
        self._clusters = clusters or Clusters()
        self._all: dict[Ref, Resource] = {}
        self._topics: dict[str, dict[Ref, TopicResource]] = {}
        self._producers: dict[Ref, ProducerResource] = {}
        self._leases: dict[str, dict[Ref, ProducerResource]] = {}
        self._jobs: dict[Ref, dict[Ref, SparkJobResource]] = {}
        """By producer."""

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._all

    def get(self, ref: Ref) -> Resource | None:
        return self._all.get(ref)

    def put(self, resource: Resource) -> Resource | None:
        """Returns the former state; None if it was unknown."""
        ref = resource.meta.ref
        former = self.pop(ref)
        self._all[ref] = resource
        if isinstance(resource, TopicResource):
            self._topics.setdefault(resource.topic, {})[ref] = resource
        elif isinstance(resource, ProducerResource):
            self._producers[ref] = resource
            if resource.lease is not None:
                self._leases.setdefault(resource.lease.name, {})[ref] = resource
        elif isinstance(resource, SparkJobResource):
            self._jobs.setdefault(resource.producer_ref, {})[ref] = resource
        return former

    def pop(self, ref: Ref) -> Resource | None:
        former = self._all.pop(ref, None)
        self._producers.pop(ref, None)
        if isinstance(former, TopicResource):
            _take(self._topics, former.topic, ref)
        elif isinstance(former, ProducerResource) and former.lease is not None:
            _take(self._leases, former.lease.name, ref)
        elif isinstance(former, SparkJobResource):
            _take(self._jobs, former.producer_ref, ref)
        return former

    def claimants(self, topic: str) -> list[TopicResource]:
        """All resources of this cluster that name the topic, the oldest first."""
        return self._own(self._topics.get(topic, {}))

    def unnamed(self, topic: str) -> list[TopicResource]:
        """Those that name the topic and do not say of which cluster."""
        return [each for each in self._topics.get(topic, {}).values() if self._clusters.unnamed(each.meta)]

    def lessees(self, lease: str) -> list[ProducerResource]:
        """All resources of this cluster that name the lease, the oldest first."""
        return self._own(self._leases.get(lease, {}))

    def metas(self, plural: str) -> list[Meta]:
        return [each.meta for ref, each in self._all.items() if ref.plural == plural]

    def jobs_of(self, producer: Ref) -> list[SparkJobResource]:
        """All SparkJobs that write under the producer, the oldest first."""
        return sorted(self._jobs.get(producer, {}).values(), key=lambda each: each.meta.age)

    def topics(self) -> Iterator[str]:
        yield from list(self._topics)

    def producers(self) -> list[ProducerResource]:
        """All of this cluster."""
        return [each for each in self._producers.values() if self._clusters.owns(each.meta)]

    def all(self) -> list[Resource]:
        return list(self._all.values())

    def _own(self, found: dict[Ref, _Resource]) -> list[_Resource]:
        own = (each for each in found.values() if self._clusters.owns(each.meta))
        return sorted(own, key=lambda each: each.meta.age)


def _take(index: dict[_Key, dict[Ref, _Resource]], name: _Key, ref: Ref) -> None:
    same = index[name]
    del same[ref]
    if not same:
        del index[name]

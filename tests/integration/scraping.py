"""What a process of a local cluster answers on /metrics."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from hapax.local.cluster import LocalCluster

Samples = dict[str, list[tuple[dict[str, str], float]]]


def scraped(cluster: LocalCluster, process: str) -> Samples:
    port = next(each.http_port for each in cluster.status().processes if each.name == process)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return parsed(answer.read().decode())


def parsed(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for own, value in samples.get(name, ()) if labels.items() <= own.items())

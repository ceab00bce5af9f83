"""The cost of the operator: time and memory for a thousand Topics, and its calls to the API server, at rest and with a
hundred busy TransactionalProducers.

It runs a Kubernetes API server without nodes (`make kube-binaries`), a local cluster of two brokers, and one operator
process. The API server counts the requests; this program makes none while they are counted.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import re
import tempfile
import time
from pathlib import Path

from bench.figures import record
from hapax.client import Admin, NewTopic, Producer
from hapax.local.cluster import LocalCluster
from hapax_kube.api import KubeApi
from hapax_kube.binaries import ROOT, find
from hapax_kube.operator import Namespace, OperatorProcess

TOPICS = int(os.environ.get("HAPAX_BENCH_TOPICS", "1000"))
PRODUCERS = 100
REST_S = 60.0
BUSY_S = 60.0
SETTLE_S = 15.0
EVERY_S = 2.0
_COUNTED = re.compile(r'^apiserver_request_total\{(.*)\} (\S+)$', re.MULTILINE)


def requests(api: KubeApi) -> dict[str, float]:
    """Number of requests answered so far, by verb and resource, for the requests that operators make."""
    found: dict[str, float] = {}
    for labels, value in _COUNTED.findall(api.get("/metrics")):
        fields = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if fields["group"] == "hapax.dev" or fields["resource"] == "events" or (
                fields["resource"] == "customresourcedefinitions" and fields["verb"] in ("LIST", "WATCH")):
            name = f"{fields['verb']} {fields['resource']}"
            found[name] = found.get(name, 0) + float(value)
    return found


def rate(api: KubeApi, seconds: float) -> float:
    before, began = requests(api), time.monotonic()
    time.sleep(seconds)
    after, took = requests(api), time.monotonic() - began
    made = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
    print(f"    {made}", flush=True)
    return sum(made.values()) / took


def reconciled(namespace: Namespace, wanted: int, limit_s: float = 600.0) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        items = namespace.api.get(namespace.path("topics"))["items"]
        if sum(ready(each) for each in items) >= wanted:
            return
        time.sleep(1.0)
    raise AssertionError(f"some of the {wanted} topics are not ready after {limit_s} s")


def ready(body: dict) -> bool:  # type: ignore[type-arg]
    return any(each["type"] == "Ready" and each["status"] == "True"
               for each in body.get("status", {}).get("conditions", ()))


def measure_topics(namespace: Namespace, operator: OperatorProcess, name: str = "operator") -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: namespace.topic(f"bench-{index:04}", partitions=1), range(TOPICS)))
    before = requests(namespace.api)
    began = time.monotonic()
    operator.start()
    reconciled(namespace, TOPICS)
    record(f"{name}_reconcile_topics", time.monotonic() - began, "s", at_most=60.0)
    made = {what: count - before.get(what, 0) for what, count in requests(namespace.api).items()}
    print(f"    {made}", flush=True)
    time.sleep(SETTLE_S)
    record(f"{name}_cpu", operator.processor_s(), "CPU-s")
    record(f"{name}_memory", operator.resident_mb(), "MB", at_most=150.0)
    record(f"{name}_requests_at_rest", rate(namespace.api, REST_S), "1/s", at_most=1.0)


async def write_meanwhile(bootstrap: str, names: list[str], stop: asyncio.Event) -> None:
    async def write(name: str) -> None:
        async with Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer:
            while not stop.is_set():
                producer.begin()
                await producer.send("bench-busy", b"x")
                await producer.commit()
                await asyncio.sleep(EVERY_S)

    await asyncio.gather(*(write(name) for name in names))


async def measure_producers(namespace: Namespace, bootstrap: str) -> None:
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        await admin.create_topics([NewTopic("bench-busy", 4)])
    names = [f"busy-{index:03}" for index in range(PRODUCERS)]
    for name in names:
        await asyncio.to_thread(namespace.producer, name, transactionalId=name)
    stop = asyncio.Event()
    writing = asyncio.get_running_loop().create_task(write_meanwhile(bootstrap, names, stop))
    try:
        await asyncio.sleep(SETTLE_S + 30.0)
        made = await asyncio.to_thread(rate, namespace.api, BUSY_S)
        record("operator_requests_busy_producers", made, "1/s", at_most=5.0)
        shown = [each.get("status", {}) for each in
                 (await asyncio.to_thread(namespace.api.get, namespace.path("transactionalproducers")))["items"]]
        assert sum("lastOutcome" in each for each in shown) == PRODUCERS, "each producer has a last outcome"
    finally:
        stop.set()
        await writing


def main() -> None:
    binaries = find()
    if binaries is None:
        print("  Kubernetes is not built: `make kube-binaries` builds it", flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster, api = LocalCluster(Path(folder) / "cluster"), KubeApi(binaries, Path(folder) / "kube")
        operator: OperatorProcess | None = None
        try:
            cluster.up(owned=True, brokers=2)
            api.start().with_definitions(ROOT / "charts" / "hapax" / "files" / "crds")
            api.create("/api/v1/namespaces", {"metadata": {"name": "bench"}})
            namespace = Namespace(api, "bench")
            operator = OperatorProcess(cluster, api.kubeconfig, "bench", 310, Path(folder) / "operator")
            measure_topics(namespace, operator)
            asyncio.run(measure_producers(namespace, cluster.bootstrap))
        except BaseException:
            if operator is not None and operator.process is not None:
                print(operator.log()[-3000:], flush=True)
            raise
        finally:
            if operator is not None:
                operator.close()
            api.close()
            cluster.down()


if __name__ == "__main__":
    main()

"""Dependencies between transactions, and the cycles in them.

ww: the writer of the previous index -> the writer of this one. wr: the writer of a value -> each reader of it. G0 is a
cycle of ww edges alone, G1c one with at least one wr edge. Values may interleave in Kafka's logs, because a transaction
takes no locks. So ww edges say nothing about isolation, and only a G1c of wr edges alone is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hapax_checker.record import Operation
from hapax_checker.versions import Knowledge

Graph = list[list[int]]


def cycles(known: Knowledge) -> Iterator[tuple[str, str]]:
    """(name, sentence): `G1c` of wr edges alone; with the ww edges on `G0` and `G1c-with-ww`."""
    nodes = [o for o in known.done if id(o) in known.committed or (o.type == "info" and o.f == "txn")]
    number = {id(o): i for i, o in enumerate(nodes)}
    wr, ww = _edges(known, nodes, number)
    for component in components(wr):
        yield "G1c", _sentence(nodes, component)
    for component in components(ww):
        yield "G0", _sentence(nodes, component)
    both = [a + b for a, b in zip(wr, ww, strict=True)]
    for component in components(both):
        inside = set(component)
        if any(target in inside for node in component for target in wr[node]):
            yield "G1c-with-ww", _sentence(nodes, component)


def _edges(known: Knowledge, nodes: Sequence[Operation], number: dict[int, int]) -> tuple[Graph, Graph]:
    wr: Graph = [[] for _ in nodes]
    ww: Graph = [[] for _ in nodes]
    writer: dict[tuple[str, object], int] = {}
    for (key, value), operations in known.writers.items():
        for operation in operations:
            if id(operation) in known.committed and id(operation) in number:
                writer[key, value] = number[id(operation)]
    for i, operation in enumerate(nodes):
        if operation.type != "ok":
            continue
        sources = {writer.get((key, value), i) for key, pairs in operation.polls() for _, value in pairs}
        for source in sources:
            if source != i:
                wr[source].append(i)
    for key, versions in known.versions.items():
        before = -1
        for values in versions.at_index:
            for value in values:
                here = writer.get((key, value), -1)
                if here >= 0:
                    if before >= 0 and before != here:
                        ww[before].append(here)
                    before = here
    return wr, ww


def components(graph: Graph) -> list[list[int]]:
    """Strongly connected components of more than one node (Tarjan 1972, without recursion)."""
    index = [-1] * len(graph)
    low = [0] * len(graph)
    on_stack = bytearray(len(graph))
    stack: list[int] = []
    found: list[list[int]] = []
    counter = 0
    for root in range(len(graph)):
        if index[root] >= 0:
            continue
        work = [(root, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = counter
                counter += 1
                stack.append(node)
                on_stack[node] = 1
            edges = graph[node]
            descended = False
            while at < len(edges):
                target = edges[at]
                at += 1
                if index[target] < 0:
                    work.append((node, at))
                    work.append((target, 0))
                    descended = True
                    break
                if on_stack[target]:
                    low[node] = min(low[node], index[target])
            if descended:
                continue
            if low[node] == index[node]:
                component = []
                while True:
                    member = stack.pop()
                    on_stack[member] = 0
                    component.append(member)
                    if member == node:
                        break
                if len(component) > 1:
                    found.append(sorted(component))
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
    return found


def _sentence(nodes: Sequence[Operation], component: list[int]) -> str:
    shown = ", ".join(str(nodes[i]) for i in component[:6])
    return f"{len(component)} operations depend on each other: {shown}"

"""Generates docs/settings.md, docs/metrics.md, the tables of calls in docs/protocol.md, docs/security.md and
docs/rest.md, and the events of docs/audit.md from the source:
`python scripts/generate_docs.py [--check]`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from hapax.admin import metrics as admin
from hapax.admin.needs_page import with_routes
from hapax.broker import metrics as broker
from hapax.client import metrics as client
from hapax.controller import metrics as controller
from hapax.coordinator import metrics as coordinator
from hapax.copy import metrics as copy
from hapax.kafka import metrics as node
from hapax.kafka.calls_page import with_needs, with_table
from hapax.pid import metrics as pid
from hapax.runtime import metrics, process_metrics
from hapax.runtime.audit_events import with_events
from hapax.runtime.settings_page import settings_page
from hapax.wire import metrics as wire
from hapax_operator import metrics as operator

_SECTIONS: tuple[tuple[str, str, ModuleType], ...] = (
    ("Every process", "Every process has these, including those listed below.", process_metrics),
    ("Requests", "Brokers and coordinators, which speak the Kafka protocol.", node),
    ("Events and fencings", "Every service that reports events or fences.", wire),
    ("Brokers", "Metrics with the labels `topic` and `partition` exist for each replica on the broker.", broker),
    ("Coordinators", "These count the shards that the process owns: sum them over all coordinators.", coordinator),
    ("PID allocators", "Producer ids and leases.", pid),
    ("Controllers",
     "Metrics that begin with `hapax_cluster_` are the same for every candidate: they come from the metadata store.",
     controller),
    ("Operator", "The Kubernetes operator. It hosts a controller and has the controller's metrics, too.", operator),
    ("Admin service", "The REST API.", admin),
    ("Client",
     "A `hapax.client.Producer`, `Consumer` or `Processor` offers these to its application: "
     "`producer.metrics.values()`, or `prometheus_client.REGISTRY.register(producer.metrics)`.", client),
    ("Copies", "`hapax copy --metrics-port`, for each partition of the source that the process copies.", copy),
)


def metrics_page() -> str:
    return metrics.page((title, intro, metrics.declared_in(module)) for title, intro, module in _SECTIONS)


ROOT = Path(__file__).resolve().parent.parent
AUDIT = ROOT / "docs" / "audit.md"
PROTOCOL = ROOT / "docs" / "protocol.md"
SECURITY = ROOT / "docs" / "security.md"
REST = ROOT / "docs" / "rest.md"
PAGES = {
    ROOT / "docs" / "settings.md": settings_page, ROOT / "docs" / "metrics.md": metrics_page,
    PROTOCOL: lambda: with_table(PROTOCOL.read_text()), SECURITY: lambda: with_needs(SECURITY.read_text()),
    AUDIT: lambda: with_events(AUDIT.read_text()), REST: lambda: with_routes(REST.read_text()),
}


def main() -> int:
    stale = [path for path, page in PAGES.items() if not path.exists() or path.read_text() != page()]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} differs from the source: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(PAGES[path]())
    return 0


if __name__ == "__main__":
    sys.exit(main())

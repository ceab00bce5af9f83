"""What the admin service tells."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter, gauge, histogram

REQUESTS: Final = counter("hapax_admin_requests_total", "REST requests.", ["method", "status"])
REQUEST_SECONDS: Final = histogram("hapax_admin_request_seconds", "From a request's head to its answer's end.")
CONNECTIONS_CLOSED: Final = counter(
    "hapax_admin_connections_closed_total", "Connections closed on clients.", ["why"])
CONNECTIONS: Final = gauge("hapax_admin_connections", "Connections of clients.")
CONNECTIONS_WAITING: Final = gauge(
    "hapax_admin_connections_waiting", "Those of them that have sent no whole request.")

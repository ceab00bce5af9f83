"""The admin service's metrics."""

from __future__ import annotations

from typing import Final

from hapax.runtime.metrics import counter, gauge, histogram

REQUESTS: Final = counter("hapax_admin_requests_total", "REST requests.", ["method", "status"])
REQUEST_SECONDS: Final = histogram(
    "hapax_admin_request_seconds", "Time from the start of a request to the end of its answer.")
LOGINS: Final = counter(
    "hapax_admin_logins_total", "Requests with credentials, by way (`admin.auth`) and outcome (succeeded, failed).",
    ["way", "outcome"])
CONNECTIONS_CLOSED: Final = counter(
    "hapax_admin_connections_closed_total", "Client connections that the service closed, by reason.", ["why"])
CONNECTIONS: Final = gauge("hapax_admin_connections", "Open client connections.")
HANDSHAKES: Final = gauge(
    "hapax_admin_tls_handshakes", "Client connections whose TLS handshake is incomplete.")
CONNECTIONS_WAITING: Final = gauge(
    "hapax_admin_connections_waiting", "Open client connections that have sent no complete request yet.")
